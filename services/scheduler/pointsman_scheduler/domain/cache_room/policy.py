"""The part of a scheduling policy that decides whether requests wait for room, and what it learns from."""

from dataclasses import dataclass

import numpy as np

from pointsman_delay import PassSizeSearch
from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.points import ResponseObserver
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.domain.cache_room.fleet_room import FleetRoom, Match
from pointsman_scheduler.domain.cache_room.room import LEAST_SHARE, CacheRoom, RoomNeeded


class CacheRoomObserver(ResponseObserver):
    """Follows the requests of all schedulers."""

    type_name = "cache-room"

    def setup(self) -> None:
        self.room = CacheRoom()
        self.forecast: PassSizeSearch | None = None
        """The pool's delay model; None where the policy has none."""

    def chosen(self, hold: Hold, now: float) -> None:
        change, worker = hold.change, hold.worker
        capacity = worker.capacity_tokens
        if not capacity:
            return
        prompt = change.prompt_tokens
        uncached = min(prompt, change.uncached_tokens)
        if change.leg or prompt < LEAST_SHARE * capacity:
            self.room.count_short(hold.key, worker.life, capacity, uncached)
            return
        needed = RoomNeeded(
            key=hold.key,
            life=worker.life,
            capacity=float(capacity),
            prompt=prompt,
            uncached=uncached,
            flow=change.flow or "",
        )
        self.room.take_room(needed, np.frombuffer(change.blocks, dtype="<u8") if change.blocks else None, now)

    def gone(self, hold: Hold, now: float) -> None:
        if self.room.uncount_short(hold.key, hold.answer_tokens):
            return
        change = hold.change
        last_block: int | None = None
        if hold.confirmed and not change.leg and len(change.blocks) >= 8:
            last_block = int(np.frombuffer(change.blocks[-8:], dtype="<u8")[0])
            self._learn_token_time()
        self.room.give_room_back(hold.key, now, last_block, hold.answer_tokens)

    def _learn_token_time(self) -> None:
        estimator = None if self.forecast is None else self.forecast.best
        if estimator is not None and estimator.model.is_trusted:
            budget, rates = float(estimator.batch_tokens), estimator.model.rates
            self.room.token_ms = rates.passes_ms(budget, budget) / budget


@dataclass(frozen=True, slots=True, eq=False)
class CacheRoomPolicy:
    """Like `config.CacheRoom`, with the state of the pool."""

    room: CacheRoom
    patience_ms: float

    def see_room(self, fleet: Fleet, now: float, match: Match, *, may_wait: bool = True) -> FleetRoom:
        """The room of the engines now; the arguments as `FleetRoom` has them."""
        return FleetRoom(self.room, fleet, now, match, patience_ms=self.patience_ms, may_wait=may_wait)


def new_observer() -> CacheRoomObserver:
    """One that knows nothing."""
    return CacheRoomObserver("cache-room", Params())
