"""When engines were listed, from snapshots of their pools. Pure."""

from typing import Final

import msgspec
from msgspec.structs import replace

from pointsman_contracts.pool import EnginePrice, PoolSnapshot

_HEARD_US: Final = 5_000_000
"""Snapshots come each second: one that is this late continues the one before."""
LONGEST_GAP_US: Final = 7 * 86_400_000_000
"""As late, it continues the one before where the engine's boot is the same: this recorder or the bus was away."""
_AWAY: Final = ("silent", "unreachable")


class EngineListing(msgspec.Struct, frozen=True, gc=False):
    """A time in which an engine was listed, in unix microseconds; in each, its state and price are the same."""

    pool: str
    engine: str
    from_us: int
    until_us: int
    up: bool
    """False while it was silent or unreachable."""
    boot_id: str
    hour_nanos: int
    output_weight: float


class EngineListings:
    """The latest life of each engine of the pools with a price."""

    def __init__(self, latest: list[EngineListing]) -> None:
        self._latest: Final = {(life.pool, life.engine): life for life in latest}
        self._changed: dict[tuple[str, str, int], EngineListing] = {}
        self.prices: Final = {
            life.pool: EnginePrice(hour_nanos=life.hour_nanos, output_weight=life.output_weight) for life in latest
        }
        """By pool."""
        self.heard_us = max((life.until_us for life in latest), default=0)
        """When an engine was listed last."""

    def take_snapshot(self, snapshot: PoolSnapshot, now_us: int) -> None:
        """Its engines are listed now, by this recorder's clock: others' may differ from each other."""
        pool, price = snapshot.pool, snapshot.price
        if price is None:
            self.prices.pop(pool, None)
            return
        self.prices[pool] = price
        self.heard_us = now_us
        for view in snapshot.workers:
            life = EngineListing(
                pool=pool,
                engine=view.worker,
                from_us=now_us,
                until_us=now_us,
                up=view.state not in _AWAY,
                boot_id=view.boot_id,
                hour_nanos=price.hour_nanos,
                output_weight=price.output_weight,
            )
            last = self._latest.get((pool, view.worker))
            if last is not None:
                gap_us = now_us - last.until_us
                if -LONGEST_GAP_US <= gap_us <= 0:
                    continue  # the clock went back: this time is counted already
                booted = last.boot_id == life.boot_id != ""
                if 0 < gap_us <= (LONGEST_GAP_US if booted else _HEARD_US):
                    life = replace(life, from_us=last.until_us)
                    if replace(last, until_us=now_us) == replace(life, from_us=last.from_us):
                        life = replace(life, from_us=last.from_us)
            self._latest[pool, view.worker] = self._changed[pool, view.worker, life.from_us] = life

    def take_changed(self) -> list[EngineListing]:
        """The lives that are new or longer since the last call. Forgets engines that nothing continues any more."""
        changed = [*self._changed.values()]
        self._changed = {}
        gone = [place for place, life in self._latest.items() if self.heard_us - life.until_us > LONGEST_GAP_US]
        for place in gone:
            del self._latest[place]
        return changed
