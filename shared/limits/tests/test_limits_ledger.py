"""The ledger of a shard: what is reserved, settled and released adds up, whatever happens in between."""

from dataclasses import dataclass, field
from itertools import count
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from pointsman_contracts.limits import BudgetAsk, BudgetWindow, LimitAsk, LimitShard, LimitVerdict, LimitWindow
from pointsman_contracts.message import read_fields
from pointsman_limits.domain.limits.book import MOST_COUNTERS, OVERFLOW, Book
from pointsman_limits.domain.limits.usage_window import SLOTS, UsageWindow

MINUTE = LimitWindow(unit="tokens", amount=1000, period_s=60)
DAY = LimitWindow(unit="tokens", amount=5000, period_s=86400)
RATE = LimitWindow(unit="requests", amount=10, period_s=1, burst=3)
OPEN = LimitWindow(unit="concurrency", amount=2)
NOW = 1_800_000_000.0


_ASKS: Final = count()
"""Two requests of one name came in different milliseconds."""


def ask(
    request_id: str = "r", cost: float = 1, *windows: LimitWindow, limit: str = "limit", **changes: object
) -> LimitAsk:
    fields: dict[str, object] = {
        "edge": "edge-1",
        "request_id": request_id,
        "limit": limit,
        "shard": 0,
        "scope": "t",
        "windows": windows or (MINUTE,),
        "cost": cost,
        "until_ms": round((NOW + 600) * 1000) + next(_ASKS) % 900,
    }
    return read_fields(LimitAsk, fields | changes)


def spent(book: Book, request_id: str, tokens: float | None, now: float = NOW) -> float:
    return sum(each.actual for each in book.settle_request(("edge-1", request_id), lambda _: tokens, now))


def test_a_request_is_counted_by_every_window_or_by_none() -> None:
    book = Book(0)
    tight = LimitWindow(unit="tokens", amount=100, period_s=1)
    assert book.ask_limit(ask("a", 80, MINUTE, tight), NOW).outcome == "admitted"
    refused = book.ask_limit(ask("b", 80, MINUTE, tight), NOW)
    assert (refused.outcome, refused.window) == ("refused", 1)
    assert book.used_amount("limit", MINUTE, "t", NOW) == 80
    assert [round(each.remaining) for each in refused.standings] == [920, 20]


_WINDOWS = st.lists(st.sampled_from((MINUTE, DAY, RATE, OPEN)), min_size=1, max_size=3, unique=True).map(tuple)
_BUDGET = BudgetAsk(windows=(BudgetWindow(amount=1000, soft=500),), expected=300, at_most=400)


@given(st.lists(st.tuples(st.integers(1, 400), _WINDOWS), max_size=12), st.integers(1, 400), _WINDOWS, st.booleans())
def test_a_dry_run_is_judged_like_a_request_and_leaves_the_ledger_as_it_is(
    earlier: list[tuple[int, tuple[LimitWindow, ...]]], cost: int, windows: tuple[LimitWindow, ...], spends: bool
) -> None:
    book = Book(0)
    for number, (each, own) in enumerate(earlier):
        book.ask_limit(ask(f"r{number}", each, *own), NOW)
        book.ask_limit(ask(f"b{number}", budget=_BUDGET), NOW)
    question = ask("new", cost, *windows, budget=_BUDGET if spends else None)
    before = book.build_snapshot("keeper", NOW)
    warnings, granted = list(book.budgets.reached), book.granted
    dry = book.ask_limit(replace(question, dry_run=True), NOW)
    assert not book.has_changed
    assert (book.build_snapshot("keeper", NOW), book.budgets.reached, book.granted) == (before, warnings, granted)
    real = book.ask_limit(question, NOW)
    assert (dry.outcome, dry.window, dry.budget) == (real.outcome, real.window, real.budget)


