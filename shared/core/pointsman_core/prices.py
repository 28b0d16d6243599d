"""Prices of models: from the configuration, else from the list of hosted models' prices that comes with this version.

All values are whole numbers: prices in nano-dollars per million tokens, costs in nano-dollars.
"""

import re
import tomllib
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Final, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, model_validator

from pointsman_contracts.journey import Target
from pointsman_core.config import Config
from pointsman_core.config.served_model import Cost

_NANOS: Final = 10**9
_TOKENS: Final = 10**6
"""That a price is for."""
_HOSTS: Final = {"openai": "api.openai.com", "anthropic": "api.anthropic.com"}
"""Kind of a provider → host, where its `base_url` isn't given."""
_DATED: Final = re.compile(r"(.+?)-(?:\d{8}|\d{4}-\d{2}-\d{2}|latest)")
"""A model's name with the date of a release, which costs the same."""


_Place = tuple[str | None, str | None, str]
"""Pool, provider, and the model's name there."""


class Price(NamedTuple):
    """The price of a model, in nano-dollars per million tokens."""

    input: int
    output: int
    cached: int
    """For prompt tokens that came from a cache."""

    @classmethod
    def of(cls, cost: Cost) -> "Price":
        """As configured."""
        cached = cost.input if cost.cached is None else cost.cached
        return cls(_nanos(cost.input), _nanos(cost.output), _nanos(cached))

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> int:
        """Nano-dollars, rounded half up. `cached_tokens` are part of the prompt's."""
        exact = prompt_tokens * self.input + completion_tokens * self.output
        if cached_tokens:
            exact += min(cached_tokens, prompt_tokens) * (self.cached - self.input)
        return (exact + _TOKENS // 2) // _TOKENS


FREE: Final = Price(0, 0, 0)
"""The price of a model without one, where models are compared."""


def prices(config: Config) -> dict[str, Price]:
    """The price of each model that has one, by the name that requests use."""
    found: dict[str, Price] = {}
    for name in config.model_names():
        model = config.models.get(name)
        if model is None:
            continue
        if "cost" in model.model_fields_set:
            found[name] = Price.of(model.cost)
        elif model.provider is not None and (listed := _listed(config, model.provider, model.served_as or name)):
            found[name] = listed
    return found


class Prices:
    """The configured models and their prices, by where they are served."""

    def __init__(self, config: Config) -> None:
        self.of: Final = prices(config)
        """By the name that requests use."""
        self._names: Final[dict[_Place, list[str]]] = {}
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


def _listed(config: Config, provider: str, name: str) -> Price | None:
    kind, base_url = config.providers[provider].kind, config.providers[provider].base_url
    host = _HOSTS.get(kind) if base_url is None else urlsplit(base_url).hostname
    models = price_list().get(host or "", {})
    dated = _DATED.fullmatch(name)
    cost = models.get(name) or (models.get(dated[1]) if dated is not None else None)
    return None if cost is None else Price.of(cost)


class _Host(BaseModel):
    """The prices of one host, and where they are from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    source: str
    """The provider's page of prices."""
    evidence: Literal["copy", "lists"]
    """The source of the comparison: a copy of that page, or other lists that quote it."""
    as_of: date
    """The earliest day that the evidence can be from."""
    unchecked: tuple[str, ...] = ()
    """Models whose prices were compared with nothing, or only with something older."""
    models: dict[str, Cost]

    @model_validator(mode="after")
    def _unchecked_models_are_listed(self) -> Self:
        if strange := set(self.unchecked) - self.models.keys():
            raise ValueError(f"`unchecked` names {', '.join(sorted(strange))}, which `models` doesn't have")
        return self


class _List(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    hosts: tuple[_Host, ...]


@cache
def price_list() -> Mapping[str, Mapping[str, Cost]]:
    """Host → model → price, of the list that comes with this version."""
    text = files("pointsman_core").joinpath("prices.toml").read_text("utf-8")
    # Decimals from the file on, so that prices are exact.
    listed = _List.model_validate(tomllib.loads(text, parse_float=Decimal))
    return {each.host: each.models for each in listed.hosts}


def _nanos(dollars: Decimal) -> int:
    return int(dollars * _NANOS)
