"""One request to a provider, and the reader of its answer."""

import codecs
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from pointsman_contracts.response import Usage
from pointsman_providers.errors import BrokenAnswer

_STREAMS: Final = ("text/event-stream", "application/vnd.amazon.eventstream")
"""Content types of answers that are streams."""
_LINES: Final = (b"data:", b"event:", b":", b"id:", b"retry:")
_BEFORE: Final = codecs.BOM_UTF8 + b" \t\r\n"
"""Bytes that may come before an answer."""
FIRST_BYTES: Final = 6
"""As many bytes after those tell a stream from a document."""


def first_bytes(data: bytes) -> bytes:
    """The beginning of an answer, without the bytes that may come before it."""
    return data[: 2 * FIRST_BYTES + len(_BEFORE)].lstrip(_BEFORE)


def is_stream(content_type: str, data: bytes) -> bool:
    """Whether an answer that begins with `data` is a stream, whatever it is labelled: services label streams as JSON or
    as text, and error documents as streams."""
    first = first_bytes(data)
    if first.startswith((b"{", b"[")):
        return False
    # A message of AWS's event streams begins with its length, which has four bytes.
    return content_type.lower().startswith(_STREAMS) or first.startswith((*_LINES, b"\0\0"))


class FromClient(NamedTuple):
    """The parts of the client's request besides its body that the provider takes (`ProviderKind.client_headers`)."""

    headers: Mapping[str, str] = MappingProxyType({})
    """By lower-case name."""
    query: str = ""
    """Percent-encoded, without a question mark."""


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
    answers: int = 1
    """Those that the provider is to generate."""
    sent: FromClient = FromClient()


class StreamReader(Protocol):
    """Reads a streamed answer."""

    @property
    def has_begun(self) -> bool:
        """Whether the events so far say something; before that another endpoint can take the request."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the mark at the end of the answer has come."""
        ...

    @property
    def finished(self) -> bool:
        """Whether every part of the answer is here; the mark at its end, or a report of usage, may follow."""
        ...

    @property
    def broken(self) -> BrokenAnswer | None:
        """Why the answer ended behind the events that were returned last."""
        ...

    def translate_bytes(self, data: bytes) -> bytes:
        """The next bytes from the provider, split anywhere; returns whole events for the client, comments too, or
        nothing yet.

        Raises BrokenAnswer.
        """
        ...

    def translate_end(self) -> bytes:
        """The provider has ended the stream; returns the last events. Raises BrokenAnswer when it broke off."""
        ...


class AnswerReader(Protocol):
    """Reads the answer to one call."""

    usage: Usage | None
    """The usage that the provider reported, as far as it was read."""

    def translate_whole(self, body: bytes) -> bytes:
        """A successful answer that isn't a stream, for the client. Raises BrokenAnswer."""
        ...

    def make_stream_reader(self) -> StreamReader:
        """A successful answer that is a stream."""
        ...


class ProviderCall(NamedTuple):
    """The request as the provider gets it; the credential is still missing."""

    path: str
    """After the provider's base URL; percent-encoded, with its query."""
    headers: dict[str, str]
    """By lower-case name; `user-agent` and the credential are still missing."""
    body: bytes
    answer: AnswerReader


class Format(Protocol):
    """Translates for one kind of provider."""

    def translate_request(self, question: ProviderQuestion) -> ProviderCall:
        """Translate a request. Raises Refusal 400 with a field that this kind of provider doesn't support."""
        ...

    def repair_question(self, question: ProviderQuestion, error: bytes) -> ProviderQuestion | None:
        """The request without what the provider refused by this error document, where a history from elsewhere had it
        and the conversation can go on without; None where the request is the client's to mend."""
        ...