@pytest.mark.requirement("S3-7", "S3-10")
def test_a_reactive_limit_lets_the_request_through_that_exceeds_it_and_refuses_the_next() -> None:
    book = Book(0)
    for name in ("a", "b"):
        assert book.ask_limit(ask(name, 0, reactive=True), NOW).outcome == "admitted"
        spent(book, name, 700)
    refused = book.ask_limit(ask("c", 0, reactive=True), NOW)
    assert refused.outcome == "refused"
    assert book.used_amount("limit", MINUTE, "t", NOW) == 1400
    assert refused.retry_s is not None
    assert 59 <= refused.retry_s <= 61, "all was used at one moment, a minute ago by then"


def test_debt_is_paid_before_anything_is_admitted_again() -> None:
    book = Book(0)
    book.ask_limit(ask("a", 10), NOW)
    spent(book, "a", 3000)
    refused = book.ask_limit(ask("b", 10), NOW + 1)
    assert (refused.outcome, refused.standings[0].remaining) == ("refused", 0)


@pytest.mark.requirement("LIMIT-3")
@pytest.mark.parametrize("window", [MINUTE, RATE])
def test_a_wait_is_true_and_no_longer_than_needed(window: LimitWindow) -> None:
    book, now = Book(0), NOW
    cost = 400 if window is MINUTE else 1
    while (verdict := book.ask_limit(ask("a", cost, window), now)).outcome == "admitted":
        now += 0.001
    assert verdict.retry_s is not None
    assert book.ask_limit(ask("b", cost, window), now + verdict.retry_s * 0.98).outcome == "refused"
    assert book.ask_limit(ask("b", cost, window), now + verdict.retry_s + 1e-6).outcome == "admitted"


def test_a_request_that_can_never_be_admitted_promises_nothing() -> None:
    for unit in ("tokens", "requests", "concurrency"):
        window = LimitWindow(unit=unit, amount=0, period_s=60)
        for cost in (1, 0):
            verdict = Book(0).ask_limit(ask("a", cost, window), NOW)
            assert (verdict.outcome, verdict.retry_s) == ("refused", None)
        assert Book(0).ask_limit(ask("a", 1, window, reactive=True), NOW).outcome == "refused"


@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=200))
def test_no_gap_between_arrivals_gets_more_than_the_rate_and_a_burst(gaps: list[float]) -> None:
    book, now, admitted = Book(0), NOW, 0
    for number, gap in enumerate(gaps):
        now += gap
        admitted += book.ask_limit(ask(str(number), 1, RATE), now).outcome == "admitted"
    assert admitted <= RATE.burst + (now - NOW) * 10 + 1e-6


@pytest.mark.requirement("LIMIT-1")
def test_a_limit_of_requests_is_not_reached_anew_because_its_keeper_died() -> None:
    book = Book(0)
    for number in range(3):
        book.ask_limit(ask(str(number), 1, RATE), NOW)
        book.ask_limit(ask(str(number), 1, RATE, limit="idle"), NOW - 10)
    state = book.build_snapshot("k", NOW)
    heir = Book(0)
    heir.take_over(state, unknown_s=0.2)
    assert heir.ask_limit(ask("x", 1, RATE), NOW + 0.2).outcome == "refused", "others may have come since"
    assert heir.ask_limit(ask("y", 1, RATE), NOW + 0.31).outcome == "admitted"
    assert heir.ask_limit(ask("z", 1, RATE, limit="idle"), NOW + 0.2).outcome == "admitted"
    exact = Book(0)
    exact.take_over(state)
    assert exact.ask_limit(ask("x", 1, RATE), NOW + 0.2).outcome == "admitted"


