"""The models to choose among: what the configuration says of each, and how each is doing."""

from typing import Final, NamedTuple

from pointsman_contracts.journey import Target
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.money import NANOS
from pointsman_contracts.pool import PoolSnapshot
from pointsman_core.config import Config, Model
from pointsman_core.pool_table import PoolTable
from pointsman_core.prices import FREE, prices


class Candidate(NamedTuple):
    """One model, as configured (S0-52)."""

    name: str
    """The name that requests and the configuration use."""
    target: Target
    block_tokens: int | None
    """Tokens in a prefix block of the pool; None at a provider."""
    input_cost: float
    """Dollars per million prompt tokens."""
    output_cost: float
    """Dollars per million output tokens."""
    quality: float
    """In [0,1]."""
    context: int | None
    """Longest sequence in tokens."""
    features: frozenset[str]
    apis: frozenset[str]
    groups: frozenset[str]
    strengths: str
    """What it is good at, in words; empty when nobody said."""


def candidates_of(config: Config, names: tuple[str, ...]) -> tuple[Candidate, ...]:
    """These models (all that are configured when empty), in the configuration's order."""
    found: list[Candidate] = []
    known = prices(config)
    for name in names or config.model_names():
        served = config.served(name)
        if served is None:
            continue
        # A model that only a pool lists has what a description's defaults say.
        model = config.models.get(name) or Model(pool=served.pool)
        price = known.get(name, FREE)
        found.append(
            Candidate(
                name,
                Target(
                    model=served.name,
                    pool=served.pool,
                    provider=served.provider,
                    lora=served.lora,
                    base=served.base,
                ),
                None if served.pool is None else config.pools[served.pool].block_tokens,
                price.input / NANOS,
                price.output / NANOS,
                model.quality,
                model.context,
                frozenset(model.features),
                frozenset(model.apis),
                frozenset(model.groups),
                model.strengths,
            )
        )
    return tuple(found)


class PoolView(NamedTuple):
    """A pool at its newest snapshot."""

    models: frozenset[str]
    """Models and adapters that a serving worker serves."""
    saturation: float
    received_s: float
    """By this process's monotonic clock."""


class Standing:
    """How pools and models are doing, as the newest signals tell. Latest wins."""

    def __init__(self) -> None:
        table = PoolTable[PoolSnapshot, PoolView](_view)
        self.pool_changed: Final = table.take
        """Take a pool's snapshot over, at a monotonic time, unless a newer one is here."""
        self._pools: Final = table.views
        self._models: dict[str, ModelStatistics] = {}

    def model_changed(self, statistics: ModelStatistics) -> None:
        """Take statistics over unless newer ones are here."""
        known = self._models.get(statistics.model)
        if known is None or known.at_ms <= statistics.at_ms:
            self._models[statistics.model] = statistics

    def pool(self, name: str) -> PoolView | None:
        """The newest state of a pool; None before its first snapshot."""
        return self._pools.get(name)

    def statistics(self, model: str) -> ModelStatistics | None:
        """Statistics of a model's completions; None before the first ones."""
        return self._models.get(model)


def _view(snapshot: PoolSnapshot, now_s: float) -> PoolView:
    return PoolView(frozenset(snapshot.models), snapshot.saturation, now_s)
