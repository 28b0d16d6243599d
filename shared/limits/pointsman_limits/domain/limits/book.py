"""The ledger of one shard: every count in it, and every request that is counted and hasn't ended.

Reserve, settle, release: the expected cost of a request is counted before it runs, corrected once by its actual cost,
or taken back (RFC 0021 of Kuadrant). A request that was never settled counts nothing in the end.
"""

from collections.abc import Callable
from itertools import chain
from math import inf
from typing import Final

import msgspec
from msgspec.structs import replace

from pointsman_contracts.limits import ChargeState, LimitAsk, LimitGrant, LimitShard, LimitVerdict, LimitWindow
from pointsman_limits.domain.budgets.ledger import BudgetLedger
from pointsman_limits.domain.limits.counter import UseCounter, counter_of, window_name

MOST_COUNTERS: Final = 8192
"""Most scopes of a shard. Further scopes share one count for each limit, so that invented header values can't fill the
memory."""
OVERFLOW: Final = "*"
"""The shared scope of the others."""
_CounterKey = tuple[str, str, str]
"""Limit, window, scope."""


class _Found(msgspec.Struct, frozen=True, gc=False):
    """The counts of a limit's windows in one scope."""

    windows: tuple[LimitWindow, ...]
    names: tuple[str, ...]
    scope: str
    """That they are counted in."""
    counters: tuple[tuple[UseCounter, LimitWindow], ...]


class Settled(msgspec.Struct, frozen=True, gc=False):
    """A request whose cost is known."""

    limit: str
    reserved: float
    actual: float


