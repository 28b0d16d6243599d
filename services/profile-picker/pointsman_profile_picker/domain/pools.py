"""The state of the pools, as the newest snapshots tell it."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.timing import TIMES
from pointsman_core.pool_table import PoolTable

POOL_FACTS: Final = ("saturation", "serving", "running", "waiting", "age_ms")
"""What a rule may read of a pool; all are numbers."""


class PoolState(NamedTuple):
    """One pool at the time of its newest snapshot."""

    facts: dict[str, float]
    """Values of `POOL_FACTS` except `age_ms`."""
    models: tuple[str, ...]
    loras: frozenset[str]
    received_s: float
    """By this process's monotonic clock."""


UNHEARD_OF: Final = PoolState(
    {"saturation": 0.0, "serving": 0.0, "running": 0.0, "waiting": 0.0}, (), frozenset(), float("-inf")
)
"""A configured pool without a snapshot: not saturated, as far as anybody knows."""


class PoolStates:
    """The newest state of each pool."""

    def __init__(self) -> None:
        table = PoolTable[PoolSnapshot, PoolState](_state)
        self._states: Final = table.views
        self.update: Final = table.take
        """Take a snapshot over, at a monotonic time, unless a newer one is here."""

    def get(self, pool: str) -> PoolState:
        """The state of a pool; `UNHEARD_OF` without a snapshot."""
        return self._states.get(pool, UNHEARD_OF)

    def table(self, pools: Iterable[str], now_s: float) -> Mapping[str, Mapping[str, float]]:
        """`POOL_FACTS` of these pools. `age_ms` is -1 for a pool without a snapshot."""
        table: dict[str, Mapping[str, float]] = {}
        for name in pools:
            state = self.get(name)
            age = -1.0 if state is UNHEARD_OF else (now_s - state.received_s) * 1000
            table[name] = {**state.facts, "age_ms": age}
        return table

    def old(self, pools: Iterable[str], now_s: float) -> list[str]:
        """Those of `pools` whose newest snapshot is over `TIMES.snapshot_old_s` old, or that never sent one."""
        return [name for name in pools if now_s - self.get(name).received_s > TIMES.snapshot_old_s]

    def serving(self, model: str) -> str | None:
        """A pool with a live worker that serves `model`; the least saturated of several."""
        found = [(state.facts["saturation"], name) for name, state in self._states.items() if model in state.models]
        return min(found)[1] if found else None

    def models(self) -> list[str]:
        """Every model that a live worker serves."""
        return sorted({model for state in self._states.values() for model in state.models})


def _state(snapshot: PoolSnapshot, now_s: float) -> PoolState:
    serving = [worker for worker in snapshot.workers if worker.state == "serving"]
    return PoolState(
        {
            "saturation": snapshot.saturation,
            "serving": float(len(serving)),
            "running": float(sum(worker.running for worker in serving)),
            "waiting": float(sum(worker.waiting for worker in serving)),
        },
        snapshot.models,
        frozenset(lora for worker in serving for lora in worker.loras),
        now_s,
    )
