"""Which failures move a request on, and how far."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_edge.sending.moving_on import (
    DENIED,
    DOUBTS,
    ERRORS,
    FAILED,
    LIMITED,
    MISSING,
    NO_TRIES,
    STALLED,
    STARTS,
    TIMEOUT,
    failure_of,
    is_doubtful,
    names_model,
    weight,
)

OUTCOMES = [FAILED, LIMITED, DENIED, MISSING, TIMEOUT, STALLED, "refused"]


@pytest.mark.parametrize("status", [200, 204, 400, 404, 405, 408, 413, 422, 499])
def test_an_answer_and_the_clients_own_error_move_nothing(status: int) -> None:
    assert failure_of(status) is None


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(307, FAILED), (401, DENIED), (403, DENIED), (429, LIMITED), (529, LIMITED), (500, FAILED), (503, FAILED)],
)
def test_an_error_that_another_endpoint_may_not_have_has_an_outcome(status: int, outcome: str) -> None:
    assert failure_of(status) == outcome


@given(st.integers(100, 999))
def test_a_second_opinion_is_for_errors_that_are_usually_the_clients(status: int) -> None:
    assert is_doubtful(status) is (400 <= status < 500 and status not in (401, 403, 404, 405, 429))


@given(st.integers(500, 999))
def test_every_status_from_500_on_is_a_failed_attempt(status: int) -> None:
    assert failure_of(status) is not None


@pytest.mark.parametrize(
    "body",
    [
        b'{"object":"error","message":"The model `sql` does not exist.","type":"NotFoundError","code":404}',
        b'{"error":{"message":"LoRA sql is not loaded"}}',
        b'{"error":{"code":"model_not_found"}}',
    ],
)
def test_a_404_about_a_model_is_told_from_others(body: bytes) -> None:
    assert names_model(body)
    assert not names_model(b'{"detail":"Not Found"}')
    assert not names_model(b'{"error":{"message":"Response with id \'resp_1\' not found."}}')


@given(st.lists(st.tuples(st.sampled_from(OUTCOMES), st.sampled_from([None, 401, 429, 500, 503, 529])), max_size=12))
def test_a_request_is_started_at_most_twice(failures: list[tuple[str, int | None]]) -> None:
    tries = NO_TRIES
    started = errors = 0
    for outcome, status in failures:
        if not tries.may_follow:
            break
        tries = tries.after(outcome, status)
        started += status is None and outcome in (FAILED, TIMEOUT, STALLED)
        errors += status == 500 and outcome == FAILED
    assert started <= STARTS
    assert errors <= ERRORS


def test_a_busy_engine_and_a_refused_connection_count_as_no_start() -> None:
    tries = NO_TRIES
    for outcome, status in [("refused", None), (LIMITED, 429), (FAILED, 503), (LIMITED, 529)] * 5:
        tries = tries.after(outcome, status)
    assert tries.may_follow


def test_a_doubt_about_the_client_is_settled_by_two_other_endpoints() -> None:
    tries = NO_TRIES
    for outcome, status in [(DENIED, 401), (MISSING, 404), (DENIED, 403)][:DOUBTS]:
        assert tries.may_follow
        tries = tries.after(outcome, status)
    assert not tries.may_follow


def test_an_engines_own_words_say_more_than_silence_and_a_doubt_about_the_client() -> None:
    assert weight(FAILED, 500) > weight(DENIED, 401) > weight("refused", None) > weight("unsupported", None)
