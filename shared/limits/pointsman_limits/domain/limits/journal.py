"""Remembers other keepers' latest grants, which their snapshots don't have yet."""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from pointsman_contracts.limits import LimitGrant, LimitShard

KEPT_S: Final = 10.0
"""How long a grant is remembered after its shard has a newer snapshot, which may have been written earlier."""
RETOLD_S: Final = 2.0
"""Older grants are in a snapshot, unless their keeper was stopped."""
MOST_GRANTS: Final = 4096
"""Most grants of a shard without snapshots."""

_Key = tuple[int, str, str, str]
"""Number, edge, request and limit."""


class Journal:
    """Pure. Times are unix seconds by the clock of this process, those of the grants that it remembers too."""

    def __init__(self, me: str) -> None:
        self._me: Final = me
        self._grants: dict[int, dict[_Key, tuple[LimitGrant, float]]] = {}
        """Grants by shard, in order of arrival, each with its time."""
        self._ahead: dict[str, tuple[str, float]] = {}

    def note_keeper_clock(self, keeper: str, run: str, at: float, now: float) -> None:
        """A message arrived from a keeper whose clock said `at`."""
        known = self._ahead.get(keeper)
        # The message with the shortest delay shows best how far two clocks differ.
        self._ahead[keeper] = run, at - now if known is None or known[0] != run else max(known[1], at - now)

    def ahead_s(self, keeper: str) -> float | None:
        """How far a keeper's clock is ahead of this one; None without a message from it."""
        known = self._ahead.get(keeper)
        return None if known is None else known[1]

    def note_grants(self, keeper: str, grants: Iterable[LimitGrant], now: float) -> list[LimitGrant]:
        """Remember the grants of a known keeper. Returns them by the clock of this process."""
        ahead_s = self.ahead_s(keeper) or 0.0
        noted = [replace(each, at=each.at - ahead_s) for each in grants]
        for granted in noted:
            self.remember_grant(granted, now)
        return noted

    def remember_grant(self, granted: LimitGrant, now: float) -> None:
        """Remember one grant, by the clock of this process."""
        ask = granted.ask
        heard = self._grants.get(ask.shard)
        if heard is None:
            heard = self._grants[ask.shard] = {}
        heard.setdefault((granted.number, ask.edge, ask.request_id, ask.limit), (granted, now))
        if len(heard) > MOST_GRANTS:
            del heard[next(iter(heard))]

    def grants_after(self, shard: int, number: int) -> Iterator[LimitGrant]:
        return (granted for granted, _ in self._grants.get(shard, {}).values() if granted.number > number)

    def continues_snapshot(self, state: LimitShard, since: float) -> bool:
        """Whether all grants after a snapshot are known, if this process has listened since `since`."""
        if any(granted.number == state.granted + 1 for granted in self.grants_after(state.shard, state.granted)):
            return True
        ahead_s = 0.0 if state.keeper == self._me else self.ahead_s(state.keeper)
        return ahead_s is not None and state.at_ms / 1000 - ahead_s >= since

    def recent_grants(self, now: float) -> list[LimitGrant]:
        """The recent grants, for a preprocessor that has just started."""
        return [granted for heard in self._grants.values() for granted, at in heard.values() if at >= now - RETOLD_S]

    def note_saved(self, shard: int, now: float) -> None:
        """A shard has a new snapshot."""
        heard = self._grants.get(shard)
        while heard and next(iter(heard.values()))[1] < now - KEPT_S:
            del heard[next(iter(heard))]
