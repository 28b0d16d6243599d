"""What models cost is exact, and comes from the configuration before it comes from the list."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_core.config import ConfigError, load
from pointsman_core.prices import Price, price_list, prices

PROVIDERS = {
    "openai": {"kind": "openai"},
    "named": {"kind": "openai", "base_url": "https://api.openai.com/v1"},
    "other": {"kind": "openai", "base_url": "https://models.example/v1"},
    "claude": {"kind": "anthropic"},
}


def priced(models: dict[str, object]) -> dict[str, Price]:
    return prices(load({"providers": PROVIDERS, "pools": {"own": {"models": ["llama"]}}, "models": models}))


@given(
    st.decimals(0, 1000, places=9),
    st.decimals(0, 1000, places=9),
    *[st.integers(0, 10**7)] * 3,
)
def test_a_cost_is_exact_to_half_a_nano_dollar(
    into: Decimal, out: Decimal, prompt: int, completion: int, cached: int
) -> None:
    price = Price(int(into * 10**9), int(out * 10**9), int(into * 10**9) // 2)
    part = min(prompt, cached)
    exact = ((prompt - part) * price.input + part * price.cached + completion * price.output) / Fraction(10**6)
    assert abs(price.cost(prompt, completion, cached) - exact) <= Fraction(1, 2)


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
    listed = Price(150_000_000, 600_000_000, 75_000_000)
    assert found == {
        "mine": Price(100_000_000, 0, 100_000_000),
        "small": listed,
        "gpt-4o-mini": listed,
        "claude-sonnet-4-5-20250929": Price(3 * 10**9, 15 * 10**9, 300_000_000),
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
