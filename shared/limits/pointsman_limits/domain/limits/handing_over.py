"""Where the counts of a shard are that this preprocessor doesn't keep: with the instance that it gave them to, or the
one that last saved them."""

from collections.abc import Callable
from typing import Final

from pointsman_contracts.limits import LimitShard
from pointsman_limits.domain.limits.lease import Leases

REMEMBERED_S: Final = 10.0
"""How long a handed-over shard can be requested again, in case the answer got lost."""
REFUSED_S: Final = 1.0
"""How long an instance isn't asked again for a shard that it doesn't keep."""


class HandOvers:
    """Those of one preprocessor, with instance `me`. Pure. Times are unix seconds of the keeper's clock."""

    def __init__(self, me: str, leases: Leases) -> None:
        self._me: Final = me
        self._leases: Final = leases
        self._handed: Final[dict[int, tuple[str, bytes, float]]] = {}
        """Shards that were handed over: the receiver, the answer to it, and the time."""
        self._refused: Final[dict[tuple[int, str], float]] = {}
        """Instances that don't keep a shard → when they may be asked again."""

    def note_handed(self, shard: int, to: str, written: bytes, now: float) -> None:
        """The shard was handed over to the instance `to` with this answer."""
        self._handed[shard] = (to, written, now)

    def note_refused(self, shard: int, holder: str, now: float) -> None:
        """The instance doesn't keep the shard."""
        self._refused[shard, holder] = now + REFUSED_S

    def forget_handed(self, shard: int) -> None:
        """The shard is kept here again."""
        self._handed.pop(shard, None)

    def find_answer(self, shard: int, to: str, now: float) -> bytes | None:
        """The answer by which the shard was handed over to the instance `to`, which may not have got it."""
        handed = self._handed.get(shard)
        recent = handed is not None and handed[0] == to and now - handed[2] < REMEMBERED_S
        return handed[1] if handed is not None and recent else None

    def find_holder(self, shard: int, saved: LimitShard | None, is_alive: Callable[[str], bool], now: float) -> str:
        """Another preprocessor that still keeps the shard; empty when none is known. `saved`: the last snapshot."""
        holder = self._leases.other_holder(shard, now)
        if holder:
            return holder
        handed = self._handed.get(shard)
        if handed is not None and now - handed[2] < REMEMBERED_S:
            holder = handed[0]
        else:
            holder = "" if saved is None else saved.keeper
        # An earlier version doesn't report its shards.
        if holder in ("", self._me) or self._leases.knows_keeper(holder) or not is_alive(holder):
            return ""
        return "" if self._refused.get((shard, holder), 0.0) > now else holder
