"""The comparison of two models in `pointsman mirrors`."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman_cli.explain.mirrors import compared, interval, table
from pointsman_contracts.mirroring import Likeness, MirrorCompared, MirroredAnswer
from pointsman_contracts.response import Usage

KEY = ("lab", "now", "next")


def answer(
    ms: float | None = 10.0, tokens: int | None = 5, *, cost: int | None = None, estimated: bool = False
) -> MirroredAnswer:
    usage = None if tokens is None else Usage(completion_tokens=tokens, estimated=estimated)
    return MirroredAnswer(model="m", status=200, ttft_ms=ms, duration_ms=ms, usage=usage, cost_nanos=cost)


def event(first: MirroredAnswer, second: MirroredAnswer, outcome: str = "answered") -> MirrorCompared:
    return MirrorCompared(
        source="mirror-1", sequence=1, at_ms=1, request_id="r", edge="e", mirror="lab", copy_id="mirror-1",
        api="chat.completions", outcome=outcome, original=first, copy=second,
        likeness=Likeness(same_text=False, words=0.5),
    )  # fmt: skip


@given(st.integers(0, 500), st.integers(0, 500))
def test_an_interval_has_the_share_that_was_seen_and_narrows_with_numbers(count: int, more: int) -> None:
    of = count + more
    low, high = interval(count, of)
    assert 0.0 <= low <= high <= 1.0
    if of:
        assert low - 1e-4 <= count / of <= high + 1e-4
        wider = interval(count * 4, of * 4)
        assert wider[1] - wider[0] <= high - low + 1e-4


def test_tokens_and_cost_are_of_the_requests_that_both_models_reported() -> None:
    events = [
        event(answer(20.0, 4, cost=10**9), answer(10.0, 8, cost=2 * 10**9)),
        event(answer(20.0, 900, estimated=True), answer(30.0, 8)),
        event(answer(20.0, None), answer(30.0, 8)),
        event(answer(), answer(None, None), "late"),
    ]
    row = compared(KEY, events)
    assert (row["copies"], row["failed_share"], row["metered"]) == (4, 0.25, 1)
    assert row["faster_share"] == 0.3333
    assert row["original"] == {"ttft_p50_ms": 20.0, "duration_p50_ms": 20.0, "completion_tokens": 4, "dollars": 1.0}
    assert row["copy"] == {"ttft_p50_ms": 30.0, "duration_p50_ms": 30.0, "completion_tokens": 8, "dollars": 2.0}
    assert table([row]).row_count == 1


def test_what_isnt_known_is_no_number() -> None:
    row = compared(KEY, [event(answer(), answer(None, None), "failed")])
    assert row["copy"] == {"ttft_p50_ms": None, "duration_p50_ms": None, "completion_tokens": None, "dollars": None}
    assert (row["faster_share"], row["likeness"], row["faster_between"]) == (None, None, [0.0, 1.0])
    assert table([row]).row_count == 1
