"""Prices of the configured models, by pool or provider."""

from typing import Final

from pointsman_contracts.journey import Target
from pointsman_contracts.response import Usage
from pointsman_core.config import Config
from pointsman_core.prices import prices

Place = tuple[str | None, str | None, str]
"""Pool, provider, and the model's name there."""


class Prices:
    """Compiled once a revision."""

    def __init__(self, config: Config) -> None:
        self._names: Final[dict[Place, list[str]]] = {}
        self._prices: Final = prices(config)
        for name in config.model_names():
            served = config.served(name)
            if served is not None:
                self._names.setdefault((served.pool, served.provider, served.name), []).append(name)

    def name(self, target: Target, asked: str | None) -> str:
        """The configuration's name for a target: the requested name if several fit, the target's own if none does."""
        model = target.model
        names = self._names.get((target.pool, target.provider, model))
        if not names:
            return model
        return asked if asked in names else names[0]

    def cost(self, name: str, usage: Usage) -> int | None:
        """In nano-dollars; None for a model without a price."""
        price = self._prices.get(name)
        if price is None:
            return None
        return price.cost(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
