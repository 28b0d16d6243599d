"""Regret of joint choices, and the weights that are learnt from it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_contracts.message import read_fields
from pointsman_contracts.model_choice import ModelPoint
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.target import Target
from pointsman_core.choice_regret import LEAST, ChoiceOutcome, learn_weights, read_outcomes
from pointsman_testing.builders import scheduled

DOLLAR = 1_000_000_000


def point(model: str, answer_ms: float | None, cost: int, quality: float = 0.5, **more: object) -> ModelPoint:
    fields = {"place": model, "answer_ms": answer_ms, "cost": cost, "quality": quality, "total": 1.0}
    return read_fields(ModelPoint, {"model": model} | fields | more)


FAST, CHEAP = point("fast", 100.0, 1_000_000), point("cheap", 2_000.0, 10_000)


def chosen(first: ModelPoint, other: ModelPoint, answer_ms: float | None = None) -> ChoiceOutcome:
    took = first.answer_ms if answer_ms is None else answer_ms
    return ChoiceOutcome((first, other), took or 0.0, first.cost)


@pytest.mark.requirement("CHOICE-3")
def test_where_seconds_are_dear_the_weights_move_to_time_and_where_they_are_not_to_money() -> None:
    learnt = learn_weights([chosen(CHEAP, FAST)] * (2 * LEAST), second=DOLLAR // 100, quality=0)
    assert learnt is not None
    assert learnt.moved == {("cheap", "fast"): LEAST}
    assert learnt.learnt_regret == 0 < learnt.regret
    assert learnt.weights.time > learnt.weights.money
    learnt = learn_weights([chosen(FAST, CHEAP)] * (2 * LEAST), second=DOLLAR // 100_000, quality=0)
    assert learnt is not None
    assert learnt.moved == {("fast", "cheap"): LEAST}


def test_a_model_that_takes_longer_than_was_expected_is_believed_by_its_outcomes() -> None:
    """Each model serves half of the requests; `fast` takes 50 times its prediction, which a correction bounds at 10."""
    mixed = [chosen(FAST, CHEAP, 5_000.0), chosen(FAST, CHEAP, 5_000.0), chosen(CHEAP, FAST), chosen(CHEAP, FAST)]
    learnt = learn_weights(mixed * LEAST, second=DOLLAR // 1000, quality=0)
    assert learnt is not None
    # 5 s and $0.001 against 2 s and $0.00001; 2 s and $0.00001 against 10 times 0.1 s and $0.001.
    assert {model: regret for model, (_, regret) in learnt.by_model.items()} == {"fast": 3_990_000, "cheap": 10_000}


def test_too_few_outcomes_teach_nothing() -> None:
    assert learn_weights([chosen(FAST, CHEAP)] * (2 * LEAST - 1), second=1, quality=1) is None


POINTS = st.builds(point, st.just("m"), st.floats(1, 1e5), st.integers(0, 10**9), st.floats(0, 1))


@given(st.lists(st.tuples(POINTS, POINTS, st.floats(1, 1e6)), min_size=2 * LEAST, max_size=2 * LEAST))
@settings(max_examples=20)
def test_regret_is_never_negative(made: list[tuple[ModelPoint, ModelPoint, float]]) -> None:
    learnt = learn_weights([chosen(first, other, took) for first, other, took in made], DOLLAR, DOLLAR)
    assert learnt is not None
    assert learnt.regret >= 0
    assert learnt.learnt_regret >= 0


def test_only_requests_whose_choice_and_end_are_known_are_read() -> None:
    target = Target(model="fast", pool="p")
    first, other = point("fast", 100.0, 5, verdict="chosen"), point("cheap", 200.0, 1)

    def ended(request_id: str, **changes: object) -> ResponseCompleted:
        fields: dict[str, object] = {"outcome": "ok", "target": target, "duration_ms": 150.0, "decided_ms": 30.0}
        fields |= {"request_id": request_id, "source": "edge-1", "sequence": 1, "at_ms": 1, "pool": "p", "status": 200}
        return read_fields(ResponseCompleted, fields | changes)

    def decided(request_id: str, *points: ModelPoint) -> object:
        return scheduled(request_id=request_id, target=target, models=points)

    beyond = point("far", 1.0, 1, verdict="beyond a limit: $1 of $0.1")
    events = [
        decided("good", first, beyond, other), ended("good", cost_nanos=7),
        decided("failed", first, other), ended("failed", outcome="engine_error"),
        decided("moved", first, other), ended("moved", target=Target(model="cheap", pool="p")),
        decided("alone", first, beyond), ended("alone"),
        decided("unknown", first, point("new", None, 1)), ended("unknown"),
        ended("without a decision"),
    ]  # fmt: skip
    assert read_outcomes(events) == [ChoiceOutcome((first, other), 120.0, 7)]
