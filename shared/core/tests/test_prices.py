"""The prices of models are exact; the configuration's go before the list's."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.response import SpecialTokens, Usage
from pointsman_core.config import ConfigError, load
from pointsman_core.config.served_model import Cost
from pointsman_core.prices import Price, dearest, price_list, prices

PROVIDERS = {
    "openai": {"kind": "openai"},
    "named": {"kind": "openai", "base_url": "https://api.openai.com/v1"},
    "other": {"kind": "openai", "base_url": "https://models.example/v1"},
    "claude": {"kind": "anthropic"},
}


def priced(models: dict[str, object]) -> dict[str, Price]:
    return prices(load({"providers": PROVIDERS, "pools": {"own": {"models": ["llama"]}}, "models": models}))


DOLLARS = st.decimals(0, 1000, places=9)
COUNT = st.integers(0, 10**7)
COST = st.builds(
    Cost,
    input=DOLLARS,
    output=DOLLARS,
    **dict.fromkeys(
        ("cached", "cache_write", "cache_write_1h", "audio_input", "audio_output", "image_input", "reasoning"),
        st.none() | DOLLARS,
    ),
    tiers=st.dictionaries(st.sampled_from(["batch", "priority"]), st.decimals(0, 3, places=2)),
)
SPECIAL = st.builds(
    SpecialTokens,
    **dict.fromkeys(("cache_write", "cache_write_1h", "audio_prompt", "audio_completion", "image_prompt"), COUNT),
    tier=st.sampled_from(["", "batch", "unknown"]),
)
USAGE = st.builds(
    Usage,
    **dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"), COUNT),
    special=st.none() | SPECIAL,
)


@given(DOLLARS, DOLLARS, *[COUNT] * 3)
def test_a_cost_is_exact_to_half_a_nano_dollar(
    into: Decimal, out: Decimal, prompt: int, completion: int, cached: int
) -> None:
    price = Price.from_cost(Cost(input=into, output=out, cached=round(into / 2, 9)), provider=True)
    part = min(prompt, cached)
    exact = ((prompt - part) * price.input + part * price.cached + completion * price.output) / Fraction(10**6)
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
    assert abs(price.cost_of(usage) - exact) <= Fraction(1, 2)


@given(COST, USAGE, st.sampled_from(["", "priority"]))
def test_every_token_costs_one_of_its_models_prices(cost: Cost, usage: Usage, tier: str) -> None:
    price = Price.from_cost(cost, provider=True)
    special = price.special
    inputs = (price.input, price.cached, *special[:3], special.image_prompt)
    outputs = (price.output, special.audio_completion, special.image_completion, special.reasoning)
    factor = price.tiers.get((usage.special and usage.special.tier) or tier, Fraction(1))
    least, most = (
        factor * (usage.prompt_tokens * of(inputs) + usage.completion_tokens * of(outputs)) / 10**6 for of in (min, max)
    )
    assert least - 1 <= price.cost_of(usage, tier) <= most + 1


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        (Usage(prompt_tokens=10**6), "3"),
        (Usage(prompt_tokens=10**6, cached_tokens=10**6), "0.3"),
        (Usage(prompt_tokens=10**6, special=SpecialTokens(cache_write=10**6)), "3.75"),
        (Usage(prompt_tokens=10**6, special=SpecialTokens(cache_write=10**6, cache_write_1h=4 * 10**5)), "4.65"),
        (Usage(prompt_tokens=10**6, special=SpecialTokens(audio_prompt=5 * 10**5)), "17.5"),
        (Usage(completion_tokens=10**6, special=SpecialTokens(audio_completion=10**6)), "64"),
        (Usage(completion_tokens=10**6, reasoning_tokens=5 * 10**5), "17.5"),
        (Usage(prompt_tokens=10**6, special=SpecialTokens(tier="batch")), "1.5"),
        (Usage(prompt_tokens=10**6, special=SpecialTokens(tier="unheard-of")), "3"),
    ],
)
def test_each_kind_of_token_has_its_price(usage: Usage, dollars: str) -> None:
    cost = {
        "input": 3, "output": 15, "cached": 0.3, "audio_input": 32, "audio_output": 64, "reasoning": 20,
        "tiers": {"batch": 0.5},
    }  # fmt: skip
    price = priced({"m": {"provider": "claude", "cost": cost}})["m"]
    assert price.cost_of(usage) == int(Decimal(dollars) * 10**9)


def test_the_cache_of_an_engine_of_ones_own_costs_nothing_besides() -> None:
    price = priced({"llama": {"pool": "own", "cost": {"input": 3}}})["llama"]
    assert price.cost_of(Usage(prompt_tokens=10**6, special=SpecialTokens(cache_write=10**6))) == 3 * 10**9


@given(st.lists(COST.map(lambda cost: Price.from_cost(cost, provider=True)), min_size=1, max_size=3), USAGE)
def test_the_dearest_of_several_prices_costs_no_less_than_each(several: list[Price], usage: Usage) -> None:
    plain = Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)
    assert dearest(several).cost_of(plain) >= max(price.cost_of(plain) for price in several)


def test_a_configured_price_goes_before_the_list_which_goes_by_the_host() -> None:
    found = priced(
        {
            "mine": {"provider": "openai", "served_as": "gpt-4o-mini", "cost": {"input": 0.1}},
            "small": {"provider": "openai", "served_as": "gpt-4o-mini-2024-07-18"},
            "gpt-4o-mini": {"provider": "named"},
            "elsewhere": {"provider": "other", "served_as": "gpt-4o-mini"},
            "claude-sonnet-4-5-20250929": {"provider": "claude"},
            "unknown": {"provider": "claude"},
            "llama": {"pool": "own"},
        }
    )
    listed = (150_000_000, 600_000_000, 75_000_000)
    assert {name: price[:3] for name, price in found.items()} == {
        "mine": (100_000_000, 0, 100_000_000),
        "small": listed,
        "gpt-4o-mini": listed,
        "claude-sonnet-4-5-20250929": (3 * 10**9, 15 * 10**9, 300_000_000),
    }


def test_the_list_says_where_each_price_is_from() -> None:
    assert {"api.openai.com", "api.anthropic.com"} <= price_list().keys()
    for models in price_list().values():
        assert models
        assert all(cost.output >= 0 and (cost.cached is None or cost.cached <= cost.input) for cost in models.values())


@pytest.mark.parametrize(
    "cost", [{"input": -1}, {"input": "dear"}, {"output": float("nan")}, {"input": "0.0000000001"}]
)
def test_a_price_that_is_none_is_refused(cost: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"models\.m\.cost"):
        priced({"m": {"provider": "other", "cost": cost}})
