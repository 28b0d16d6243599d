"""The shards of counts that are kept here: who may count in them, and the state that a new keeper continues from."""

from collections.abc import Callable
from typing import Final

from pointsman_contracts.limits import LimitAsk, LimitGrant, LimitKept, LimitShard, LimitVerdict
from pointsman_limits.domain.limits.book import Book
from pointsman_limits.domain.limits.journal import Journal
from pointsman_limits.domain.limits.lease import Leases

UNKNOWN_S: Final = 1.0
"""Maximum time between the last snapshot of a keeper that died and its death."""
CLOCKS_S: Final = 0.5
"""Maximum difference between two correct clocks; counts by a wrong clock are shifted to this one's time."""


class Keeping:
    """Those of one preprocessor, with instance `me`. Pure. Times are unix seconds of a clock that never goes
    back, and goes on while the process is stopped."""

    def __init__(self, me: str, name: str) -> None:
        self.me: Final = me
        self.leases: Final = Leases(name)
        self.journal: Final = Journal(me)
        self.books: Final[dict[int, Book]] = {}
        """Counts of shards that were proved to be kept here; a lease may have run out since."""
        self._given: Final[dict[int, tuple[LimitShard, str, int]]] = {}
        """Shards that were handed over, with the giver, and the epoch of the claim since."""
        self._known: Final[dict[int, int]] = {}
        """For each book, the number of its last grant when it was taken."""
        self.on_grant: Callable[[], None] = _nothing
        """Called when there is a grant to publish."""
        self._grants: list[LimitGrant] = []
        self._retold: list[LimitGrant] = []
        self._runs: set[str] = set()

    @property
    def has_unpublished(self) -> bool:
        """Whether any grant hasn't been published yet."""
        return bool(self._grants or self._retold)

    def count_request(self, book: Book, ask: LimitAsk, now: float) -> LimitVerdict:
        """Count a request in a book whose lease was checked at `now`. Without peers, the grant isn't published."""
        before = book.granted
        verdict = book.ask_limit(ask, now)
        if book.granted > before:
            # A shard may return to its giver before it is saved, and a preprocessor that starts now needs the grant.
            grant = LimitGrant(number=book.granted, at=now, ask=ask)
            self.journal.remember_grant(grant, now)
            if self.leases.has_peers:
                self._grants.append(grant)
                self.on_grant()
        return verdict

    def make_report(self, now: float, connection: int) -> LimitKept:
        """The shards kept here, to publish over the connection of this number, after the grants."""
        number, epochs = self.leases.make_report(now, connection)
        return LimitKept(keeper=self.me, run=self.leases.run, number=number, at=now, epochs=epochs)

    def take_unpublished(self, now: float) -> LimitKept:
        """The grants to publish to peers."""
        grants, self._grants = tuple(self._grants), []
        retold, self._retold = tuple(self._retold), []
        return LimitKept(keeper=self.me, run=self.leases.run, number=0, at=now, grants=grants, retold=retold)

    def receive_report(self, kept: LimitKept, now: float) -> list[int]:
        """Take a preprocessor's report of its shards. Returns the shards that this one no longer keeps."""
        if self.leases.is_own_report(kept.run):
            if kept.run == self.leases.run and kept.epochs:
                self.leases.heard_again(kept.number, now)
            return []
        self.journal.note_keeper_clock(kept.keeper, kept.run, kept.at, now)
        if kept.run not in self._runs:
            self._runs.add(kept.run)
            self._retold = self.journal.recent_grants(now)
        for granted in self.journal.note_grants(kept.keeper, kept.grants, now):
            book = self.books.get(granted.ask.shard)
            # A keeper was stopped after it had counted, and its message arrives only now.
            if book is not None and granted.number > self._known[granted.ask.shard]:
                book.replay_grant(granted)
        self.journal.note_grants(kept.keeper, kept.retold, now)
        lost = self.leases.receive_report(kept.run, kept.keeper, kept.number, kept.epochs, now) if kept.epochs else []
        return [shard for shard in lost if self.books.pop(shard, None) is not None]

    def is_given(self, shard: int) -> bool:
        """Whether `take` would continue from a state that was handed over."""
        return shard in self._given and self._given[shard][2] == self.leases.epoch_of(shard)

    def take_book(self, shard: int, saved: LimitShard | None, now: float) -> tuple[Book, float | None]:
        """The book of a shard that was just proved to be kept here, and the time since which ends of requests may be
        missing in it; None when no counts were known. `saved` is the last snapshot."""
        handed_over = self.is_given(shard)
        given, giver, _ = self._given.pop(shard, (None, "", 0))
        if not handed_over:
            given, giver = None, ""
        state = given or saved
        book = self.books[shard] = Book(shard)
        since = None
        if state is not None:
            at = state.at_ms / 1000
            ahead_s = self._ahead_s(giver or state.keeper, at, now, given=given is not None)
            complete = given is not None or not state.keeper
            if complete or self.journal.continues_snapshot(state, self.leases.listening_since):
                unknown_s = 0.0
            else:
                unknown_s = min(max(0.0, now - at), UNKNOWN_S)
            book.take_over(state, unknown_s, ahead_s)
            since = at - ahead_s
        for granted in self.journal.grants_after(shard, book.granted):
            book.replay_grant(granted)
            since = granted.at if since is None else since
        self._known[shard] = book.granted
        return book, since

    def hand_over_shard(self, shard: int, to: str, now: float) -> LimitShard | None:
        """Hand a shard over; None when it isn't provably kept here."""
        if not self.leases.holds_shard(shard, now) or shard not in self.books:
            return None
        state = self.books.pop(shard).build_snapshot(to, now, self.leases.epoch_of(shard))
        self.leases.release_shard(shard)
        return state

    def accept_handover(self, state: LimitShard, giver: str, now: float) -> None:
        """A keeper handed a shard over: claim it, unless another preprocessor has."""
        self.leases.note_handover(state.shard, giver)
        if self.leases.claim_shard(state.shard, now, state.epoch):
            self._given[state.shard] = (state, giver, self.leases.epoch_of(state.shard))

    def _ahead_s(self, keeper: str, at: float, now: float, *, given: bool) -> float:
        """How far the clock of a state is ahead that was written at `at`."""
        known = self.journal.ahead_s(keeper)
        if known is not None:
            return known
        # A handed-over state is as old as its message. No snapshot comes from the future.
        ahead_s = at - now if at > now or given else 0.0
        return 0.0 if abs(ahead_s) < CLOCKS_S else ahead_s


def _nothing() -> None:
    return
