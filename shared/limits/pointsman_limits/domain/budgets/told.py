"""A budget as clients see it: headers of the answer, and the text of a rejection."""

from datetime import UTC, datetime
from typing import Final

from pointsman_contracts.limits import BudgetAsk, BudgetStanding, BudgetWindow
from pointsman_contracts.money import dollars, nanos
from pointsman_core.budget_amount import period
from pointsman_core.refusal import Refusal
from pointsman_plugins.preprocessing import Incoming

LIMIT: Final = "x-pointsman-budget-limit"
REMAINING: Final = "x-pointsman-budget-remaining"
RESET: Final = "x-pointsman-budget-reset"
WARNING: Final = "x-pointsman-budget-warning"
PAYMENT_REQUIRED: Final = 402
_AGAIN_S: Final = 1.0
"""`Retry-After` of a client whose budget is reserved by open requests."""


def tell(incoming: Incoming, name: str, budget: BudgetAsk, standing: BudgetStanding) -> None:
    """Set the headers of the answer: the tightest window of the tightest budget."""
    window = budget.windows[standing.window]
    left = max(0, window.amount - standing.spent - standing.reserved)
    before = incoming.answer_headers.get(REMAINING)
    if before is None or nanos(before.value or "0") > left:
        incoming.set_answer_header(LIMIT, dollars(window.amount))
        incoming.set_answer_header(REMAINING, dollars(left))
        incoming.set_answer_header(RESET, moment(standing.reset_ms))
    if standing.soft:
        words = f"{name}: {dollars(standing.spent, 6)} of {describe(window)} is spent"
        incoming.set_answer_header(WARNING, words)


def refusal(name: str, scopes: str, budget: BudgetAsk, standing: BudgetStanding, now_ms: int) -> Refusal:
    """402 with the time of the reset when the budget is spent; 429 when open requests have reserved the rest."""
    window = budget.windows[standing.window]
    what = f"{name} ({describe(window)}{scopes})"
    if standing.spent + budget.expected <= window.amount:
        return Refusal(
            429,
            f"The rest of budget {what} is reserved by running requests. Please try again in {_AGAIN_S:g} s.",
            type="insufficient_quota",
            code="rate_limit_exceeded",
            retry_after_s=_AGAIN_S,
            dropped_reason=f"budget {name} is reserved",
        )
    if budget.expected > window.amount:
        why = f"This request would cost about {dollars(budget.expected, 6)}, more than the whole budget {what}."
    else:
        why = f"Budget {what} is exhausted: {dollars(standing.spent, 6)} dollars spent."
    return Refusal(
        PAYMENT_REQUIRED,
        f"{why} It has room for this request again on {moment(standing.reset_ms)}.",
        type="insufficient_quota",
        code="insufficient_quota",
        retry_after_s=float(max(1, -(-(standing.reset_ms - now_ms) // 1000))),
        dropped_reason=f"budget {name}",
    )


def describe(window: BudgetWindow) -> str:
    """In words, e.g. `50.00 dollars a month`."""
    length = period(window.days)
    per = {"month": "a month", "d": "a day"}.get(length, f"in {window.days} days")
    return f"{dollars(window.amount)} dollars {per}"


def moment(unix_ms: int) -> str:
    """As RFC 3339, e.g. `2026-12-01T00:00:00Z`."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
