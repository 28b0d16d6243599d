"""A restart of an engine is noticed, and nothing else is taken for one."""

import itertools
from collections.abc import Callable

import pytest

from pointsman_engines.life import EngineLife


def numbered() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"life-{next(numbers)}"


def test_observers_of_an_engine_that_says_when_it_started_agree_on_its_life() -> None:
    first, second = EngineLife(), EngineLife()
    assert first.answered(1750000000.25, 10.0)
    first.refused()
    assert second.answered(1750000000.25, None)
    assert first.boot_id == second.boot_id != ""
    assert not first.answered(1750000000.25, 5.0), "the start says that it is the same process"
    assert first.answered(1750000009.5, 6.0)
    assert first.boot_id != second.boot_id


Step = tuple[str, float | None]


@pytest.mark.parametrize(
    ("steps", "lives"),
    [
        ([("answer", 5.0), ("answer", 5.0), ("answer", 9.0)], 1),
        ([("answer", 5.0), ("answer", 4.0)], 2),
        ([("answer", 5.0), ("refused", None), ("answer", 5.0)], 2),
        ([("refused", None), ("answer", 0.0), ("answer", 0.0)], 1),
        ([("answer", 5.0), ("answer", None), ("answer", 4.0)], 2),
        ([("answer", None), ("answer", None)], 1),
        ([("answer", None), ("refused", None), ("refused", None), ("answer", None), ("answer", None)], 2),
    ],
)
def test_without_a_start_time_a_life_ends_with_a_refusal_or_a_counter_that_goes_back(
    steps: list[Step], lives: int
) -> None:
    life = EngineLife(numbered())
    for what, progress in steps:
        if what == "refused":
            life.refused()
        else:
            life.answered(None, progress)
    assert life.boot_id == f"life-{lives}"


def test_a_start_time_that_appears_later_does_not_end_a_life() -> None:
    life = EngineLife(numbered())
    life.answered(None, 1.0)
    assert not life.answered(1750000000.0, 2.0)
    assert not life.answered(None, 3.0)
    assert life.answered(1750000001.0, 3.0)
