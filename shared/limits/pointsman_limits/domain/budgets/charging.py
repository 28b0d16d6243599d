"""Charges budgets with the ends of requests, which come from a stream: each end once, in every shard's ledger."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from pointsman_limits.domain.budgets.ledger import BudgetLedger
from pointsman_limits.domain.budgets.scope import BudgetScopes
from pointsman_limits.domain.budgets.spending import spending

SEEN: Final = 32_768
"""Most ends that are remembered, so that an end which the stream has twice is charged once, and so is an attempt of a
batch's line that was repeated because its answer was lost."""


class End(NamedTuple):
    """The event of a request's end."""

    sequence: int
    """Its sequence in the stream."""
    body: bytes


class Charged(NamedTuple):
    """The result of charging a batch of ends."""

    costs: list[tuple[str, int]]
    """Each cost that a budget was charged with: the budget's name, and nano-dollars."""
    unpriced: list[str]
    """The model of each request that used tokens of a model without a price."""
    malformed: list[End]


class BudgetCharging:
    """Pure. Knows the place in the stream up to which all ledgers have been charged. Times are unix seconds."""

    def __init__(self) -> None:
        self.scopes: dict[str, BudgetScopes] = {}
        """The configured budgets, by name."""
        self.position = 0
        """Sequence of the last end that was read."""
        self._stream = ""
        self._seen: Final[dict[int, int]] = {}
        """Hash of an event, or of an attempt of a line → its first place in the stream."""

    def follow_stream(self, stream: str, last: int) -> None:
        """Follow the stream that was created at `stream`, from `last` on. One that was created anew has none of the
        earlier ends: it is read from its beginning."""
        if stream != self._stream:
            self.position = 0 if self._stream else last
            self._stream = stream
            self._seen.clear()

    def seek_place(self, ledgers: Iterable[BudgetLedger]) -> bool:
        """Go back to the earliest place of any ledger; a new ledger starts at the current place. Returns whether one
        started."""
        began = False
        for ledger in ledgers:
            if ledger.spent_to is None:
                ledger.begin_counting(self.position, self._stream)
                began = True
            elif ledger.spent_in != self._stream:
                ledger.spent_to, ledger.spent_in = 0, self._stream
            self.position = min(self.position, ledger.spent_to or 0)
        return began

    def remember_ends(self, ends: Iterable[End]) -> None:
        """These were charged before the place: their repetitions aren't charged."""
        for end in ends:
            self._is_repeated(hash(end.body), end.sequence)
            with suppress(ValueError):
                attempt = spending(end.body).attempt
                if attempt is not None:
                    self._is_repeated(hash(attempt), end.sequence)

    def charge_ends(self, ends: Sequence[End], ledgers: Mapping[int, BudgetLedger], now: float) -> Charged:
        """Charge the ledgers, given by shard, with ends in the order of the stream."""
        charged = Charged([], [], [])
        reserving = [ledger for ledger in ledgers.values() if ledger.open]
        for end in ends:
            if self._is_repeated(hash(end.body), end.sequence):
                continue
            try:
                spent = spending(end.body)
            except ValueError:
                charged.malformed.append(end)
                continue
            for ledger in reserving:
                if (ledger.spent_to or 0) < end.sequence:
                    ledger.close(spent.edge, spent.request_id)
            if spent.attempt is not None and self._is_repeated(hash(spent.attempt), end.sequence):
                continue
            if spent.amount is None and spent.used:
                charged.unpriced.append(spent.model)
            if spent.amount:
                for name, scopes in self.scopes.items():
                    scope, shard = scopes.values_of(spent.identity, spent.model)
                    ledger = ledgers.get(shard)
                    if ledger is not None and (ledger.spent_to or 0) < end.sequence:
                        ledger.spend_cost(name, scope, spent.amount, spent.day, now)
                        charged.costs.append((name, spent.amount))
        if ends:
            self.position = ends[-1].sequence
            for ledger in ledgers.values():
                ledger.spent_to = max(ledger.spent_to or 0, self.position)
        return charged

    def _is_repeated(self, name: int, sequence: int) -> bool:
        """Whether the stream has the same event, or the end of the same attempt, at an earlier place, too. Servers that
        stood still may store an event twice."""
        seen = self._seen
        first = seen.get(name)
        if first is None or sequence < first:
            seen[name] = sequence
            if len(seen) > SEEN:
                del seen[next(iter(seen))]
            return False
        return first < sequence
