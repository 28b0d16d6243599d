"""The events of a provider's stream, as they arrive."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from pointsman_apis.streams import EventSplitter, StreamEvent
from pointsman_providers.errors import BrokenAnswer

E = TypeVar("E")
LONGEST_EVENT: Final = 16 * 2**20
"""Longest event in bytes: a provider that sends more without the end of an event isn't sending events."""


class ProviderEvents:
    """One stream; bytes may be split anywhere."""

    __slots__ = ("_splitter",)

    def __init__(self) -> None:
        self._splitter = EventSplitter()

    def split_bytes(self, data: bytes) -> list[StreamEvent]:
        """The next bytes; returns the complete events. Raises BrokenAnswer for one that is too long."""
        events = self._splitter.split_bytes(data)
        if self._splitter.size > LONGEST_EVENT:
            raise BrokenAnswer(f"an event is longer than {LONGEST_EVENT} bytes")
        return events

    def split_end(self) -> list[StreamEvent]:
        """The stream is over; an event that lacks only its empty line still counts."""
        return self._splitter.rest()


class Translator(Generic[E], ABC):
    """Translates the events of a stream one by one. Events before one that is an error leave before it is raised, once
    the client has something of the answer."""

    def __init__(self) -> None:
        self.ended = False
        self.broken: BrokenAnswer | None = None
        """The end of the answer, behind the events that `feed` returned."""

    @property
    @abstractmethod
    def has_begun(self) -> bool:
        """Whether the events so far say something; before that another endpoint can take the request."""

    @abstractmethod
    def _translate(self, each: E) -> bytes:
        """One event for the client. Raises BrokenAnswer."""

    def translate_events(self, events: Iterable[E]) -> bytes:
        """The events for the client. Raises BrokenAnswer."""
        if self.broken is not None:
            raise self.broken
        begun = self.has_begun
        out: list[bytes] = []
        try:
            out.extend(map(self._translate, events))
        except BrokenAnswer as broken:
            if not (begun and any(out)):
                raise
            self.broken = broken
        return b"".join(out)


class EventTranslator(Translator[StreamEvent]):
    """Translates a stream of server-sent events."""

    def __init__(self) -> None:
        super().__init__()
        self._events = ProviderEvents()

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether every part of the answer is here; the mark at its end, or a report of usage, may follow."""

    @abstractmethod
    def _end(self) -> bytes:
        """The last events of a finished answer; sets `ended`."""

    def translate_bytes(self, data: bytes) -> bytes:
        """Implements `StreamReader.translate_bytes`."""
        return self.translate_events(self._events.split_bytes(data))

    def translate_end(self) -> bytes:
        """Implements `StreamReader.translate_end`."""
        rest = b""
        try:
            rest = self.translate_events(self._events.split_end())
        except BrokenAnswer:
            if not self.finished:
                raise
        if self.ended:
            return rest
        if not self.finished:
            raise BrokenAnswer("the stream ended early")
        return rest + self._end()
