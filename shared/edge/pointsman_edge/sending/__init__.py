"""What an engine or a provider gets, and what the client gets of its answer."""
