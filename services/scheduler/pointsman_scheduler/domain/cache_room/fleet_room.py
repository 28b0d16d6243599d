"""The room of a fleet's engines, as one decision or one waiting request sees it."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Removed
from pointsman_plugins.scheduling.worker import Worker
from pointsman_scheduler.domain.cache_room.room import CacheRoom, NewPrefix

RESERVED_S: Final = 0.2
"""A reservation is valid for this long: it is renewed while its request waits."""

Match = Callable[[ScheduleRequest], Floats]


class FleetRoom:
    """Rows are those of the fleet; `now` is monotonic seconds. `match`: prompt tokens of a request in each engine's
    cache; `may_wait`: whether the request in question waits where no engine has room."""

    def __init__(
        self, room: CacheRoom, fleet: Fleet, now: float, match: Match, *, patience_ms: float, may_wait: bool
    ) -> None:
        self._room: Final = room
        self._fleet: Final = fleet
        self._now: Final = now
        self._match: Final = match
        self.patience_ms: Final = patience_ms
        self.may_wait: Final = may_wait

    def match_prompt(self, request: ScheduleRequest) -> Sequence[float]:
        """Prompt tokens that each engine holds."""
        return self._match(request).tolist()

    @property
    def token_ms(self) -> float:
        """How long an engine computes a prompt token."""
        return self._room.token_ms

    def list_names(self) -> Sequence[str]:
        """Names of the engines, by row."""
        return self._fleet.names

    def find_lacking(self, request: ScheduleRequest, continued: int | None, matched: Sequence[float]) -> list[int]:
        """Rows of the engines that have no room for the request."""
        workers = self._fleet.workers
        return self._room.lives_without_room(
            request=request.key,
            prompt=NewPrefix(request.facts.prompt_tokens, continued),
            lives=[worker.life for worker in workers],
            capacities=self._fleet.capacity_tokens.tolist(),
            matched=matched,
            now=self._now,
        )

    def find_room(self, request: ScheduleRequest, continued: int | None, matched: Sequence[float]) -> list[int]:
        """Rows of the engines that serve and have room for the request."""
        lacking = set(self.find_lacking(request, continued, matched))
        serving = np.flatnonzero(self._fleet.eligible_until >= self._now)
        return [row for row in serving.tolist() if row not in lacking]

    def reserve_engine(self, request: ScheduleRequest, matched: Sequence[float], among: Sequence[str] | None) -> None:
        """Keep the engine that lacks least room for the request from taking other new prefixes."""
        room, least = self._room, float("inf")
        best: int | None = None
        for row, worker in enumerate(self._fleet.workers):
            if worker.capacity_tokens and (among is None or worker.name in among):
                short = room.taken_share(worker.life) - matched[row] / worker.capacity_tokens
                if short < least:
                    best, least = worker.life, short
        if best is not None:
            room.reserve_engine(best, request.key, self._now + RESERVED_S)

    def find_continued(self, request: ScheduleRequest) -> int | None:
        """The kept prefix that the prompt continues (`NewPrefix.continued`)."""
        return self._room.find_continued(request.blocks)

    def keep_while_waiting(self, continued: int | None) -> None:
        """The next turn of a session waits: its prefix stays meanwhile."""
        if continued is not None:
            self._room.note_return(continued, self._now, self.patience_ms / 1000.0)

    def explain_lacking(self, rows: Sequence[int]) -> Removed:
        """The explanation of engines without room."""
        room = self._room

        def why(worker: Worker) -> str:
            share = room.taken_share(worker.life)
            return (
                f"{share:.0%} of its KV cache is taken by open requests and by sessions that are about to go on: this "
                "prompt would push one of them out"
            )

        return Removed("cache-room", np.array(rows, dtype=np.int64), why)
