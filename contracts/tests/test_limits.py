"""Questions about budgets on the bus."""

from pointsman_contracts.limits import BudgetAsk, BudgetWindow, LimitAsk, LimitAsks


def test_a_budget_by_the_calendar_month_is_read_as_it_was_asked_about() -> None:
    budget = BudgetAsk(windows=(BudgetWindow(amount=1, days=None),), expected=3, at_most=4)
    ask = LimitAsk(edge="e", request_id="r", limit="l", shard=3, windows=(), until_ms=6, budget=budget)
    assert LimitAsks.decode(LimitAsks(asks=(ask,)).encode()).asks == (ask,)
