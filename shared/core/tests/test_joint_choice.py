"""The choice among models by time, money and quality."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.model_choice import ModelChoice, ModelOption
from pointsman_contracts.target import Target
from pointsman_core.config import ConfigError, JointChoice, load
from pointsman_core.joint_choice import OptionTime, measured, rank_models
from pointsman_core.refusal import Refusal

SMALL, LARGE, REMOTE = (
    ModelOption(
        name=name,
        target=Target(model=name, pool=f"{name}-pool"),
        input_price=price,
        cached_price=price,
        output_price=price,
        output_tokens=100.0,
        quality=quality,
    )
    for name, price, quality in (("small", 1_000_000_000, 0.5), ("large", 10_000_000_000, 0.9), ("remote", 0, 0.7))
)


def at(first: float, answer: float, **more: object) -> OptionTime:
    return OptionTime(first_token_ms=first, answer_ms=answer, time_from="predicted")._replace(**more)


def chosen(choice: ModelChoice, *times: OptionTime, prompt: int = 900) -> str:
    ranked = rank_models(choice, prompt, 1, times)
    return choice.options[ranked.order[0]].name


def test_the_cheapest_that_meets_2_s_is_the_cheap_one_until_it_is_too_slow() -> None:
    choice = ModelChoice(options=(SMALL, LARGE), money=1.0, most_answer_ms=2000.0)
    assert chosen(choice, at(100, 1900), at(50, 500)) == "small"
    assert chosen(choice, at(100, 2100), at(50, 500)) == "large"


def test_the_best_under_a_cent_is_the_large_one_until_it_costs_more() -> None:
    choice = ModelChoice(options=(SMALL, LARGE), quality=1.0, most_cost=10_000_000)
    assert chosen(choice, at(1, 2), at(1, 2), prompt=900) == "large"  # 1,000 tokens at $10 a million: one cent
    assert chosen(choice, at(1, 2), at(1, 2), prompt=901) == "small"


def test_tokens_from_a_cache_cost_their_own_price() -> None:
    cached = ModelOption(
        name="cached", target=Target(model="c", provider="p"), input_price=10_000_000_000, cached_price=0,
        output_price=0, output_tokens=1.0,
    )  # fmt: skip
    choice = ModelChoice(options=(SMALL, cached), money=1.0)
    assert chosen(choice, at(1, 2), at(1, 2)) == "small"
    assert chosen(choice, at(1, 2), at(1, 2, cached_tokens=900)) == "cached"


def test_the_fastest_of_quality_07_is_never_the_small_one() -> None:
    choice = ModelChoice(options=(SMALL, LARGE, REMOTE), time=1.0, least_quality=0.7)
    assert chosen(choice, at(1, 2), at(100, 900), at(100, 800)) == "remote"


def test_a_dearer_model_is_chosen_when_it_gains_more_than_it_costs() -> None:
    # 1,000 tokens cost 1 and 10 thousandths of a dollar; a second is worth a hundredth.
    choice = ModelChoice(options=(SMALL, LARGE), second_worth=10_000_000)
    assert chosen(choice, at(1, 1800), at(1, 1000)) == "small"
    assert chosen(choice, at(1, 2000), at(1, 1000)) == "large"
    assert chosen(choice, at(1, 1100, others_ms=900.0), at(1, 1000)) == "large"
    better = ModelChoice(options=(SMALL, LARGE), second_worth=0, quality_worth=30_000_000)
    assert chosen(better, at(1, 1), at(1, 9000)) == "large"


def test_a_delay_to_others_counts_as_time() -> None:
    choice = ModelChoice(options=(SMALL, LARGE), time=1.0)
    assert chosen(choice, at(1, 500, others_ms=9000.0), at(1, 600)) == "large"


def test_when_none_is_within_its_limit_the_nearest_serves_unless_the_choice_is_strict() -> None:
    choice = ModelChoice(options=(SMALL, LARGE), money=1.0, most_first_token_ms=100.0)
    assert chosen(choice, at(900, 950), at(150, 200)) == "large"
    strict = ModelChoice(options=(SMALL, LARGE), money=1.0, most_first_token_ms=100.0, strict=True)
    with pytest.raises(Refusal) as refused:
        rank_models(strict, 900, 1, (at(900, 950), at(150, 200)))
    assert refused.value.status == 429
    assert refused.value.code == "no_model_within_limits"


def test_an_unknown_time_is_neither_within_a_limit_nor_beyond_it_but_an_idle_engine_is_tried() -> None:
    choice = ModelChoice(options=(SMALL, LARGE), money=1.0, most_answer_ms=2000.0, strict=True)
    assert chosen(choice, OptionTime(), at(1, 1900)) == "large"
    assert chosen(choice, OptionTime(), at(1, 2100)) == "small"
    assert chosen(choice, OptionTime(idle=True), at(1, 1900)) == "small"


def test_a_choice_by_time_tries_an_idle_engine_of_a_model_whose_time_is_unknown() -> None:
    for choice in (
        ModelChoice(options=(SMALL, LARGE), time=1.0),
        ModelChoice(options=(SMALL, LARGE), second_worth=10_000_000),
    ):
        assert chosen(choice, at(1, 500), OptionTime(idle=True)) == "large"
        assert chosen(choice, at(1, 500), OptionTime()) == "small"
    dear = ModelChoice(options=(SMALL, LARGE), second_worth=10_000_000, most_cost=5_000_000)
    assert chosen(dear, at(1, 500), OptionTime(idle=True)) == "small"


def test_a_full_pool_comes_last_and_a_pool_without_engine_never() -> None:
    choice = ModelChoice(options=(SMALL, LARGE), money=1.0, most_answer_ms=10.0)
    assert chosen(choice, at(1, 5, full=True), at(1, 9000)) == "large"
    ranked = rank_models(choice, 900, 1, (at(1, 5, full=True), OptionTime(out="no healthy engine serves it")))
    assert ranked.order == (0,)
    assert [point.model for point in ranked.points] == ["small", "large"]
    assert ranked.points[1].verdict == "no healthy engine serves it"
    assert ranked.points[1].total is None


def test_equals_keep_the_selectors_order() -> None:
    choice = ModelChoice(options=(LARGE, SMALL), time=1.0)
    assert chosen(choice, at(1, 5), at(1, 5)) == "large"


def test_means_of_recent_answers_stand_for_a_model_whose_time_cannot_be_predicted() -> None:
    option = ModelOption(
        name="x", target=Target(model="x", provider="p"), output_tokens=100.0, first_token_ms=200.0, token_ms=10.0
    )
    assert measured(option) == OptionTime(first_token_ms=200.0, answer_ms=1200.0, time_from="measured")
    assert measured(SMALL) == OptionTime()


_TIMES = st.builds(
    OptionTime,
    first_token_ms=st.none() | st.floats(0, 1e5),
    answer_ms=st.none() | st.floats(0, 1e6),
    others_ms=st.floats(0, 1e6),
    cached_tokens=st.integers(0, 2000),
    idle=st.booleans(),
    full=st.booleans(),
    out=st.sampled_from(("", "", "no engine")),
)
_LIMIT = st.none() | st.floats(1, 1e5)


@given(
    times=st.tuples(_TIMES, _TIMES, _TIMES),
    weights=st.tuples(*[st.floats(0, 10)] * 3),
    first=_LIMIT,
    answer=_LIMIT,
    most=st.none() | st.integers(0, 10**8),
)
def test_a_model_within_all_limits_is_chosen_whenever_there_is_one(
    times: tuple[OptionTime, OptionTime, OptionTime],
    weights: tuple[float, float, float],
    first: float | None,
    answer: float | None,
    most: int | None,
) -> None:
    choice = ModelChoice(
        options=(SMALL, LARGE, REMOTE), time=weights[0], money=weights[1], quality=weights[2],
        most_first_token_ms=first, most_answer_ms=answer, most_cost=most,
    )  # fmt: skip
    ranked = rank_models(choice, 900, 1, times)
    assert len(ranked.points) == 3
    assert {*ranked.order} == {position for position, time in enumerate(times) if not time.out}

    def within(position: int) -> bool:
        time, point = times[position], next(p for p in ranked.points if p.model == choice.options[position].name)
        known = (first is None or time.first_token_ms is not None) and (answer is None or time.answer_ms is not None)
        return (
            not time.out
            and not time.full
            and known
            and (first is None or (time.first_token_ms or 0) <= first)
            and (answer is None or (time.answer_ms or 0) <= answer)
            and (most is None or point.cost <= most)
        )

    if any(within(position) for position in range(3)):
        best = ranked.order[0]
        assert within(best) or times[best].idle


def test_preferences_are_weights_and_the_others_settle_ties() -> None:
    weights = JointChoice(prefer="cheapest").effective
    assert weights.money == 1.0
    assert 0 < weights.time < 1e-3


@pytest.mark.parametrize(
    ("joint", "wrong"),
    [
        ("{}", "write one of `prefer`, `weights` and `worth`"),
        ("{prefer: best, weights: {time: 1}}", "write one of `prefer`, `weights` and `worth`"),
        ("{prefer: nicest}", "prefer"),
        ("{prefer: best, within: {answer_s: 0}}", "answer_s"),
        ("{prefer: best, within: {cents: 1}}", "cents"),
    ],
)
def test_a_joint_choice_that_cannot_be_is_refused_with_its_place(joint: str, wrong: str) -> None:
    import yaml

    with pytest.raises(ConfigError, match=wrong):
        load(yaml.safe_load(f"pools: {{p: {{models: [m]}}}}\nselectors: {{s: {{joint: {joint}}}}}"))
