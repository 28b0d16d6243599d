"""What the models of a configuration cost, by who serves them."""

from typing import Final

from pointsman_contracts.journey import Target
from pointsman_contracts.response import Usage
from pointsman_core.config import Config
from pointsman_core.config.served_model import Cost

_TOKENS: Final = 1_000_000
"""That a price is for."""

Place = tuple[str | None, str | None, str]
"""Pool, provider, and the model's name there."""


class Prices:
    """Compiled once a revision."""

    def __init__(self, config: Config) -> None:
        self._names: Final[dict[Place, list[str]]] = {}
        self._costs: Final[dict[str, Cost]] = {}
        for name in config.model_names():
            served = config.served(name)
            if served is not None:
                self._names.setdefault((served.pool, served.provider, served.name), []).append(name)
            model = config.models.get(name)
            if model is not None and "cost" in model.model_fields_set:
                self._costs[name] = model.cost

    def name(self, target: Target, asked: str | None) -> str:
        """What the configuration calls a target; the name that was asked for where several fit, the target's own where
        none does."""
        names = self._names.get((target.pool, target.provider, target.model))
        if not names:
            return target.model
        return asked if asked in names else names[0]

    def cost(self, name: str, usage: Usage) -> float | None:
        """In dollars; None for a model without a price."""
        cost = self._costs.get(name)
        if cost is None:
            return None
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        cached_price = cost.input if cost.cached is None else cost.cached
        prompt = (usage.prompt_tokens - cached) * cost.input + cached * cached_price
        return (prompt + usage.completion_tokens * cost.output) / _TOKENS
