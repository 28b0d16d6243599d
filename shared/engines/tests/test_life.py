"""A restart of an engine is noticed, and nothing else is taken for one."""

import itertools
from collections.abc import Callable

import pytest

from pointsman_engines.life import SHARED_KEPT_S, EngineLife
from pointsman_engines.reading import EngineIdentity


def numbered() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"life-{next(numbers)}"


def test_observers_of_an_engine_that_says_when_it_started_agree_on_its_life() -> None:
    first, second = EngineLife(), EngineLife()
    assert first.note_answer(EngineIdentity(1750000000.25, 10.0), 0.0)
    first.note_refused()
    assert second.note_answer(EngineIdentity(1750000000.25, None), 0.0)
    assert first.boot_id == second.boot_id != ""
    assert not first.note_answer(EngineIdentity(1750000000.25, 5.0), 0.0), "the start says that it is the same process"
    assert first.note_answer(EngineIdentity(1750000009.5, 6.0), 0.0)
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
            life.note_refused()
        else:
            life.note_answer(EngineIdentity(None, progress), 0.0)
    assert life.boot_id == f"life-{lives}"


def test_a_start_time_that_appears_later_does_not_end_a_life() -> None:
    life = EngineLife(numbered())
    life.note_answer(EngineIdentity(None, 1.0), 0.0)
    assert not life.note_answer(EngineIdentity(1750000000.0, 2.0), 0.0)
    assert not life.note_answer(EngineIdentity(None, 3.0), 0.0)
    assert life.note_answer(EngineIdentity(1750000001.0, 3.0), 0.0)


def test_two_processes_behind_one_url_are_told_once_and_begin_no_further_lives() -> None:
    life, lives = EngineLife(), 0
    for page in range(200):
        lives += life.note_answer(EngineIdentity(1750000000.0 + 5000 * (page % 2), 10.0), page * 0.1)
    assert lives == 2, "the first change may be a restart; the way back is none"
    assert life.shared == "start times 1750005000 and 1750000000 answer by turns"
    assert not life.note_answer(EngineIdentity(1750000000.0, 11.0), 20.0)
    assert not life.note_answer(EngineIdentity(1750000000.0, 12.0), 20.0 + SHARED_KEPT_S + 1)
    assert not life.shared
    assert life.note_answer(EngineIdentity(1750009000.0, 1.0), 1000.0), "a restart is one again"


def test_counters_of_two_processes_behind_one_url_begin_no_life_with_each_page() -> None:
    life, lives = EngineLife(numbered()), 0
    for page in range(200):
        lives += life.note_answer(EngineIdentity(None, 1000.0 + page if page % 2 else 5.0 + page), page * 0.1)
    assert lives == 3
    assert "3 processes began within" in life.shared


def test_an_engine_that_crashes_again_and_again_is_not_taken_for_a_balancer() -> None:
    life, lives = EngineLife(numbered()), 0
    for crash in range(20):
        life.note_refused()
        lives += life.note_answer(EngineIdentity(None, 0.0), crash * 5.0)
        life.note_answer(EngineIdentity(None, 100.0), crash * 5.0 + 1.0)
    assert (lives, life.shared) == (20, "")


def test_a_refused_connection_begins_a_life_at_a_shared_url_too() -> None:
    life = EngineLife()
    for page in range(10):
        life.note_answer(EngineIdentity(1750000000.0 + page % 2, None), page * 0.1)
    before = life.boot_id
    life.note_refused()
    assert life.note_answer(EngineIdentity(1750000777.0, None), 2.0)
    assert life.boot_id != before
