"""Retries don't multiply an overload."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman_edge.sending.retry_budget import RetryBudget


@given(st.lists(st.booleans(), max_size=500))
def test_further_attempts_never_exceed_the_saved_ones_and_a_tenth_of_the_requests(steps: list[bool]) -> None:
    budget = RetryBudget(ratio=0.1, burst=5.0)
    spent = 0
    for is_request in steps:
        if is_request:
            budget.requests += 1
        else:
            spent += budget.spend()
    assert spent <= 5 + 0.1 * sum(steps) + 1e-6
