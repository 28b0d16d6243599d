"""Errors of JetStream in an operator's words."""

from nats.js.errors import ServiceUnavailableError


def jetstream_words(error: Exception) -> str:
    """The reason that JetStream refused or didn't answer a call."""
    if isinstance(error, ServiceUnavailableError) and error.code is None:
        return "the server runs without JetStream, or JetStream isn't up yet"
    return str(error) or type(error).__name__
