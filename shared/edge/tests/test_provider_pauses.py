"""A provider isn't asked while it asked for a pause, or after it failed several times in a row."""

import pytest

from pointsman_edge.sending.provider_pauses import FAILURES, OPEN_S, RAMP_S, ProviderPauses


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
    pauses.record_answer("p", "m", 200, None, 131.0)
    assert [_told(pauses, 131.0) for _ in range(100)] == [None] * 100


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
    for status in (400, 404, 413, 422) * FAILURES:
        pauses.record_answer("p", "m", status, None, 100.0)
    assert _told(pauses, 100.0) is None


def test_requests_that_waited_for_the_end_of_a_pause_do_not_come_at_once() -> None:
    pauses = ProviderPauses()
    pauses.record_answer("p", "m", 429, 10.0, 100.0)

    def sent(now: float) -> int:
        return [_told(pauses, now) for _ in range(100)].count(None)

    assert [sent(110.0), sent(110.5), sent(111.0), sent(112.0), sent(113.0)] == [1, 0, 1, 2, 4]
    assert _told(pauses, 113.0) == (429, RAMP_S)
    pauses.record_answer("p", "m", 200, None, 113.5)
    assert sent(113.5) == 100


def test_a_second_pause_begins_with_one_request_again() -> None:
    pauses = ProviderPauses()
    for now in (100.0, 120.0):
        pauses.record_answer("p", "m", 429, 10.0, now)
        assert [_told(pauses, now + 11.0) for _ in range(9)].count(None) == 2


@pytest.mark.parametrize(
    ("status", "told", "code"),
    [
        (401, 502, "provider_credential"),
        (402, 502, "provider_quota"),
        (403, 502, "provider_credential"),
        (410, 502, "provider_lacks_model"),
        (429, 429, "rate_limit_exceeded"),
        (307, 503, "provider_unavailable"),
        (408, 503, "provider_unavailable"),
    ],
)
def test_a_provider_that_refuses_again_and_again_is_asked_rarely_and_its_reason_is_told(
    status: int, told: int, code: str
) -> None:
    pauses = ProviderPauses()
    for _ in range(FAILURES):
        assert _told(pauses, 100.0) is None
        pauses.record_answer("p", "m", status, None, 100.0)
    refusal = pauses.refusal_for("p", "m", 101.0)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (told, code)
    assert pauses.refusal_for("p", "other", 101.0) is None
    assert _told(pauses, 100.0 + OPEN_S) is None
    pauses.record_answer("p", "m", 200, None, 106.0)
    assert _told(pauses, 106.0) is None


def test_refusals_among_answers_stop_nothing() -> None:
    pauses = ProviderPauses()
    for number in range(10 * FAILURES):
        pauses.record_answer("p", "m", 200 if number % FAILURES == 0 else 429, None, 100.0)
        assert _told(pauses, 100.0) is None


def test_a_provider_that_breaks_every_answer_off_is_asked_rarely_until_one_is_whole() -> None:
    pauses = ProviderPauses()
    for _ in range(FAILURES):
        assert _told(pauses, 100.0) is None
        pauses.record_answer("p", "m", 200, None, 100.0)
        pauses.record_end("p", "m", cut_off=True, now=100.0)
    assert _told(pauses, 101.0) == (503, OPEN_S - 1)
    assert _told(pauses, 100.0 + OPEN_S) is None
    pauses.record_answer("p", "m", 200, None, 105.5)
    assert _told(pauses, 105.5) is not None, "an answer that begins says nothing about its end"
    pauses.record_end("p", "m", cut_off=False, now=106.0)
    assert _told(pauses, 106.0) is None