@pytest.mark.parametrize("handed_over", [False, True])
def test_after_a_limit_is_raised_a_client_over_it_does_not_wait_as_long_as_the_old_one_asked_for(
    handed_over: bool,
) -> None:
    book = Book(0)
    few = LimitWindow(unit="requests", amount=10, period_s=3600, burst=10)
    many = LimitWindow(unit="requests", amount=1000, period_s=3600, burst=100)
    for number in range(10):
        assert book.ask_limit(ask(f"few-{number}", 1, few), NOW).outcome == "admitted"
    assert book.ask_limit(ask("few", 1, few), NOW).retry_s == pytest.approx(360)
    if handed_over:
        state = book.build_snapshot("a", NOW)
        book = Book(0)
        book.take_over(LimitShard.decode(state.encode()))
    admitted = [book.ask_limit(ask(f"many-{number}", 1, many), NOW).outcome for number in range(100)]
    assert admitted.count("admitted") == 90, "those before it still count"
    # And back: what came at the higher rate fills the lower one.
    assert book.ask_limit(ask("few", 1, few), NOW).outcome == "refused"
    assert book.release_charge("edge-1", "many-89", "limit", NOW)
    assert book.ask_limit(ask("many", 1, many), NOW).outcome == "admitted"


def test_a_question_that_arrives_twice_is_counted_once() -> None:
    book = Book(0)
    question = ask("a", 100)
    for _ in range(2):
        assert book.ask_limit(question, NOW).outcome == "admitted"
    assert book.used_amount("limit", MINUTE, "t", NOW) == 100
    assert spent(book, "a", 60) == 60
    assert book.used_amount("limit", MINUTE, "t", NOW) == 60


def test_a_request_that_is_sent_again_is_counted_once() -> None:
    book = Book(0)
    for attempt in (1, 2, 2):
        assert book.ask_limit(ask("a", 100, attempt=attempt), NOW).outcome == "admitted"
    assert book.used_amount("limit", MINUTE, "t", NOW) == 100
    assert spent(book, "a", 60) == 60
    assert spent(book, "a", 60) == 0, "it is settled"


def test_a_client_that_uses_one_id_for_all_its_requests_pays_for_each() -> None:
    book = Book(0)
    book.ask_limit(ask("same", 100), NOW)
    book.ask_limit(ask("same", 100), NOW)
    assert (spent(book, "same", 30), spent(book, "same", 50)) == (30, 50)
    assert book.used_amount("limit", MINUTE, "t", NOW) == 80


def test_an_open_reservation_is_returned_by_every_end() -> None:
    book = Book(0)
    for name in ("a", "b"):
        assert book.ask_limit(ask(name, 1, OPEN), NOW).outcome == "admitted"
    assert book.ask_limit(ask("c", 1, OPEN), NOW).outcome == "refused"
    spent(book, "a", None)
    assert book.ask_limit(ask("c", 1, OPEN), NOW).outcome == "admitted"
    assert book.release_abandoned(lambda edge: edge == "edge-1", NOW) == 2
    assert book.ask_limit(ask("d", 1, OPEN), NOW).outcome == "admitted"
    assert book.release_abandoned(lambda _: False, NOW + 601) == 1


def test_a_request_that_another_limit_refuses_was_never_here_unless_the_limit_keeps_it() -> None:
    book = Book(0)
    book.ask_limit(ask("a", 1, RATE, limit="tenant"), NOW)
    book.ask_limit(ask("a", 1, RATE, limit="infra", kept=True), NOW)
    assert book.release_charge("edge-1", "a", "tenant", NOW)
    assert not book.release_charge("edge-1", "a", "infra", NOW)
    assert (book.used_amount("tenant", RATE, "t", NOW), round(book.used_amount("infra", RATE, "t", NOW), 3)) == (0, 0.1)


def test_taking_back_undoes_the_refused_requests_last_count_and_nothing_of_another_limit() -> None:
    book = Book(0)
    for cost in (100, 30):
        book.ask_limit(ask("same", cost, limit="tenant"), NOW)
    book.ask_limit(ask("same", 7, limit="other"), NOW)
    assert book.release_charge("edge-1", "same", "tenant", NOW)
    assert (book.used_amount("tenant", MINUTE, "t", NOW), book.used_amount("other", MINUTE, "t", NOW)) == (100, 7)
    assert not book.release_charge("edge-1", "same", "unknown", NOW)
    assert (book.open_charges, book.edges()) == (2, {"edge-1"})
    assert book.release_charge("edge-1", "same", "tenant", NOW)
    assert book.release_charge("edge-1", "same", "other", NOW)
    assert (book.open_charges, book.edges()) == (0, set())


