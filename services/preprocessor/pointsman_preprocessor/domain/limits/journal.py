"""What other keepers admitted lately: what their snapshots don't have yet, should one of them end."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from pointsman_contracts.limits import LimitAsk, LimitGrant, LimitShard

KEPT_S: Final = 10.0
"""How long a grant is remembered once its shard has a newer snapshot, which may have been long under way."""
RETOLD_S: Final = 2.0
"""Grants of so long ago are in a snapshot, unless their keeper was stopped."""
MOST_GRANTS: Final = 4096
"""Of a shard without snapshots."""

_Key = tuple[int, str, str, str]
"""Number, edge, request and limit."""


class Granted(NamedTuple):
    """One request, by the clock of this process."""

    number: int
    ask: LimitAsk
    at: float


class Journal:
    """Pure. Times are unix seconds by the clock of this process."""

    def __init__(self, me: str) -> None:
        self._me: Final = me
        self._grants: dict[int, dict[_Key, tuple[Granted, float]]] = {}
        """By shard, in the order in which they were heard, and when."""
        self._ahead: dict[str, tuple[str, float]] = {}

    def hears(self, keeper: str, run: str, at: float, now: float) -> None:
        """Words of a keeper whose clock said `at` arrived."""
        known = self._ahead.get(keeper)
        # What was under way for the shortest time shows best how far two clocks differ.
        self._ahead[keeper] = run, at - now if known is None or known[0] != run else max(known[1], at - now)

    def ahead_s(self, keeper: str) -> float | None:
        """By how much the clock of a keeper is ahead of this one; None when it was never heard of."""
        known = self._ahead.get(keeper)
        return None if known is None else known[1]

    def note(self, keeper: str, grants: Iterable[LimitGrant], now: float) -> list[Granted]:
        """Remember grants told by a keeper that was heard of. Returns them by the clock of this process."""
        ahead_s = self.ahead_s(keeper) or 0.0
        noted: list[Granted] = []
        for number, at, ask in ((each.number, each.at, each.ask) for each in grants):
            granted = Granted(number, ask, at - ahead_s)
            noted.append(granted)
            heard = self._grants.setdefault(ask.shard, {})
            heard.setdefault((number, ask.edge, ask.request_id, ask.limit), (granted, now))
            if len(heard) > MOST_GRANTS:
                del heard[next(iter(heard))]
        return noted

    def after(self, shard: int, number: int) -> Iterator[Granted]:
        """What was admitted after the grant of this number."""
        return (granted for granted, _ in self._grants.get(shard, {}).values() if granted.number > number)

    def continues(self, state: LimitShard, since: float) -> bool:
        """Whether all that was admitted after a snapshot is known, to one that has listened since `since`."""
        if any(granted.number == state.granted + 1 for granted in self.after(state.shard, state.granted)):
            return True
        ahead_s = 0.0 if state.keeper == self._me else self.ahead_s(state.keeper)
        return ahead_s is not None and state.at_ms / 1000 - ahead_s >= since

    def lately(self, now: float) -> list[LimitGrant]:
        """What to tell one that has just started."""
        return [
            LimitGrant(number=granted.number, at=granted.at, ask=granted.ask)
            for heard in self._grants.values()
            for granted, at in heard.values()
            if at >= now - RETOLD_S
        ]

    def saved(self, shard: int, now: float) -> None:
        """There is a new snapshot of a shard."""
        heard = self._grants.get(shard)
        while heard and next(iter(heard.values()))[1] < now - KEPT_S:
            del heard[next(iter(heard))]
