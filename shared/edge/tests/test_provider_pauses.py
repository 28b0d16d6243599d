"""A provider isn't asked while it asked for a pause, or after it failed several times in a row."""

import pytest

from pointsman_edge.sending.provider_pauses import FAILURES, OPEN_S, ProviderPauses


def _told(pauses: ProviderPauses, now: float) -> tuple[int, float | None] | None:
    refusal = pauses.refusal_for("p", "m", now)
    return None if refusal is None else (refusal.status, refusal.retry_after_s)


@pytest.mark.parametrize("status", [429, 503])
def test_a_pause_that_a_provider_asks_for_lasts_until_it_is_over(status: int) -> None:
    pauses = ProviderPauses()
    pauses.record_answer("p", "m", status, 30.0, 100.0)
    assert _told(pauses, 110.0) == (status, 20.0)
    assert pauses.refusal_for("p", "other", 110.0) is None
    assert _told(pauses, 130.0) is None


def test_an_answer_that_was_under_way_does_not_end_a_pause() -> None:
    pauses = ProviderPauses()
    pauses.record_answer("p", "m", 429, 30.0, 100.0)
    pauses.record_answer("p", "m", 200, None, 101.0)
    assert _told(pauses, 110.0) == (429, 20.0)


def test_after_failures_in_a_row_one_request_at_a_time_sees_whether_it_answers_again() -> None:
    pauses = ProviderPauses()
    for number in range(FAILURES):
        assert _told(pauses, 100.0) is None
        pauses.record_answer("p", "m", None if number % 2 else 500, None, 100.0)
    assert _told(pauses, 101.0) == (503, OPEN_S - 1)
    assert _told(pauses, 100.0 + OPEN_S) is None
    assert _told(pauses, 100.0 + OPEN_S) == (503, OPEN_S), "one is under way"
    pauses.record_answer("p", "m", 200, None, 106.0)
    assert _told(pauses, 106.0) is None


def test_a_refusal_of_the_clients_request_is_no_failure() -> None:
    pauses = ProviderPauses()
    for status in (400, 401, 404, 429) * FAILURES:
        pauses.record_answer("p", "m", status, None, 100.0)
    assert _told(pauses, 100.0) is None