def test_the_counts_of_a_limit_stay_when_another_one_takes_the_ledger_over() -> None:
    book, heir = Book(0), Book(0)
    book.ask_limit(ask("a", 40, limit="infra", kept=True), NOW)
    heir.take_over(LimitShard.decode(book.build_snapshot("k", NOW).encode()))
    assert not heir.release_charge("edge-1", "a", "infra", NOW)
    assert heir.used_amount("infra", MINUTE, "t", NOW) == 40


def test_counts_that_are_at_nothing_are_forgotten_and_the_others_stay() -> None:
    book = Book(0)
    for scope, at in (("a", NOW), ("b", NOW + 100)):
        book.ask_limit(ask(scope, 1, scope=scope), at)
    assert [each.scope for each in book.build_snapshot("k", NOW + 120).counters] == ["b"]


def test_a_limit_whose_idle_count_was_forgotten_counts_its_next_request_anew() -> None:
    book, windows = Book(0), (MINUTE,)
    first, second = (replace(ask(name, 80), windows=windows) for name in ("a", "b"))
    book.ask_limit(first, NOW)
    spent(book, "a", 80)
    later = NOW + 3600
    assert book.build_snapshot("me", later).counters == ()
    book.ask_limit(second, later)
    assert book.used_amount("limit", MINUTE, "t", later) == 80
    assert len(book.build_snapshot("me", later).counters) == 1


def test_a_limit_with_other_windows_than_before_is_held_against_the_new_ones() -> None:
    book, before, after = Book(0), (MINUTE,), (MINUTE, DAY)
    book.ask_limit(replace(ask("a", 80), windows=before), NOW)
    verdict = book.ask_limit(replace(ask("b", 80), windows=after), NOW)
    assert [round(each.remaining) for each in verdict.standings] == [840, 4920]


def test_invented_scopes_share_one_count_once_there_are_too_many() -> None:
    book = Book(0)
    for number in range(MOST_COUNTERS + 5):
        book.ask_limit(ask(str(number), 1, scope=str(number)), NOW)
    assert book.used_amount("limit", MINUTE, OVERFLOW, NOW) == book.overflowed == 5
    assert book.ask_limit(ask("x", 1000, scope="7"), NOW).outcome == "refused", "those that were there go on"


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 500), st.integers(0, 500), st.floats(0, 90)), max_size=30),
    st.floats(0, 100),
)
def test_the_window_holds_what_it_would_had_the_real_usage_been_known(
    requests: list[tuple[float, int, int, float]], later: float
) -> None:
    """Each request: seconds after the one before, what it reserved, what it used, seconds that it took."""
    window, width = UsageWindow(60), 60 / SLOTS
    events: list[tuple[float, float, float | None]] = []
    truth: list[tuple[float, float]] = []
    at = NOW
    for gap, reserved, used, took in requests:
        at += gap
        events += [(at, reserved, None), (at + took, reserved, used)]
        truth += [(at, min(reserved, used)), (at + took, max(0, used - reserved))]
    began: dict[int, float] = {}
    for number, (time, reserved, used) in sorted(enumerate(events), key=lambda each: (each[1][0], each[0])):
        if used is None:
            window.add_usage(reserved, time)
            began[number + 1] = time
        elif used < reserved:
            window.subtract_usage(reserved - used, began[number], time)
        else:
            window.add_usage(used - reserved, time)
    end = max([at, *(time for time, _, _ in events)]) + later
    place = end / width
    inside = 0.0
    for time, tokens in truth:
        age = int(place) - int(time / width)
        inside += tokens * (1 if age < SLOTS else 1 - (place - int(place)) if age == SLOTS else 0)
    assert window.used_now(end) == pytest.approx(inside, abs=1e-6)


