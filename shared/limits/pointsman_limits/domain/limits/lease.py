"""Proves that a preprocessor keeps a shard of counts: a lease with an epoch, without a shared clock.

Each preprocessor reports its shards at short intervals, to all of them and to itself. The bus delivers all reports
in one order, so one that receives its own report has all earlier ones. Four rules follow:

- A lease lasts `LEASE_S` from the sending of the last report that came back. A holder that was paused
  has none when it continues, whatever it believes.
- A shard may be claimed, with the next epoch, `TAKEN_S` after its holder's last report: its lease is over by then.
- A claim counts once its report came back, a later report came back too, and no other preprocessor keeps the shard by
  its last report. The second round covers a server that delivers two messages at once in either order. A lease that
  ran out is proved in the same way.
- A holder that receives a later epoch has lost the shard.

This is a lease (Gray and Cheriton, 1989) with the epoch as fencing token. Times are seconds of any clock that never
goes back and doesn't stop while the process does; only that two clocks run equally fast is assumed.
"""

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Final

from pointsman_contracts.limits import SHARDS

LEASE_S: Final = 0.4
"""How long a report that came back proves a lease."""
TAKEN_S: Final = 0.6
"""After this time since a keeper's last report, another preprocessor may take its shards. The sum of a lease and the
time in which a keeper's answer is still accepted (`ASKED_S`), so that every accepted answer was published before."""
_REMEMBERED: Final = 64
"""Most reports that haven't come back yet."""
_FORGOTTEN_S: Final = 60.0


@dataclass(slots=True)
class _Peer:
    """Another preprocessor's last report."""

    keeper: str
    number: int
    at: float
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Said:
    """A report sent from here."""

    number: int
    at: float
    epochs: tuple[int, ...]


class Leases:
    """The leases of one preprocessor. Pure."""

    def __init__(self, name: str, shards: int = SHARDS) -> None:
        """`name` is different for each start of a process."""
        self.run = name
        """Changes with each connection: reports between two connections never arrived here."""
        self._name: Final = name
        self._mine = [0] * shards
        """The epoch in which each shard is kept or claimed here; 0 when it isn't."""
        self._unproved: dict[int, int] = {}
        """Claimed shards, and the number of the first report that proves each when it comes back."""
        self._heard_once: set[int] = set()
        """Claimed shards whose claim came back once."""
        self._newest = [0] * shards
        """The latest epoch known."""
        self._peers: dict[str, _Peer] = {}
        self._said: deque[_Said] = deque(maxlen=_REMEMBERED)
        self._number = 0
        self._until = -inf
        self._listening = inf
        self._connection: int = -1

    @property
    def unproved(self) -> bool:
        """Whether further reports must come back before every claimed shard is kept."""
        return bool(self._unproved)

    @property
    def has_peers(self) -> bool:
        """Whether another preprocessor reported in the last minute."""
        return bool(self._peers)

    @property
    def may_prove_claim(self) -> bool:
        """Whether the next report may prove a claim: one that came back once, or isn't sent yet."""
        return any(awaited > self._number for awaited in self._unproved.values())

    @property
    def listening_since(self) -> float:
        """Time since which no report was missed; infinite before."""
        return self._listening

    def holds_shard(self, shard: int, now: float) -> bool:
        """Whether it is proved at `now` that this preprocessor alone keeps the shard."""
        return now < self._until and self._mine[shard] != 0 and shard not in self._unproved

    def epoch_of(self, shard: int) -> int:
        """The epoch in which the shard is kept or claimed here; 0 when it isn't."""
        return self._mine[shard]

    def hears_everyone(self, now: float) -> bool:
        """Whether every live keeper has reported."""
        return now - self._listening >= TAKEN_S

    def other_holder(self, shard: int, now: float) -> str:
        """The other preprocessor that keeps or claims a shard, by its last report; empty without one."""
        found, newest = "", 0
        for peer in self._peers.values():
            if peer.epochs[shard] > newest and now - peer.at < TAKEN_S:
                found, newest = peer.keeper, peer.epochs[shard]
        return found

    def knows_keeper(self, keeper: str) -> bool:
        """Whether an instance reports its shards: an earlier version doesn't."""
        return any(peer.keeper == keeper for peer in self._peers.values())

    def claim_shard(self, shard: int, now: float, known: int = 0) -> bool:
        """Claim a shard without a keeper; `known` is an epoch from another source. False when a claim isn't allowed."""
        if self._mine[shard] or not self.hears_everyone(now) or self.other_holder(shard, now):
            return False
        self._mine[shard] = self._newest[shard] = max(self._newest[shard], known) + 1
        self._prove(shard)
        return True

    def note_handover(self, shard: int, keeper: str) -> None:
        """A keeper told this preprocessor alone that it no longer keeps the shard."""
        for peer in self._peers.values():
            if peer.keeper == keeper:
                peer.epochs = (*peer.epochs[:shard], 0, *peer.epochs[shard + 1 :])

    def release_shard(self, shard: int) -> None:
        """Stop keeping the shard."""
        self._mine[shard] = 0
        self._unproved.pop(shard, None)
        self._heard_once.discard(shard)

    def make_report(self, now: float, connection: int) -> tuple[int, tuple[int, ...]]:
        """Number and epochs of the report that is now sent to all, over the connection of this number."""
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
        """The report with this number, sent from here, has arrived."""
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
            elif self.hears_everyone(now) and not self.other_holder(shard, now):
                del self._unproved[shard]
                self._heard_once.discard(shard)

    def is_own_report(self, run: str) -> bool:
        """Whether a report is from this process, over any connection."""
        return run == self._name or run.startswith(self._name + ".")

    def receive_report(self, run: str, keeper: str, number: int, epochs: tuple[int, ...], now: float) -> list[int]:
        """Another preprocessor's report has arrived. Returns the shards that are lost by it."""
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
                self.release_shard(shard)
                lost.append(shard)
        return lost

    def _yields(self, shard: int, theirs: int, run: str) -> bool:
        mine = self._mine[shard]
        if theirs != mine:
            # A paused preprocessor reports outdated shards: it will receive the later epoch.
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
