"""The money of a shard: every request is spent once, and no budget is exceeded by more than one expectation's error."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pointsman_contracts.limits import BudgetAsk, BudgetWindow, LimitAsk, LimitShard, LimitVerdict
from pointsman_contracts.message import read_fields
from pointsman_limits.domain.budgets.account import DAY_S, Account, day_of, first_day, next_month
from pointsman_limits.domain.budgets.ledger import MOST_ACCOUNTS, OVERFLOW
from pointsman_limits.domain.limits.book import Book

NOW = datetime(2026, 11, 23, 7, 0, tzinfo=UTC).timestamp()
TODAY = day_of(NOW)
MONTH = BudgetWindow(amount=1_000_000, days=None)


def ask(
    request_id: str = "r", expected: int = 100, at_most: int | None = None, *windows: BudgetWindow, **changes: object
) -> LimitAsk:
    fields: dict[str, object] = {
        "edge": "edge-1",
        "request_id": request_id,
        "limit": "monthly",
        "shard": 0,
        "scope": "t",
        "windows": (),
        "until_ms": round((NOW + 600) * 1000),
        "budget": BudgetAsk(
            windows=windows or (MONTH,), expected=expected, at_most=expected if at_most is None else at_most
        ),
    }
    return read_fields(LimitAsk, fields | changes)


def end(book: Book, request_id: str, cost: int, now: float = NOW) -> None:
    book.budgets.close("edge-1", request_id)
    book.budgets.spend_cost("monthly", "t", cost, day_of(now), now)


def left(verdict: LimitVerdict) -> tuple[str, int, int]:
    assert verdict.budget is not None
    return verdict.outcome, verdict.budget.spent, verdict.budget.reserved


def test_a_request_is_reserved_by_what_it_may_cost_and_spent_by_what_it_cost() -> None:
    book = Book(0)
    assert left(book.ask_limit(ask("a", 100, 400), NOW)) == ("admitted", 0, 0), "before the request"
    end(book, "a", 150)
    assert left(book.ask_limit(ask("b", 100), NOW)) == ("admitted", 150, 0)
    assert book.budgets.release_reservation("edge-1", "b", "monthly")
    assert book.budgets.spent_and_reserved("monthly", "t", None, NOW) == (150, 0)


def test_others_are_held_at_their_most_and_the_request_itself_at_what_is_expected() -> None:
    book = Book(0)
    window = BudgetWindow(amount=1000, days=1)
    assert book.ask_limit(ask("a", 100, 600, window), NOW).outcome == "admitted"
    assert book.ask_limit(ask("b", 400, 900, window), NOW).outcome == "admitted", "600 + 400"
    refused = book.ask_limit(ask("c", 1, 1, window), NOW)
    assert left(refused) == ("refused", 0, 1500)
    end(book, "a", 600)
    end(book, "b", 900)
    assert book.budgets.spent_and_reserved("monthly", "t", 1, NOW) == (1500, 0), (
        "more by what b was expected to cost less"
    )


@pytest.mark.parametrize(
    ("days", "spent_on", "reset"),
    [
        (None, {"2026-11-03": 100}, "2026-12-01"),
        (1, {"2026-11-23": 100}, "2026-11-24"),
        (7, {"2026-11-18": 60, "2026-11-20": 40}, "2026-11-25"),
        (7, {"2026-11-18": 5, "2026-11-20": 95}, "2026-11-27"),
        (30, {"2026-11-01": 100}, "2026-12-01"),
    ],
)
def test_the_reset_is_the_midnight_at_which_the_same_request_would_be_admitted(
    days: int | None, spent_on: dict[str, int], reset: str
) -> None:
    book = Book(0)
    for day, amount in spent_on.items():
        book.budgets.spend_cost("monthly", "t", amount, _day(day), NOW)
    window = BudgetWindow(amount=100, days=days)
    refused = book.ask_limit(ask("a", 10, None, window), NOW)
    assert refused.budget is not None
    assert refused.budget.reset_ms == _day(reset) * DAY_S * 1000
    then = refused.budget.reset_ms / 1000
    assert book.ask_limit(ask("a", 10, None, window), then - 1).outcome == "refused"
    assert book.ask_limit(ask("a", 10, None, window), then).outcome == "admitted"


def test_a_period_may_change_without_what_was_spent_being_forgotten() -> None:
    book = Book(0)
    book.budgets.spend_cost("monthly", "t", 70, TODAY - 3, NOW)
    book.budgets.spend_cost("monthly", "t", 40, TODAY, NOW)
    assert [book.budgets.spent_and_reserved("monthly", "t", days, NOW)[0] for days in (1, 7, 30, None)] == [
        40,
        110,
        110,
        110,
    ]


def test_a_request_that_costs_nothing_passes_a_spent_budget_and_a_request_that_is_sent_again_is_held_once() -> None:
    book = Book(0)
    window = BudgetWindow(amount=100, days=1)
    assert book.ask_limit(ask("a", 80, None, window), NOW).outcome == "admitted"
    assert left(book.ask_limit(ask("a", 80, None, window, attempt=2), NOW)) == ("admitted", 0, 80)
    assert book.budgets.spent_and_reserved("monthly", "t", 1, NOW) == (0, 80)
    assert book.ask_limit(ask("b", 80, None, window), NOW).outcome == "refused"
    assert book.ask_limit(ask("c", 0, None, window), NOW).outcome == "admitted"


def test_a_question_that_arrives_twice_is_reserved_once() -> None:
    book = Book(0)
    for _ in range(2):
        assert book.ask_limit(ask("a", 80, None, BudgetWindow(amount=100, days=1)), NOW).outcome == "admitted"
    assert book.budgets.spent_and_reserved("monthly", "t", 1, NOW) == (0, 80)


def test_a_budget_that_only_warns_refuses_nothing_and_each_level_is_published_once_a_period() -> None:
    book = Book(0)
    window = BudgetWindow(amount=100, days=None, soft=80, hard=False)
    for number, cost in enumerate((70, 20, 20, 20)):
        assert book.ask_limit(ask(str(number), 50, None, window), NOW).outcome == "admitted"
        end(book, str(number), cost)
    assert [(each.level, each.spent) for each in book.budgets.reached] == [("soft", 90), ("hard", 110)]
    again = Book(0)
    again.take_over(LimitShard.decode(book.build_snapshot("me", NOW).encode()))
    again.ask_limit(ask("x", 1, None, window), NOW)
    assert again.budgets.reached == [], "another keeper knows what was told"
    december = NOW + 10 * DAY_S
    again.budgets.spend_cost("monthly", "t", 90, day_of(december), december)
    assert [each.level for each in again.budgets.reached] == ["soft"]


def test_scopes_without_room_share_one_account_for_each_budget() -> None:
    book = Book(0)
    for number in range(MOST_ACCOUNTS + 5):
        assert book.ask_limit(ask(str(number), 10, None, scope=f"s{number}"), NOW).outcome == "admitted"
    assert book.budgets.spent_and_reserved("monthly", OVERFLOW, None, NOW) == (0, 50)
    for number in range(MOST_ACCOUNTS, MOST_ACCOUNTS + 5):
        book.budgets.close("edge-1", str(number))
    assert book.budgets.spent_and_reserved("monthly", OVERFLOW, None, NOW) == (0, 0)


def test_a_reservation_that_no_request_can_hold_any_more_is_free() -> None:
    book = Book(0)
    book.ask_limit(ask("a", 10), NOW)
    book.ask_limit(ask("b", 10, edge="edge-2"), NOW)
    assert book.budgets.release_abandoned(lambda edge: edge == "edge-2", NOW) == 1
    assert book.budgets.release_abandoned(lambda _: False, NOW + 601) == 1
    assert book.budgets.spent_and_reserved("monthly", "t", None, NOW) == (0, 0)


@given(st.integers(0, 40_000))
def test_a_month_begins_on_its_first_and_ends_before_the_next(day: int) -> None:
    first, following = first_day(None, day), next_month(day)
    assert first <= day < following
    assert 28 <= following - first <= 31
    assert first_day(None, following) == following


@given(st.dictionaries(st.integers(TODAY - 40, TODAY), st.integers(1, 100), max_size=8), st.integers(1, 45))
def test_an_account_forgets_nothing_that_a_window_looks_at(days: dict[int, int], length: int) -> None:
    account = Account(days)
    account.windows = (BudgetWindow(amount=1, days=length),)
    before = [account.spent_in_window(each, TODAY) for each in (length, None)]
    account.drop_old_days(TODAY)
    assert [Account(account.days).spent_in_window(each, TODAY) for each in (length, None)] == before


@dataclass
class Sent:
    """A request that runs."""

    expected: int
    at_most: int


class Ledger(RuleBasedStateMachine):
    """Requests come, end, are refused elsewhere and lost, while keepers hand over, or die and go on from an older
    snapshot and from the stream's ends since."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(0)
        self.book.budgets.spent_to = 0
        self.saved = self.book.build_snapshot("me", NOW)
        self.stream: list[tuple[str, int]] = []
        self.read = 0
        self.running: dict[str, Sent] = {}
        self.sent = 0
        self.window = BudgetWindow(amount=10_000, days=None)
        self.allowed = 0
        """By how much the budget may be exceeded."""

    @rule(expected=st.integers(0, 3000), more=st.integers(0, 3000))
    def come(self, expected: int, more: int) -> None:
        self.sent += 1
        name = str(self.sent)
        verdict = self.book.ask_limit(ask(name, expected, expected + more, self.window), NOW)
        if verdict.outcome == "admitted":
            self.running[name] = Sent(expected, expected + more)
            self.allowed = max(self.allowed, more)

    @rule(part=st.floats(0, 1))
    def finish(self, part: float) -> None:
        if self.running:
            name = next(iter(self.running))
            sent = self.running.pop(name)
            self.stream.append((name, round(sent.at_most * part)))

    @rule()
    def refuse_elsewhere(self) -> None:
        if self.running:
            name, _ = self.running.popitem()
            # A keeper that died may have forgotten the reservation.
            self.book.budgets.release_reservation("edge-1", name, "monthly")

    @rule(count=st.integers(1, 5))
    def catch_up(self, count: int) -> None:
        ledger = self.book.budgets
        for name, cost in self.stream[ledger.spent_to or 0 :][:count]:
            end(self.book, name, cost)
            ledger.spent_to = (ledger.spent_to or 0) + 1

    @rule()
    def save(self) -> None:
        self.saved = self.book.build_snapshot("me", NOW)

    @rule()
    def die(self) -> None:
        """Reservations since the snapshot are gone: what those requests cost is spent all the same when they end."""
        known = {each.request_id for each in self.saved.reservations}
        self.allowed += sum(sent.at_most for name, sent in self.running.items() if name not in known)
        unread = {name for name, _ in self.stream[self.saved.spent_to or 0 :]} - known
        self.allowed += sum(cost for name, cost in self.stream if name in unread)
        self.book = Book(0)
        self.book.take_over(LimitShard.decode(self.saved.encode()))

    @rule()
    def hand_over(self) -> None:
        state = LimitShard.decode(self.book.build_snapshot("other", NOW).encode())
        self.book = Book(0)
        self.book.take_over(state)

    @invariant()
    def each_end_is_spent_once(self) -> None:
        spent, _ = self.book.budgets.spent_and_reserved("monthly", "t", None, NOW)
        assert spent == sum(cost for _, cost in self.stream[: self.book.budgets.spent_to])

    @invariant()
    def the_budget_is_exceeded_by_no_more_than_one_error(self) -> None:
        assert sum(cost for _, cost in self.stream) <= self.window.amount + self.allowed


Ledger.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
test_whatever_happens_each_request_is_spent_once = pytest.mark.requirement("BUDGET-1", "BUDGET-2")(Ledger.TestCase)


def _day(text: str) -> int:
    return day_of(datetime.fromisoformat(f"{text}T00:00:00+00:00").timestamp())
