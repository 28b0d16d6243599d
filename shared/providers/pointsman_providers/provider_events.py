"""The events of a provider's stream, as they arrive."""

from typing import Final

from pointsman_apis.streams import EventSplitter, StreamEvent
from pointsman_providers.errors import BrokenAnswer

LONGEST_EVENT: Final = 16 * 2**20
"""Longest event in bytes: a provider that sends more without the end of an event isn't sending events."""


class ProviderEvents:
    """One stream; bytes may be split anywhere."""

    __slots__ = ("_splitter",)

    def __init__(self) -> None:
        self._splitter = EventSplitter()

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The next bytes; returns the complete events. Raises BrokenAnswer for one that is too long."""
        events = self._splitter.feed(data)
        if self._splitter.size > LONGEST_EVENT:
            raise BrokenAnswer(f"an event is longer than {LONGEST_EVENT} bytes")
        return events

    def end(self) -> list[StreamEvent]:
        """The stream is over; an event that lacks only its empty line still counts."""
        return self._splitter.rest()
