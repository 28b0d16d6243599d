"""One request to a provider, and the reader of its answer."""

from typing import Final, NamedTuple, Protocol

from pointsman_contracts.response import Usage

STREAMS: Final = ("text/event-stream", "application/vnd.amazon.eventstream")
"""Content types of answers that are streams."""


class ProviderQuestion(NamedTuple):
    """A client's request, and which of the provider's models it goes to."""

    api: str
    """`chat.completions`, `completions`, `embeddings`, `responses` or `messages`."""
    body: bytes
    """In the words of that API; `model` is the provider's name."""
    model: str
    """The provider's name of the model."""
    asked: str
    """The name that the client used, which the answer carries."""
    request_id: str
    now_s: int
    """Unix time, for answers that must have one."""


class StreamReader(Protocol):
    """Reads a streamed answer."""

    def feed(self, data: bytes) -> bytes:
        """The next bytes from the provider, split anywhere; returns whole events for the client, or nothing yet.

        Raises BrokenAnswer.
        """
        ...

    def end(self) -> bytes:
        """The provider has ended the stream; returns the last events. Raises BrokenAnswer when it broke off."""
        ...


class AnswerReader(Protocol):
    """Reads the answer to one call."""

    usage: Usage | None
    """What the provider reported, as far as it was read."""

    def whole(self, body: bytes) -> bytes:
        """A successful answer that isn't a stream, for the client. Raises BrokenAnswer."""
        ...

    def stream(self) -> StreamReader:
        """A successful answer that is a stream."""
        ...


class ProviderCall(NamedTuple):
    """The request as the provider gets it; the credential is still missing."""

    path: str
    """After the provider's base URL; percent-encoded, with its query."""
    headers: dict[str, str]
    body: bytes
    answer: AnswerReader


class Format(Protocol):
    """Translates for one kind of provider."""

    def call(self, question: ProviderQuestion) -> ProviderCall:
        """Translate a request. Raises Refusal 400 with a field that this kind of provider doesn't support."""
        ...
