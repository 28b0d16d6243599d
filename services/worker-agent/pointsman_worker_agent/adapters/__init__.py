"""Messages from the engine besides HTTP."""
