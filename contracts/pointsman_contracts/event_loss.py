"""Events that never reached their stream."""

from typing import ClassVar

from pointsman_contracts.events import Numbered
from pointsman_contracts.message import Address, Part


class EventSpan(Part, frozen=True, kw_only=True):
    """A part of a publisher's events of one subject."""

    first: int
    """Least `sequence` among them."""
    last: int
    """Greatest `sequence`."""
    from_ms: int
    """Time of the earliest, unix milliseconds."""
    to_ms: int
    """Time of the latest."""


class LostEvents(EventSpan, frozen=True, kw_only=True):
    """Events of one subject and one publisher. Those from `first` to `last` are all lost where `count` says so."""

    subject: str
    source: str
    """Instance that published them."""
    count: int

    def merge_with(self, other: "LostEvents") -> "LostEvents":
        """Both together, of one subject and source."""
        return LostEvents(
            subject=self.subject,
            source=self.source,
            count=self.count + other.count,
            first=min(self.first, other.first),
            last=max(self.last, other.last),
            from_ms=min(self.from_ms, other.from_ms),
            to_ms=max(self.to_ms, other.to_ms),
        )


class EventsLost(Numbered, frozen=True, kw_only=True):
    """A process gave up events that the stream `PM_EVENTS` didn't take: it could hold no more of them, or the server
    refused them. Published by any service, as an event, once the stream takes events again; for any reader."""

    address: ClassVar[Address] = Address("evt", "event", "lost", route=("service",))

    lost: tuple[LostEvents, ...]
