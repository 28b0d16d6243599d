"""Prices of models: from the configuration, else from the list of hosted models' prices that comes with this version.

All values are whole numbers: prices in nano-dollars per million tokens, costs in nano-dollars.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Final, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, model_validator

from pointsman_contracts.journey import Target
from pointsman_contracts.response import Usage
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


class SpecialPrices(NamedTuple):
    """The prices of `SpecialTokens` and of reasoning, in nano-dollars per million tokens."""

    cache_write: int
    cache_write_1h: int
    audio_prompt: int
    audio_completion: int
    image_prompt: int
    image_completion: int
    reasoning: int


class Price(NamedTuple):
    """The price of a model, in nano-dollars per million tokens."""

    input: int
    output: int
    cached: int
    """For prompt tokens that came from a cache."""
    special: SpecialPrices
    tiers: Mapping[str, Fraction]
    """Factor of each service tier that has one."""

    @classmethod
    def from_cost(cls, cost: Cost, *, provider: bool) -> "Price":
        """As configured. `provider`: a provider serves the model."""
        short, long = (Fraction(5, 4), Fraction(2)) if provider else (Fraction(1), Fraction(1))
        special = SpecialPrices(
            cache_write=_nanos(cost.cache_write, Fraction(cost.input) * short),
            cache_write_1h=_nanos(cost.cache_write_1h, Fraction(cost.input) * long),
            audio_prompt=_nanos(cost.audio_input, cost.input),
            audio_completion=_nanos(cost.audio_output, cost.output),
            image_prompt=_nanos(cost.image_input, cost.input),
            image_completion=_nanos(cost.image_output, cost.output),
            reasoning=_nanos(cost.reasoning, cost.output),
        )
        tiers = {name: Fraction(factor) for name, factor in cost.tiers.items()}
        return cls(_nanos(cost.input), _nanos(cost.output), _nanos(cost.cached, cost.input), special, tiers)

    def cost_of_texts(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Nano-dollars of tokens of texts, rounded half up."""
        return _rounded(prompt_tokens * self.input + completion_tokens * self.output)

    def cost_of(self, usage: Usage, tier: str = "") -> int:
        """Nano-dollars of what a request used, rounded half up. `tier`: the service tier that its answer names."""
        prompt, completion, special = usage.prompt_tokens, usage.completion_tokens, usage.special
        exact = prompt * self.input + completion * self.output
        prices = self.special
        if usage.cached_tokens:
            cached = min(usage.cached_tokens, prompt)
            exact += cached * (self.cached - self.input)
            prompt -= cached
        if usage.reasoning_tokens and prices.reasoning != self.output:
            reasoning = min(usage.reasoning_tokens, completion)
            exact += reasoning * (prices.reasoning - self.output)
            completion -= reasoning
        if special is not None:
            long = min(special.cache_write_1h, special.cache_write)
            exact += _surcharge(
                prompt,
                self.input,
                (long, prices.cache_write_1h),
                (special.cache_write - long, prices.cache_write),
                (special.audio_prompt, prices.audio_prompt),
                (special.image_prompt, prices.image_prompt),
            )
            exact += _surcharge(
                completion,
                self.output,
                (special.audio_completion, prices.audio_completion),
                (special.image_completion, prices.image_completion),
            )
            tier = special.tier or tier
        return _rounded(exact * self.tiers[tier]) if tier in self.tiers else _rounded(exact)


def _surcharge(tokens: int, price: int, *special: tuple[int, int]) -> int:
    """The difference that special tokens make to the cost of `tokens` at `price`; of each kind its number and price."""
    exact = 0
    for number, each in special:
        taken = min(number, tokens)
        tokens -= taken
        exact += taken * (each - price)
    return exact


def _rounded(exact: int | Fraction) -> int:
    return int((exact + _TOKENS // 2) // _TOKENS)


FREE: Final = Price(0, 0, 0, SpecialPrices(*[0] * 7), {})
"""The price of a model without one, where models are compared."""


def dearest(found: Iterable[Price]) -> Price:
    """The highest of each price."""
    each = [FREE, *found]
    tiers = {tier: max(price.tiers.get(tier, Fraction(1)) for price in each) for price in each for tier in price.tiers}
    return Price(
        max(price.input for price in each),
        max(price.output for price in each),
        max(price.cached for price in each),
        SpecialPrices(*map(max, zip(*(price.special for price in each), strict=True))),
        tiers,
    )


def prices(config: Config) -> dict[str, Price]:
    """The price of each model that has one, by the name that requests use."""
    found: dict[str, Price] = {}
    for name in config.model_names():
        model = config.models.get(name)
        if model is None:
            continue
        if "cost" in model.model_fields_set:
            found[name] = Price.from_cost(model.cost, provider=model.provider is not None)
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
            target = config.find_target(name)
            if target is not None:
                self._names.setdefault((target.pool, target.provider, target.model), []).append(name)

    def find_name(self, target: Target, asked: str | None) -> str:
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
    return None if cost is None else Price.from_cost(cost, provider=True)


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


def _nanos(dollars: Decimal | None, default: Decimal | Fraction = Decimal(0)) -> int:
    return int(Fraction(default if dollars is None else dollars) * _NANOS)
