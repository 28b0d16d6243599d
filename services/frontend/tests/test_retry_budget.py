"""Retries don't multiply an overload, and a pool with few requests may try its ejected engines for ever."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman_edge.sending.retry_budget import RetryBudget


@given(st.lists(st.one_of(st.just("request"), st.just("spend"), st.floats(0.0, 2.0)), max_size=500))
def test_further_attempts_never_exceed_what_was_saved_and_what_requests_and_time_earn(
    steps: list[str | float],
) -> None:
    budget = RetryBudget(ratio=0.1, per_s=2.0, burst=5.0)
    spent, now, requests = 0, 50.0, 0
    for step in steps:
        if step == "request":
            budget.requests += 1
            requests += 1
        elif step == "spend":
            spent += budget.spend(now)
        else:
            now += float(step)
    assert spent <= 5 + 0.1 * requests + 2.0 * (now - 50.0) + 1e-6


def test_each_second_earns_attempts_without_requests() -> None:
    budget = RetryBudget(ratio=0.0, per_s=4.0, burst=2.0)
    assert [budget.spend(1.0) for _ in range(3)] == [True, True, False]
    assert all(budget.spend(2.0 + 0.3 * number) for number in range(100))
