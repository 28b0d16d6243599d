"""The counters of every subscription of a process."""

from collections.abc import Iterator

from pointsman_contracts.message import MalformedMessage
from pointsman_runtime.telling.logs import Log

_log = Log("bus")


class Tally:
    """Outcomes of the messages of one subscription: plain integers, read when metrics are scraped."""

    __slots__ = ("dead", "dropped", "failed", "handled", "malformed", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.handled = 0
        self.dropped = 0
        """Arrived while the mailbox was full."""
        self.dead = 0
        """Arrived after their deadline."""
        self.malformed = 0
        self.failed = 0
        """The handler raised."""


class Tallies:
    """Counters by subscription; several services of a process may count under one name."""

    def __init__(self) -> None:
        self._tallies: list[Tally] = []

    def __iter__(self) -> Iterator[Tally]:
        return iter(self._tallies)

    def new_tally(self, name: str) -> Tally:
        """Counters for a subscription, shown in metrics under `name`."""
        tally = Tally(name)
        self._tallies.append(tally)
        return tally

    def count_malformed(self, tally: Tally, subject: str, payload: bytes, error: MalformedMessage) -> None:
        """Count a message that couldn't be decoded, and log it in one line without its content."""
        tally.malformed += 1
        _log.warning(
            "malformed_message",
            subject=subject,
            size=len(payload),
            problem=error.problem,
            where=error.where,
        )