class Book:
    """Pure. A request is named by its edge and its id; the same name may come again when a client chooses it."""

    def __init__(self, shard: int) -> None:
        self.shard: Final = shard
        self.budgets: Final = BudgetLedger()
        self._changed = False
        self.overflowed = 0
        """Requests counted in the scope shared by those that had no room."""
        self.granted = 0
        """Requests that were counted, across keepers."""
        self._counters: dict[_CounterKey, UseCounter] = {}
        self._found: dict[tuple[str, str], _Found] = {}
        """The last answer of `_find`, by limit and scope: most questions have the very windows of the last."""
        self.charges: Final[dict[tuple[str, str], list[ChargeState]]] = {}
        """Charges of the requests that haven't ended, by edge and request."""

    @property
    def has_changed(self) -> bool:
        """Whether anything changed since the last snapshot."""
        return self._changed or self.budgets.changed

    @has_changed.setter
    def has_changed(self, value: bool) -> None:
        self._changed = value

    @property
    def open_charges(self) -> int:
        """Number of open charges."""
        return sum(map(len, self.charges.values())) + self.budgets.open

    def edges(self) -> set[str]:
        """Edges of the requests that haven't ended."""
        return {edge for edge, _ in self.charges}

    def ask_limit(self, ask: LimitAsk, now: float) -> LimitVerdict:
        """Count a request if every window admits it."""
        if ask.budget is not None:
            verdict = self.budgets.ask_budget(ask, ask.budget, now)
            self.granted += verdict.outcome == "admitted" and not ask.dry_run
            return verdict
        found = self._found.get((ask.limit, ask.scope))
        if found is None or found.windows != ask.windows:
            found = self._look(ask) if ask.dry_run else self._find(ask)
        counters, longest, refusing = found.counters, 0.0, 0
        if not self._counted(ask):
            reactive, risk = ask.reactive, ask.risk
            cost = 0.0 if reactive else ask.cost
            for counter, window in counters:
                wait_s = counter.seconds_until_room(window, cost, now, reactive, risk)
                if wait_s > longest:
                    longest, refusing = wait_s, ask.windows.index(window)
            if not longest and not ask.dry_run:
                self.granted += 1
                self._charge(ask, found, now)
        standings = tuple([counter.compute_standing(window, now) for counter, window in counters])
        if longest:
            return LimitVerdict(
                outcome="refused",
                standings=standings,
                window=refusing,
                retry_s=None if longest == inf else longest,
            )
        return LimitVerdict(outcome="admitted", standings=standings)

    def replay_grant(self, grant: LimitGrant) -> None:
        """Count a request that another keeper admitted."""
        ask = grant.ask
        if ask.budget is not None:
            self.granted = max(self.granted, grant.number)
            self.budgets.reserve_admitted(ask, ask.budget, grant.at)
            return
        self.granted = max(self.granted, grant.number)
        self._charge(ask, self._find(ask), grant.at)

    def settle_request(
        self, request: tuple[str, str], actual: Callable[[str], float | None], now: float
    ) -> list[Settled]:
        """The request, an edge's id, has ended. `actual(limit)` is its cost; None releases the reservation."""
        settled: list[Settled] = []
        for charge in self._oldest(request):
            cost = actual(charge.limit)
            self._close(charge, cost, now)
            settled.append(Settled(charge.limit, charge.cost, cost or 0.0))
        return settled

    def release_charge(self, edge: str, request_id: str, limit: str, now: float) -> bool:
        """Another limit rejected the request: release its last charge. False when it has none, or the limit keeps
        charges."""
        charges = self.charges.get((edge, request_id), [])
        for position in range(len(charges) - 1, -1, -1):
            charge = charges[position]
            if charge.limit == limit and not charge.kept:
                del charges[position]
                self._close(charge, None, now, refused=True)
                if not charges:
                    del self.charges[edge, request_id]
                return True
        return self.budgets.release_reservation(edge, request_id, limit)

    def release_abandoned(self, gone: Callable[[str], bool], now: float) -> int:
        """Release the charges of requests that can't be open any more: they timed out, or their edge is gone."""
        count = 0
        for (edge, request_id), charges in list(self.charges.items()):
            lost = gone(edge)
            left = [charge for charge in charges if not lost and charge.until > now]
            if len(left) == len(charges):
                continue
            for charge in charges:
                if charge not in left:
                    self._close(charge, None, now)
                    count += 1
            if left:
                self.charges[edge, request_id] = left
            else:
                del self.charges[edge, request_id]
        return count

    def used_amount(self, limit: str, window: LimitWindow, scope: str, now: float) -> float:
        """The value of a count, as `UseCounter.used_now`."""
        name = window_name(window.unit, window.period_s, window.measure)
        counter = self._counters.get((limit, name, scope))
        return 0.0 if counter is None else counter.used_now(now)

    def build_snapshot(self, keeper: str, now: float, epoch: int = 0) -> LimitShard:
        """The full state for the next keeper; counts at zero are dropped."""
        for key in [key for key, counter in self._counters.items() if counter.is_idle and counter.used_now(now) <= 0]:
            del self._counters[key]
        self._found.clear()
        self._changed = False
        accounts, reservations = self.budgets.export_states(now)
        return LimitShard(
            shard=self.shard,
            keeper=keeper,
            epoch=epoch,
            granted=self.granted,
            at_ms=round(now * 1000),
            counters=tuple(
                counter.build_state(limit, scope, window) for (limit, window, scope), counter in self._counters.items()
            ),
            charges=tuple(chain.from_iterable(self.charges.values())),
            accounts=accounts,
            reservations=reservations,
            spent_to=self.budgets.spent_to,
            spent_in=self.budgets.spent_in,
        )

    def take_over(self, state: LimitShard, unknown_s: float = 0.0, ahead_s: float = 0.0) -> None:
        """Continue from a snapshot, which is all that is known of the last `unknown_s` seconds, and whose clock was
        `ahead_s` ahead."""
        self.granted = state.granted
        self.budgets.take_over(state, ahead_s)
        for each in state.counters:
            self._counter(each.limit, each.window, each.scope).take_over(each, state.at_ms / 1000, unknown_s, ahead_s)
        for each in state.charges:
            charge = replace(each, at=each.at - ahead_s, until=each.until - ahead_s)
            self.charges.setdefault((each.edge, each.request_id), []).append(charge)
            for window in each.windows:
                self._counter(each.limit, window, each.scope).reopen_request(each.cost, each.risk)
        self.has_changed = True

    def _charge(self, ask: LimitAsk, found: _Found, at: float) -> None:
        cost, risk = 0.0 if ask.reactive else ask.cost, ask.risk
        for counter, window in found.counters:
            counter.add_cost(window, cost, at, risk)
        until = ask.until_ms / 1000 if ask.open_s is None else at + ask.open_s
        charge = ChargeState(
            edge=ask.edge,
            request_id=ask.request_id,
            limit=ask.limit,
            scope=found.scope,
            windows=found.names,
            cost=cost,
            at=at,
            until=until,
            kept=ask.kept,
            risk=risk,
            until_ms=ask.until_ms,
        )
        self.charges.setdefault((ask.edge, ask.request_id), []).append(charge)
        self._changed = True

    def _counted(self, ask: LimitAsk) -> bool:
        """Whether this limit has already counted the request. A first attempt of the same name is the same message
        again if it has the same end; otherwise the client has chosen the name of its last request again."""
        charges = self.charges.get((ask.edge, ask.request_id))
        return charges is not None and any(
            charge.limit == ask.limit and (ask.attempt > 1 or charge.until_ms == ask.until_ms) for charge in charges
        )

    def _find(self, ask: LimitAsk) -> _Found:
        names = tuple([window_name(window.unit, window.period_s, window.measure) for window in ask.windows])
        limit, scope, known = ask.limit, ask.scope, self._counters
        every = all((limit, name, scope) in known for name in names)
        if not every and len(known) >= MOST_COUNTERS:
            self.overflowed += 1
            scope = OVERFLOW
        counters = [self._counter(limit, name, scope) for name in names]
        found = _Found(ask.windows, names, scope, tuple(zip(counters, ask.windows, strict=True)))
        if every:
            self._found[limit, scope] = found
        return found

    def _look(self, ask: LimitAsk) -> _Found:
        """Like `_find`, for a question that leaves nothing here."""
        names = tuple([window_name(window.unit, window.period_s, window.measure) for window in ask.windows])
        limit, scope, known = ask.limit, ask.scope, self._counters
        if len(known) >= MOST_COUNTERS and not all((limit, name, scope) in known for name in names):
            scope = OVERFLOW
        counters = [known.get((limit, name, scope)) or counter_of(name) for name in names]
        return _Found(ask.windows, names, scope, tuple(zip(counters, ask.windows, strict=True)))

    def _counter(self, limit: str, window: str, scope: str) -> UseCounter:
        key = (limit, window, scope)
        found = self._counters.get(key)
        if found is None:
            found = self._counters[key] = counter_of(window)
        return found

    def _oldest(self, request: tuple[str, str]) -> list[ChargeState]:
        """Take the charges of the oldest request of this name."""
        charges = self.charges.pop(request, None)
        if charges is None:
            return []
        if len(charges) == 1:
            return charges
        first: dict[str, ChargeState] = {}
        for charge in charges:
            first.setdefault(charge.limit, charge)
        if len(first) < len(charges):
            self.charges[request] = [charge for charge in charges if first[charge.limit] is not charge]
        return list(first.values())

    def _close(self, charge: ChargeState, actual: float | None, now: float, *, refused: bool = False) -> None:
        self._changed = True
        limit, scope, cost = charge.limit, charge.scope, charge.cost
        for name in charge.windows:
            counter = self._counters.get((limit, name, scope)) or self._counter(limit, name, scope)
            counter.end_request(cost, charge.risk)
            if actual is not None:
                counter.correct_cost(cost, actual, charge.at, now)
            elif refused or name.startswith("tokens/"):
                counter.take_back(cost, charge.at, now)