@dataclass
class Request:
    reserved: int
    used: int
    at: float
    counted: bool = True
    settled: list[int] = field(default_factory=list[int])


class Ledger(RuleBasedStateMachine):
    """Requests that come, end, are lost or are reported twice, while keepers crash and hand over."""

    @initialize(reactive=st.booleans())
    def begin(self, reactive: bool) -> None:
        self.reactive = reactive
        self.book = Book(0)
        self.now = NOW
        self.open: dict[str, Request] = {}
        self.charged = 0
        self.admitted = 0
        self.saved: tuple[LimitShard, dict[str, Request], int] = (self.book.build_snapshot("k", NOW), {}, 0)

    def _ask(self, name: str, tokens: int, attempt: int = 1) -> LimitVerdict:
        request = ask(name, tokens, DAY, OPEN_WIDE, attempt=attempt, reactive=self.reactive)
        return self.book.ask_limit(request, self.now)

    @rule(reserved=st.integers(0, 800), used=st.integers(0, 1500))
    def reserve(self, reserved: int, used: int) -> None:
        name = f"r{self.admitted}"
        if self._ask(name, reserved).outcome == "admitted":
            self.admitted += 1
            self.open[name] = Request(0 if self.reactive else reserved, used, self.now)
        else:
            floor = 1 if self.reactive else reserved
            assert self._expected() + floor > DAY.amount, "refused although there was room"

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def sent_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        assert self._ask(name, 1, attempt=2).outcome == "admitted"

    @precondition(lambda self: self.open)
    @rule(data=st.data(), twice=st.booleans())
    def settle(self, data: st.DataObject, twice: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        request = self.open.pop(name)
        for _ in range(1 + twice):
            self.book.settle_request(("edge-1", name), lambda _: request.used, self.now)
        self.charged += request.used

    @precondition(lambda self: self.open)
    @rule(data=st.data(), how=st.sampled_from(["rejected", "refused elsewhere"]))
    def let_go(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[name]
        if how == "rejected":
            self.book.settle_request(("edge-1", name), lambda _: None, self.now)
        else:
            assert self.book.release_charge("edge-1", name, "limit", self.now)

    @rule()
    def edge_dies(self) -> None:
        assert self.book.release_abandoned(lambda _: True, self.now) == len(self.open)
        self.open.clear()

    @rule()
    def stranger(self) -> None:
        assert self.book.settle_request(("edge-2", "r0"), lambda _: 99, self.now) == []

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def save(self) -> None:
        state = LimitShard.decode(self.book.build_snapshot("k", self.now).encode())
        self.saved = (state, dict(self.open), self.charged)

    @rule()
    def hand_over(self) -> None:
        state = LimitShard.decode(self.book.build_snapshot("k", self.now).encode())
        self.book = Book(0)
        self.book.take_over(state)

    @rule()
    def crash(self) -> None:
        """Loses all that came after the snapshot, and counts no request twice."""
        state, self.open, self.charged = self.saved[0], dict(self.saved[1]), self.saved[2]
        self.book = Book(0)
        self.book.take_over(state)

    @invariant()
    def adds_up(self) -> None:
        assert self.book.used_amount("limit", DAY, "t", self.now) == pytest.approx(self._expected())
        assert self.book.used_amount("limit", OPEN_WIDE, "t", self.now) == sum(
            0 if self.reactive else each.reserved for each in self.open.values()
        )
        assert self.book.open_charges == len(self.open)

    def _expected(self) -> float:
        """Real usage of what was settled, the reservations of what is open, nothing of the rest."""
        return self.charged + sum(each.reserved for each in self.open.values())


OPEN_WIDE = LimitWindow(unit="concurrency", amount=10**9)
Ledger.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLedger = pytest.mark.requirement("LIMIT-2")(Ledger.TestCase)
