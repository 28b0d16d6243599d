"""Whether an answer kept its service level."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.service_level import ServicePromise
from pointsman_core.service_level import between_tokens_ms, level_result, promise_missed, was_kept

TIMES = st.floats(1.0, 10_000.0)
LEVEL = ServicePromise(service_class="interactive", ttft_ms=800.0, itl_ms=40.0)


def kept(
    promise: ServicePromise, ttft_ms: float | None, duration_ms: float, tokens: int | None, *, stream: bool = True
) -> bool | None:
    usage = None if tokens is None else Usage(completion_tokens=tokens)
    return was_kept(promise, end("ok", ttft_ms, duration_ms, usage, stream=stream))


def end(
    outcome: str, ttft_ms: float | None, duration_ms: float, usage: Usage | None, *, stream: bool = True
) -> ResponseCompleted:
    return ResponseCompleted(
        request_id="r", source="edge-1", sequence=1, at_ms=0, pool="p", status=200, outcome=outcome, stream=stream,
        ttft_ms=ttft_ms, duration_ms=duration_ms, usage=usage,
    )  # fmt: skip


@given(TIMES, TIMES, st.integers(1, 500))
def test_a_stream_is_kept_when_its_first_token_and_its_gaps_are_in_time(
    ttft_ms: float, answer_ms: float, tokens: int
) -> None:
    in_time = ttft_ms <= 800.0 and ttft_ms + answer_ms - ttft_ms <= 40.0 * (tokens - 1)
    assert kept(LEVEL, ttft_ms, ttft_ms + answer_ms, tokens) is in_time


@given(TIMES, st.integers(1, 500))
def test_a_whole_answer_is_kept_when_its_last_token_is_in_time(duration_ms: float, tokens: int) -> None:
    in_time = duration_ms <= 800.0 or duration_ms <= 800.0 + 40.0 * (tokens - 1)
    assert kept(LEVEL, duration_ms, duration_ms, tokens, stream=False) is in_time


def test_nothing_is_said_where_a_time_or_a_count_is_unknown() -> None:
    assert kept(LEVEL, 700.0, 900.0, None) is None
    assert kept(LEVEL, 900.0, 900.0, None) is False
    assert kept(LEVEL, None, 900.0, 5) is None
    assert kept(LEVEL, None, 900.0, None, stream=False) is None
    assert kept(ServicePromise(itl_ms=40.0), None, 900.0, 50, stream=False) is None
    assert kept(ServicePromise(ttft_ms=800.0), None, 900.0, 50, stream=False) is None
    estimated = Usage(completion_tokens=50, estimated=True)
    assert was_kept(LEVEL, end("ok", 1.0, 9.0, estimated)) is None


def test_a_failure_breaks_a_promise_and_a_client_that_leaves_says_nothing() -> None:
    for outcome, expected in (("engine_error", False), ("cut_off", False), ("timeout", False), ("client_gone", None)):
        assert was_kept(LEVEL, end(outcome, 1.0, 2.0, None)) is expected


@given(TIMES, TIMES, st.integers(1, 300), st.integers(0, 200))
def test_a_stream_without_usage_is_kept_if_its_events_show_that_and_otherwise_unknown(
    ttft_ms: float, answer_ms: float, chunks: int, more: int
) -> None:
    guessed = Usage(completion_tokens=chunks, estimated=True, chunks=chunks)
    found = was_kept(LEVEL, end("ok", ttft_ms, ttft_ms + answer_ms, guessed))
    # An event may have several tokens.
    told = Usage(completion_tokens=chunks + more)
    known = was_kept(LEVEL, end("ok", ttft_ms, ttft_ms + answer_ms, told))
    assert found is known or found is None
    if more == 0:
        assert found is (None if known is False and ttft_ms <= 800.0 else known)


@pytest.mark.parametrize(("status", "missed"), [(429, True), (503, True), (400, False), (404, False)])
def test_a_rejection_misses_the_promise_unless_the_request_was_wrong(status: int, missed: bool) -> None:
    facts = RequestFacts(api="chat.completions", slo_itl_ms=40.0, slo_class="interactive")
    promise = promise_missed(facts, status)
    assert (promise is not None) is missed
    assert promise_missed(RequestFacts(api="chat.completions"), status) is None
    ended = replace(end("rejected", None, 2.0, None), status=status)
    assert level_result(ended) == ("refused" if missed else "unknown")


def test_an_error_of_the_client_keeps_no_promise() -> None:
    answered = replace(end("ok", 1.0, 2.0, None, stream=False), status=400)
    assert was_kept(LEVEL, answered) is None


@given(TIMES, TIMES, st.integers(2, 500))
def test_a_stream_shows_its_time_between_tokens(ttft_ms: float, answer_ms: float, tokens: int) -> None:
    ended = end("ok", ttft_ms, ttft_ms + answer_ms, Usage(completion_tokens=tokens))
    assert between_tokens_ms(ended) == pytest.approx(answer_ms / (tokens - 1), abs=1e-6)


def test_a_time_between_tokens_is_unknown_without_a_second_token_usage_or_a_stream() -> None:
    many, one, guessed = (Usage(completion_tokens=n, estimated=n == 9) for n in (50, 1, 9))
    for ended in (
        end("ok", 1.0, 9.0, None),
        end("ok", 1.0, 9.0, one),
        end("ok", 1.0, 9.0, guessed),
        end("ok", None, 9.0, many),
        end("ok", 1.0, 9.0, many, stream=False),
    ):
        assert between_tokens_ms(ended) is None
