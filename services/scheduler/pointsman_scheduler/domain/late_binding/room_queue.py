"""The requests that wait until an engine has room for their prompts.

The least tokens to compute go first: they take the least room and time. So that none waits for ever, a request that has
waited for `patience` has an engine reserved: the one that lacks the least room for it gets no other new prefix.
"""

import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_scheduler.domain.late_binding.unbound import Because, Bound

LOOK_EVERY_MS: Final = 50.0
"""Schedulers of a pool look at different moments of this time: each knows then what the one before has sent."""
MOST_WAITING: Final = 1024
"""With more, the oldest goes to the engine that is best now."""
MATCH_EVERY_MS: Final = 1000.0
"""The tokens that engines hold of a waiting request's prompt are looked up this often."""


class SeesRoom(Protocol):
    """The engines, as a waiting request sees them. Rows are those of the fleet."""

    @property
    def patience_ms(self) -> float:
        """A request that has waited this long has the next engine with room for itself."""
        ...

    def match_prompt(self, request: ScheduleRequest) -> Sequence[float]:
        """Prompt tokens that each engine holds."""
        ...

    def find_room(self, request: ScheduleRequest, continued: int | None, matched: Sequence[float]) -> list[int]:
        """Rows of the engines that serve and have room for the request."""
        ...

    def reserve_engine(self, request: ScheduleRequest, matched: Sequence[float], among: Sequence[str] | None) -> None:
        """Keep the engine that lacks least room for the request from taking other new prefixes."""
        ...

    @property
    def token_ms(self) -> float:
        """How long an engine computes a prompt token."""
        ...

    def list_names(self) -> Sequence[str]:
        """Names of the engines, by row."""
        ...


class NeedsRoom(NamedTuple):
    """A request that waits. Times are milliseconds of the binder's clock."""

    request: ScheduleRequest
    since: float
    continued: int | None
    """The kept prefix that the prompt continues (`NewPrefix.continued`)."""
    among: frozenset[str] | None
    """Workers that may serve it; None for all."""
    matched: Sequence[float]
    matched_at: float

    @property
    def uncached(self) -> float:
        """Prompt tokens to compute where most of them are held."""
        return self.request.facts.prompt_tokens - max(self.matched, default=0.0)

    def leave_because(self, now: float, because: Because, predicted_ms: float = 0.0) -> Bound:
        """It goes to the engine that is best now, or is refused."""
        self.request.bound = ""
        return Bound(self.request, "", now - self.since, because, predicted_ms)

    def predict_ms(self, now: float, token_ms: float) -> float:
        """From when it began to wait to its first token, if an engine had room now."""
        return now - self.since + self.uncached * token_ms

    def is_late(self, now: float, token_ms: float) -> bool:
        """Whether it is refused because even an engine with room now would be too late."""
        facts = self.request.facts
        return facts.is_refused_late and self.predict_ms(now, token_ms) > (facts.slo_ttft_ms or 0.0)


class RoomQueue:
    """Knows no clock. Times are milliseconds of the binder's clock."""

    def __init__(self) -> None:
        self._waiting: dict[RequestKey, NeedsRoom] = {}
        self._look_at = 0.0
        self._names: tuple[str, ...] = ()
        """The engines at the last look: `matched` has a number for each."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add_waiting(self, entry: NeedsRoom, scheduler: str) -> None:
        """Let a request wait. One that waits already keeps its place."""
        if not self._waiting:
            self._look_at = next_look(entry.since, scheduler)
        self._waiting.setdefault(entry.request.key, entry)

    def remove_waiting(self, request: RequestKey) -> NeedsRoom | None:
        """Remove a request; None when it doesn't wait."""
        return self._waiting.pop(request, None)

    @property
    def look_at(self) -> float:
        return self._look_at

    def bind_next(self, now: float, scheduler: str, engines: SeesRoom | None) -> list[Bound]:
        """The next request that goes, at most one: an engine has room for it, or too many wait. Before that, those that
        are refused because they are late. Without `engines`, all go."""
        waiting = self._waiting
        if engines is None:
            left = [entry.leave_because(now, Because.BLIND) for entry in waiting.values()]
            waiting.clear()
            return left
        if not waiting or now < self._look_at:
            return []
        if len(waiting) > MOST_WAITING:
            return [waiting.pop(next(iter(waiting))).leave_because(now, Because.FULL)]
        names = tuple(engines.list_names())
        changed, self._names = names != self._names, names
        for key, entry in waiting.items():
            if changed or now - entry.matched_at >= MATCH_EVERY_MS:
                waiting[key] = entry._replace(matched=engines.match_prompt(entry.request), matched_at=now)
        oldest = next(iter(waiting.values()))
        if now - oldest.since > engines.patience_ms:
            engines.reserve_engine(
                oldest.request, oldest.matched, None if oldest.among is None else sorted(oldest.among)
            )
        token_ms = engines.token_ms
        late = [entry for entry in waiting.values() if entry.is_late(now, token_ms)]
        if late:
            for entry in late:
                del waiting[entry.request.key]
            return [entry.leave_because(now, Because.LATE, entry.predict_ms(now, token_ms)) for entry in late]
        for entry in sorted(waiting.values(), key=lambda each: (each.uncached, each.since)):
            rows = engines.find_room(entry.request, entry.continued, entry.matched)
            if entry.among is not None:
                rows = [row for row in rows if names[row] in entry.among]
            if rows:
                return [waiting.pop(entry.request.key).leave_because(now, Because.ROOM)]
        self._look_at = next_look(now, scheduler)
        return []


def next_look(now: float, scheduler: str) -> float:
    """This scheduler's next moment to look."""
    phase = zlib.crc32(scheduler.encode()) % 1000 * LOOK_EVERY_MS / 1000.0
    return (now - phase) // LOOK_EVERY_MS * LOOK_EVERY_MS + phase + LOOK_EVERY_MS
