"""Proof that a preprocessor keeps a shard of counts: a lease with an epoch, without any clock that two share.

Each preprocessor says at short intervals what it keeps, to all of them and to itself. The bus hands on the words of all
in one order, so one that hears its own words knows what was said before them. From that follow these rules:

- A lease lasts `LEASE_S` from the moment at which the words were sent that were heard again. A holder that was paused
  has none when it goes on, whatever it believes.
- A shard may be claimed, with the next epoch, `TAKEN_S` after its holder was last heard of: its lease is over by then.
- A claim counts once it was heard again, and words that were sent after that too, and nobody else keeps the shard by
  their last words. The second round is for a server that hands on two messages at once in either order. A lease that
  ran out is proved in the same way.
- One that hears of a later epoch has lost the shard.

This is a lease (Gray and Cheriton, 1989) with the epoch as fencing token. Times are seconds of any clock that never
goes back and doesn't stop while the process does; only that two clocks run equally fast is assumed.
"""

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Final

from pointsman_contracts.limits import SHARDS

LEASE_S: Final = 0.4
"""How long what was said and heard again holds."""
TAKEN_S: Final = 0.6
"""After a keeper's last words another one may take its shards. As long as a lease and the time in which an answer of
the keeper is still accepted (`ASKED_S`) together, so that whatever was accepted was told before."""
_REMEMBERED: Final = 64
"""Words that weren't heard again yet."""
_FORGOTTEN_S: Final = 60.0


@dataclass(slots=True)
class _Peer:
    """What another preprocessor said last."""

    keeper: str
    number: int
    at: float
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Said:
    """Words that were sent from here."""

    number: int
    at: float
    epochs: tuple[int, ...]


