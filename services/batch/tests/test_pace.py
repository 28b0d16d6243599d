"""Lines begin while there is room, and begin again while that can help."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_batch.domain.pace import LEAST, LONGEST_PAUSE_S, Pace
from pointsman_batch.domain.room import OLD_S, SeenPool, has_room
from pointsman_batch.domain.verdict import LineTries, judge, wait_s
from pointsman_contracts.batch import created_ms_of, make_batch_id
from pointsman_contracts.pool import PoolSnapshot
from pointsman_core.config import Config
from pointsman_core.door_answer import DoorAnswer


@given(st.lists(st.sampled_from(["answer", "refusal"])), st.integers(1, 64))
def test_the_limit_stays_between_one_and_the_most(steps: list[str], most: int) -> None:
    pace = Pace(most)
    for now, step in enumerate(steps):
        if step == "answer":
            pace.record_answer()
        else:
            before = pace.limit
            pace.record_refusal(float(now), None)
            assert pace.limit <= max(LEAST, before)
            assert not pace.may_begin(float(now))
        assert LEAST <= pace.limit <= most


def test_refusals_of_one_moment_count_once() -> None:
    pace = Pace(64)
    for _ in range(400):
        pace.record_answer()
    before = pace.limit
    for _ in range(10):
        pace.record_refusal(1.0, 0.0)
    assert pace.limit == before // 2


def test_no_refusal_stops_all_lines_for_long() -> None:
    pace = Pace(64)
    pace.record_refusal(1.0, 86_400.0)
    assert not pace.may_begin(1.1)
    assert pace.may_begin(1.0 + LONGEST_PAUSE_S)


@pytest.mark.parametrize(("saturation", "age_s", "room"), [(0.2, 0.0, True), (0.6, 0.0, False), (0.6, OLD_S + 1, True)])
def test_lines_wait_for_room_only_while_the_pool_is_known_to_have_none(
    saturation: float, age_s: float, room: bool
) -> None:
    config = Config.model_validate({"pools": {"p": {"models": ["m"]}}})
    seen = SeenPool(PoolSnapshot(pool="p", source="s", sequence=1, at_ms=1, saturation=saturation), 100.0)
    assert has_room(config, {"p": seen}, "m", 0.5, 100.0 + age_s) is room
    assert has_room(config, {"p": seen}, "unknown", 0.5, 100.0)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (DoorAnswer(200, b"{}"), "final"),
        (DoorAnswer(400, b"{}"), "final"),
        (DoorAnswer(401, b"{}"), "final"),
        (DoorAnswer(401, b'{"error":{"code":"lent_identity_unknown"}}'), "refused"),
        (DoorAnswer(429, b"{}"), "refused"),
        (DoorAnswer(429, b"{}", limited=True), "limited"),
        (DoorAnswer(429, b'{"error":{"code":"insufficient_quota"}}', limited=True), "final"),
        (DoorAnswer(503, b"{}"), "refused"),
        (DoorAnswer(500, b"{}"), "again"),
        (DoorAnswer(0, b"", failure="unsent"), "refused"),
        (DoorAnswer(0, b"", failure="failed"), "cut"),
        (DoorAnswer(0, b"", failure="oversized"), "final"),
    ],
)
def test_an_answer_is_a_result_or_a_reason_to_try_again(answer: DoorAnswer, verdict: str) -> None:
    assert judge(answer, LineTries()) == verdict


@pytest.mark.parametrize("answer", [DoorAnswer(500, b"{}"), DoorAnswer(0, b"")])
def test_a_line_that_always_fails_ends(answer: DoorAnswer) -> None:
    tries = LineTries()
    for _ in range(100):
        verdict = judge(answer, tries)
        if verdict == "final":
            return
        tries = tries.after(verdict)
    pytest.fail("it goes on for ever")


def test_an_attempt_that_broke_off_is_repeated_under_its_number() -> None:
    assert LineTries().after("cut").after("refused").attempt == 1
    assert LineTries().after("again").attempt == 2


@given(st.integers(0, 40), st.floats(0, 1))
def test_waits_are_bounded(count: int, share: float) -> None:
    assert 0 < wait_s(LineTries(refusals=count), None, share) <= 10.0
    assert wait_s(LineTries(), 3600.0, share) == 60.0


@given(st.sampled_from(["batch_", "msgbatch_"]), st.integers(0, 16**12 - 1), st.text("0123456789abcdef", min_size=1))
def test_the_id_of_a_batch_tells_its_time(prefix: str, at_ms: int, rest: str) -> None:
    assert created_ms_of(make_batch_id(prefix, at_ms, rest)) == at_ms


@given(st.text())
def test_other_ids_tell_none(text: str) -> None:
    assert created_ms_of(text) is None or text.startswith(("batch_", "msgbatch_"))
