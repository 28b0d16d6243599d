"""That an engine drains: until when, and who ordered it."""

from dataclasses import dataclass

from pointsman_contracts.worker import DrainNotice


@dataclass(frozen=True, slots=True)
class Drain:
    """From the moment an engine takes nothing new."""

    until: float | None = None
    """When what it has moves to other engines, by the event loop's clock; None: it may end there."""
    why: str = ""

    def notice_at(self, now: float) -> DrainNotice:
        """For a message that is sent now."""
        left_ms = None if self.until is None else max(0, round((self.until - now) * 1000))
        return DrainNotice(left_ms=left_ms, why=self.why)