class Leases:
    """Those of one preprocessor. Pure."""

    def __init__(self, name: str, shards: int = SHARDS) -> None:
        """`name` is another one for each start of a process."""
        self.run = name
        """A new one for each connection: what others said between two of them never arrived here."""
        self._name: Final = name
        self._mine = [0] * shards
        """The epoch in which each shard is kept or claimed here; 0: it isn't."""
        self._unproved: dict[int, int] = {}
        """Shards that are claimed, and the number of the first words that prove it when they are heard again."""
        self._heard_once: set[int] = set()
        """Those of them whose claim was heard again once."""
        self._newest = [0] * shards
        """The latest epoch that was heard of."""
        self._peers: dict[str, _Peer] = {}
        self._said: deque[_Said] = deque(maxlen=_REMEMBERED)
        self._number = 0
        self._until = -inf
        self._listening = inf
        self._connection: int = -1

    @property
    def unproved(self) -> bool:
        """Whether more has to be said, and heard, before all that is claimed here is kept."""
        return bool(self._unproved)

    @property
    def has_peers(self) -> bool:
        """Whether another preprocessor was heard of in the last minute."""
        return bool(self._peers)

    @property
    def advancing(self) -> bool:
        """Whether the next words may prove something: what was heard again once, or is yet to be said."""
        return any(awaited > self._number for awaited in self._unproved.values())

    @property
    def listening_since(self) -> float:
        """Since when nothing that was said was missed; infinite before."""
        return self._listening

    def holds(self, shard: int, now: float) -> bool:
        """Whether it is proved at `now` that the shard is kept here, and nowhere else."""
        return now < self._until and self._mine[shard] != 0 and shard not in self._unproved

    def epoch(self, shard: int) -> int:
        """In which the shard is kept or claimed here; 0 when it isn't."""
        return self._mine[shard]

    def listens(self, now: float) -> bool:
        """Whether every keeper that lives was heard of."""
        return now - self._listening >= TAKEN_S

    def holder(self, shard: int, now: float) -> str:
        """The other preprocessor that keeps or claims a shard, as far as was heard; empty without one."""
        found, newest = "", 0
        for peer in self._peers.values():
            if peer.epochs[shard] > newest and now - peer.at < TAKEN_S:
                found, newest = peer.keeper, peer.epochs[shard]
        return found

    def knows(self, keeper: str) -> bool:
        """Whether an instance says what it keeps: one of an earlier version doesn't."""
        return any(peer.keeper == keeper for peer in self._peers.values())

    def claim(self, shard: int, now: float, known: int = 0) -> bool:
        """Claim a shard that nobody keeps; `known` is an epoch that is known otherwise. False where it may not be."""
        if self._mine[shard] or not self.listens(now) or self.holder(shard, now):
            return False
        self._mine[shard] = self._newest[shard] = max(self._newest[shard], known) + 1
        self._prove(shard)
        return True

    def given(self, shard: int, keeper: str) -> None:
        """A keeper said to this one alone that it keeps the shard no longer."""
        for peer in self._peers.values():
            if peer.keeper == keeper:
                peer.epochs = (*peer.epochs[:shard], 0, *peer.epochs[shard + 1 :])

    def release(self, shard: int) -> None:
        """Keep it no longer."""
        self._mine[shard] = 0
        self._unproved.pop(shard, None)
        self._heard_once.discard(shard)

    def say(self, now: float, connection: int) -> tuple[int, tuple[int, ...]]:
        """Number and epochs of what is now sent to all, over the connection of this number."""
        if connection != self._connection:
            self._connection = connection
            self.run = f"{self._name}.{connection}"
            self._said.clear()
            self._listening = inf
            self._until = -inf
        self._number += 1
        epochs = tuple(self._mine)
        self._said.append(_Said(self._number, now, epochs))
        self._forget(now)
        return self._number, epochs

    def heard_again(self, number: int, now: float) -> None:
        """The words with this number, said here, have arrived."""
        said: _Said | None = None
        while self._said and self._said[0].number <= number:
            said = self._said.popleft()
        if said is None or said.number != number:
            return
        if self._listening == inf:
            self._listening = said.at
        if now >= self._until:
            for shard, epoch in enumerate(self._mine):
                if epoch and shard not in self._unproved:
                    self._prove(shard)
        self._until = max(self._until, said.at + LEASE_S)
        for shard, awaited in list(self._unproved.items()):
            if number < awaited or said.epochs[shard] != self._mine[shard]:
                continue
            if shard not in self._heard_once:
                self._heard_once.add(shard)
                self._unproved[shard] = self._number + 1
            elif self.listens(now) and not self.holder(shard, now):
                del self._unproved[shard]
                self._heard_once.discard(shard)

    def said(self, run: str) -> bool:
        """Whether words are of this process, over whichever connection."""
        return run == self._name or run.startswith(self._name + ".")

    def heard(self, run: str, keeper: str, number: int, epochs: tuple[int, ...], now: float) -> list[int]:
        """Another one's words have arrived. Returns the shards that are lost by them."""
        peer = self._peers.get(run)
        if len(epochs) != len(self._mine) or (peer is not None and number <= peer.number):
            return []
        self._peers[run] = _Peer(keeper, number, now, epochs)
        lost: list[int] = []
        for shard, epoch in enumerate(epochs):
            if not epoch:
                continue
            self._newest[shard] = max(self._newest[shard], epoch)
            if self._mine[shard] and self._yields(shard, epoch, run):
                self.release(shard)
                lost.append(shard)
        return lost

    def _yields(self, shard: int, theirs: int, run: str) -> bool:
        mine = self._mine[shard]
        if theirs != mine:
            # One that was paused says what it believed: it will hear of the later epoch.
            return theirs > mine
        if shard not in self._unproved:
            return False
        return shard not in self._heard_once or run > self.run

    def _prove(self, shard: int) -> None:
        self._unproved[shard] = self._number + 1
        self._heard_once.discard(shard)

    def _forget(self, now: float) -> None:
        for run in [each for each, peer in self._peers.items() if now - peer.at > _FORGOTTEN_S]:
            del self._peers[run]
