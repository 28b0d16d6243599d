"""The extension point: what chooses the profile of a request, once."""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from pointsman_contracts.journey import Journey
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.timing import TIMES
from pointsman_core.config import Config
from pointsman_core.plugins import PluginError, unknown
from pointsman_core.pool_table import PoolTable
from pointsman_plugins.plugin import ParamsT_co, Plugin

POOL_FACTS: Final = ("saturation", "serving", "running", "waiting", "age_ms")
"""The facts of a pool that a rule may read; all are numbers."""


class PoolState(NamedTuple):
    """One pool at the time of its newest snapshot."""

    facts: dict[str, float]
    """Values of `POOL_FACTS` except `age_ms`."""
    models: tuple[str, ...]
    loras: frozenset[str]
    received_s: float
    """Receipt by this process's monotonic clock, in seconds."""


UNHEARD_OF: Final = PoolState(
    {"saturation": 0.0, "serving": 0.0, "running": 0.0, "waiting": 0.0}, (), frozenset(), float("-inf")
)
"""A configured pool without a snapshot counts as not saturated."""


class PoolStates:
    """The newest state of each pool."""

    def __init__(self) -> None:
        table = PoolTable[PoolSnapshot, PoolState](_state)
        self._states: Final = table.views
        self.update: Final = table.take_snapshot
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
        """The pools without a snapshot, or whose newest one is more than `TIMES.snapshot_old_s` old."""
        return [name for name in pools if now_s - self.get(name).received_s > TIMES.snapshot_old_s]

    def serving(self, model: str, pools: Collection[str]) -> str | None:
        """That of `pools` with a live worker that serves `model`; the least saturated of several."""
        found = [
            (state.facts["saturation"], name)
            for name, state in self._states.items()
            if model in state.models and name in pools
        ]
        return min(found)[1] if found else None

    def models(self, pools: Collection[str]) -> list[str]:
        """Every model that a live worker of `pools` serves."""
        return sorted({model for name in pools for model in self.get(name).models})


def _state(snapshot: PoolSnapshot, now_s: float) -> PoolState:
    # As in decisions: while no worker serves, those about which only a signal is missing take requests.
    serving = [worker for worker in snapshot.workers if worker.state == "serving"] or [
        worker for worker in snapshot.workers if worker.state in ("not_ready", "silent")
    ]
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


class Choice(NamedTuple):
    """The chosen profile, and why in a few words without request text."""

    profile: str
    note: str


class PickError(Exception):
    """The picker failed at a request. `rule` names the failing rule, `reason` is for the operator."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"{rule}: {reason}")
        self.rule = rule
        self.reason = reason


class ProfilePicker(Plugin[ParamsT_co]):
    """Chooses one of the profiles. It runs once per request and never again (S0-23)."""

    group = "pointsman.profile_picker.pickers"
    stability = "beta"

    reads_pools: bool = False
    """Whether choices depend on the state of pools, so that stale state is reported."""

    def bind(self, config: Config) -> None:
        """Check the parameters against the whole configuration. Raises PluginError; called once, before `pick`."""
        del config

    @abstractmethod
    def pick(self, journey: Journey, pools: PoolStates, now_s: float) -> Choice | None:
        """The profile for this request, or None when undecided. Raises PickError.

        `journey.request` holds headers, path, fields, features and attributes; `now_s` is the monotonic clock that
        ages `pools`.
        """


def need_profile(name: str, config: Config, *path: str | int) -> None:
    """Check that a profile of this name exists. Raises PluginError; `path` leads to the parameter that names it."""
    if name not in config.profiles:
        raise PluginError(unknown("profile", name, config.profiles), path)
