"""The budgets of one shard: spending, and reservations of requests that haven't ended."""

from collections.abc import Callable
from itertools import chain
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from pointsman_contracts.limits import (
    AccountState,
    BudgetAsk,
    BudgetStanding,
    BudgetWindow,
    LimitAsk,
    LimitShard,
    LimitVerdict,
    ReservationState,
)
from pointsman_core.budget_amount import period
from pointsman_limits.domain.budgets.account import DAY_S, Account, day_of, first_day

MOST_ACCOUNTS: Final = 8192
"""Most scopes of a shard. Further scopes share one account for each budget."""
OVERFLOW: Final = "*"
"""The shared scope of the others."""


class Reached(NamedTuple):
    """A warning to publish."""

    limit: str
    scope: str
    level: Literal["soft", "hard"]
    window: BudgetWindow
    spent: int
    reset_ms: int


class BudgetLedger:
    """Pure. Times are unix seconds of the keeper's clock; amounts are nano-dollars."""

    def __init__(self) -> None:
        self.changed = False
        """Whether anything changed since the last snapshot."""
        self.spent_to: int | None = None
        """The last event whose cost is in the accounts; None before the first one."""
        self.current = False
        """Whether requests may spend: `read_all` and `saved` have been called since this shard was taken over."""
        self.spent_in = ""
        """The stream that `spent_to` is a sequence of."""
        self.reached: list[Reached] = []
        """Warnings that weren't taken yet."""
        self._read = False
        self._saved = False
        self._accounts: Final[dict[tuple[str, str], Account]] = {}
        self._reservations: Final[dict[tuple[str, str], list[ReservationState]]] = {}

    @property
    def open(self) -> int:
        """Number of reservations."""
        return sum(map(len, self._reservations.values()))

    @property
    def has_accounts(self) -> bool:
        """Whether any account has spending or reservations."""
        return bool(self._accounts)

    @property
    def is_unread(self) -> bool:
        """Whether `read_all` hasn't been called."""
        return not self._read

    def read_all(self) -> None:
        """Every event was read that the stream had when this shard was taken over."""
        self._read = True
        self.current = self._saved

    def note_saved(self) -> None:
        """A snapshot with a place in the stream is stored. Without one, the next keeper wouldn't know where this
        shard began to count, and would begin at the end of the stream."""
        self._saved = True
        self.current = self._read

    def begin_counting(self, position: int, stream: str) -> None:
        """Count what ends after this place in the stream."""
        self.spent_to, self.spent_in = position, stream
        self.changed = True

    def ask_budget(self, ask: LimitAsk, budget: BudgetAsk, now: float) -> LimitVerdict:
        """Reserve what a request may cost if every window has room for what it probably costs beside what others may
        cost at most: of all that run, one alone may exceed the amount, by what it was expected to cost less."""
        today = day_of(now)
        if ask.dry_run:
            known = self._accounts.get((ask.limit, ask.scope)) or self._accounts.get((ask.limit, OVERFLOW))
            account = known or Account()
        else:
            scope = self._scope(ask.limit, ask.scope)
            account = self._account(ask.limit, scope)
            account.windows = budget.windows
            self._watch(ask.limit, scope, account, today)
        refusing: tuple[int, int] | None = None
        tightest, least = 0, None
        for place, window in enumerate(budget.windows):
            left = window.amount - account.spent_in_window(window.days, today) - account.reserved
            if least is None or left < least:
                tightest, least = place, left
            if window.hard and budget.expected > left and budget.expected > 0:
                reset = account.reset_day(window.days, today, budget.expected - left)
                if refusing is None or reset > refusing[1]:
                    refusing = place, reset
        if refusing is not None and not self._reserved(ask):
            return LimitVerdict(outcome="refused", budget=_standing(account, budget, today, *refusing))
        window = budget.windows[tightest]
        verdict = LimitVerdict(
            outcome="admitted",
            budget=_standing(account, budget, today, tightest, account.reset_day(window.days, today, window.amount)),
        )
        if not ask.dry_run:
            self.reserve_admitted(ask, budget, now)
        return verdict

    def reserve_admitted(self, ask: LimitAsk, budget: BudgetAsk, at: float) -> None:
        """Count a request that was admitted here or by another keeper; once, however often its edge sends it."""
        if self._reserved(ask):
            return
        until = ask.until_ms / 1000 if ask.open_s is None else at + ask.open_s
        scope = self._scope(ask.limit, ask.scope)
        self._reserve(
            ReservationState(
                edge=ask.edge,
                request_id=ask.request_id,
                limit=ask.limit,
                scope=scope,
                amount=budget.at_most,
                until=until,
                until_ms=ask.until_ms,
            )
        )

    def spend_cost(self, limit: str, scope: str, amount: int, day: int, now: float) -> None:
        """Add the cost of a request. Each request comes once: see `spent_to`."""
        scope = self._scope(limit, scope)
        account = self._account(limit, scope)
        account.add_spending(amount, day)
        self.changed = True
        self._watch(limit, scope, account, day_of(now))

    def close(self, edge: str, request_id: str) -> None:
        """A request has ended: release its reservation. If several have this name, the first one ends."""
        reservations = self._reservations.pop((edge, request_id), None)
        if reservations is None:
            return
        first: dict[str, ReservationState] = {}
        later = [each for each in reservations if first.setdefault(each.limit, each) is not each]
        if later:
            self._reservations[edge, request_id] = later
        for each in first.values():
            self._free(each)

    def release_reservation(self, edge: str, request_id: str, limit: str) -> bool:
        """Another limit rejected the request: release its last reservation. False when it has none."""
        reservations = self._reservations.get((edge, request_id), [])
        for position in range(len(reservations) - 1, -1, -1):
            if reservations[position].limit == limit:
                self._free(reservations.pop(position))
                if not reservations:
                    del self._reservations[edge, request_id]
                return True
        return False

    def release_abandoned(self, gone: Callable[[str], bool], now: float) -> int:
        """Release the reservations of requests that can't be open any more: they timed out, or their edge is gone. Only
        for a keeper that has read all events."""
        count = 0
        for (edge, request_id), reservations in list(self._reservations.items()):
            lost = gone(edge)
            over = [each for each in reservations if lost or each.until <= now]
            if not over:
                continue
            for each in over:
                self._free(each)
            count += len(over)
            left = [each for each in reservations if each not in over]
            if left:
                self._reservations[edge, request_id] = left
            else:
                del self._reservations[edge, request_id]
        return count

    def spent_and_reserved(self, limit: str, scope: str, days: int | None, now: float) -> tuple[int, int]:
        """Spending in a window that ends today, and the amount reserved."""
        account = self._accounts.get((limit, scope))
        return (0, 0) if account is None else (account.spent_in_window(days, day_of(now)), account.reserved)

    def export_states(self, now: float) -> tuple[tuple[AccountState, ...], tuple[ReservationState, ...]]:
        """The accounts for the snapshot; accounts without spending in any window are dropped."""
        today = day_of(now)
        for key in [key for key, account in self._accounts.items() if account.drop_old_days(today)]:
            del self._accounts[key]
        self.changed = False
        accounts = tuple(
            AccountState(limit=limit, scope=scope, days=dict(account.days), told=tuple(sorted(account.told)))
            for (limit, scope), account in self._accounts.items()
        )
        return accounts, tuple(chain.from_iterable(self._reservations.values()))

    def take_over(self, state: LimitShard, ahead_s: float = 0.0) -> None:
        """Continue from a snapshot whose clock was `ahead_s` ahead."""
        self.spent_to, self.spent_in = state.spent_to, state.spent_in
        for each in state.accounts:
            self._accounts[each.limit, each.scope] = Account(dict(each.days), each.told)
        for each in state.reservations:
            self._reserve(replace(each, until=each.until - ahead_s))

    def _scope(self, limit: str, scope: str) -> str:
        full = len(self._accounts) >= MOST_ACCOUNTS and (limit, scope) not in self._accounts
        return OVERFLOW if full else scope

    def _account(self, limit: str, scope: str) -> Account:
        found = self._accounts.get((limit, scope))
        if found is None:
            found = self._accounts[limit, scope] = Account()
        return found

    def _reserve(self, reservation: ReservationState) -> None:
        self._reservations.setdefault((reservation.edge, reservation.request_id), []).append(reservation)
        self._account(reservation.limit, reservation.scope).reserved += reservation.amount
        self.changed = True

    def _free(self, reservation: ReservationState) -> None:
        account = self._account(reservation.limit, reservation.scope)
        account.reserved = max(0, account.reserved - reservation.amount)
        self.changed = True

    def _reserved(self, ask: LimitAsk) -> bool:
        """Whether the request has a reservation; as `Book._counted`."""
        return any(
            each.limit == ask.limit and (ask.attempt > 1 or each.until_ms == ask.until_ms)
            for each in self._reservations.get((ask.edge, ask.request_id), ())
        )

    def _watch(self, limit: str, scope: str, account: Account, today: int) -> None:
        """Note new warnings of a window."""
        for window in account.windows:
            spent = account.spent_in_window(window.days, today)
            levels: tuple[tuple[Literal["soft", "hard"], int | None], ...] = (
                ("soft", window.soft),
                ("hard", window.amount),
            )
            for level, amount in levels:
                if amount is None or spent < amount or not spent:
                    continue
                first = first_day(window.days, today)
                words = f"{level}/{period(window.days)}/{first}"
                if words not in account.told:
                    stale = f"{level}/{period(window.days)}/"
                    account.told.difference_update([each for each in account.told if each.startswith(stale)])
                    account.told.add(words)
                    self.changed = True
                    reset_ms = account.reset_day(window.days, today, 1) * DAY_S * 1000
                    self.reached.append(
                        Reached(limit=limit, scope=scope, level=level, window=window, spent=spent, reset_ms=reset_ms)
                    )


def _standing(account: Account, budget: BudgetAsk, today: int, place: int, reset_day: int) -> BudgetStanding:
    spent = account.spent_in_window(budget.windows[place].days, today)
    soft = budget.windows[place].soft
    return BudgetStanding(
        window=place,
        spent=spent,
        reserved=account.reserved,
        reset_ms=reset_day * DAY_S * 1000,
        soft=soft is not None and spent >= soft,
    )
