"""The shards of counts that are kept here: who may count in them, and what a new keeper goes on from."""

from typing import Final

from pointsman_contracts.limits import LimitAsk, LimitGrant, LimitKept, LimitShard, LimitVerdict
from pointsman_preprocessor.domain.limits.book import Book
from pointsman_preprocessor.domain.limits.journal import Journal
from pointsman_preprocessor.domain.limits.lease import Leases

UNKNOWN_S: Final = 1.0
"""Between the last snapshot of a keeper that died and its death, at most."""
CLOCKS_S: Final = 0.5
"""Between two clocks that go right; counts of one that doesn't are moved to this one's time."""


class Keeping:
    """Those of one preprocessor, with instance `me`. Pure. Times are unix seconds of a clock that never goes
    back, and goes on while the process is stopped."""

    def __init__(self, me: str, name: str) -> None:
        self.me: Final = me
        self.leases: Final = Leases(name)
        self.journal: Final = Journal(me)
        self.books: Final[dict[int, Book]] = {}
        """What is counted in shards that were proved to be kept here; the lease of one may have run out since."""
        self._given: Final[dict[int, tuple[LimitShard, str, int]]] = {}
        """What was handed over, by whom, and the epoch in which it was claimed since."""
        self._known: Final[dict[int, int]] = {}
        """Of each book: the number of the last grant in it when it was taken."""
        self._grants: list[LimitGrant] = []
        self._retold: list[LimitGrant] = []
        self._runs: set[str] = set()

    @property
    def untold(self) -> bool:
        """Whether there are grants that others have to hear of."""
        return bool(self._grants or self._retold)

    def count(self, book: Book, ask: LimitAsk, now: float) -> LimitVerdict:
        """Count a request in a book whose lease was checked at `now`. One that is alone keeps that to itself."""
        before = book.granted
        verdict = book.ask(ask, now)
        if book.granted > before:
            grant = LimitGrant(number=book.granted, at=now, ask=ask)
            # A shard may come back to its giver before it is saved, and one that starts now has to hear of it.
            self.journal.note(self.me, (grant,), now)
            if self.leases.has_peers:
                self._grants.append(grant)
        return verdict

    def say(self, now: float, connection: int) -> LimitKept:
        """What is kept here and was granted, to be sent to all over the connection of this number."""
        number, epochs = self.leases.say(now, connection)
        return self._words(now, number, epochs)

    def tell(self, now: float) -> LimitKept:
        """What was granted."""
        return self._words(now, 0, ())

    def heard(self, kept: LimitKept, now: float) -> list[int]:
        """A preprocessor said what it keeps. Returns the shards that aren't kept here any more."""
        if self.leases.said(kept.run):
            if kept.run == self.leases.run and kept.epochs:
                self.leases.heard_again(kept.number, now)
            return []
        self.journal.hears(kept.keeper, kept.run, kept.at, now)
        if kept.run not in self._runs:
            self._runs.add(kept.run)
            self._retold = self.journal.lately(now)
        for granted in self.journal.note(kept.keeper, kept.grants, now):
            book = self.books.get(granted.ask.shard)
            # A keeper was stopped after it had counted, and its words were under way until now.
            if book is not None and granted.number > self._known[granted.ask.shard]:
                book.replay(granted)
        self.journal.note(kept.keeper, kept.retold, now)
        lost = self.leases.heard(kept.run, kept.keeper, kept.number, kept.epochs, now) if kept.epochs else []
        return [shard for shard in lost if self.books.pop(shard, None) is not None]

    def take(self, shard: int, saved: LimitShard | None, now: float) -> tuple[Book, float | None]:
        """The book of a shard that was just proved to be kept here, and since when ends of requests may be missing in
        it; None where nothing was known. `saved` is the last snapshot."""
        given, giver, epoch = self._given.pop(shard, (None, "", 0))
        if epoch != self.leases.epoch(shard):
            given, giver = None, ""
        state = given or saved
        book = self.books[shard] = Book(shard)
        since = None
        if state is not None:
            at = state.at_ms / 1000
            ahead_s = self._ahead_s(giver or state.keeper, at, now, given=given is not None)
            complete = given is not None or not state.keeper
            if complete or self.journal.continues(state, self.leases.listening_since):
                unknown_s = 0.0
            else:
                unknown_s = min(max(0.0, now - at), UNKNOWN_S)
            book.take_over(state, unknown_s, ahead_s)
            since = at - ahead_s
        for granted in self.journal.after(shard, book.granted):
            book.replay(granted)
            since = granted.at if since is None else since
        self._known[shard] = book.granted
        return book, since

    def give(self, shard: int, to: str, now: float) -> LimitShard | None:
        """Hand a shard over; None when it isn't provably kept here."""
        if not self.leases.holds(shard, now) or shard not in self.books:
            return None
        state = self.books.pop(shard).snapshot(to, now, self.leases.epoch(shard))
        self.leases.release(shard)
        return state

    def given(self, state: LimitShard, giver: str, now: float) -> None:
        """A keeper handed a shard over: claim it, if nobody else does."""
        self.leases.given(state.shard, giver)
        if self.leases.claim(state.shard, now, state.epoch):
            self._given[state.shard] = (state, giver, self.leases.epoch(state.shard))

    def _words(self, now: float, number: int, epochs: tuple[int, ...]) -> LimitKept:
        grants, self._grants = tuple(self._grants), []
        retold, self._retold = tuple(self._retold), []
        run = self.leases.run
        return LimitKept(keeper=self.me, run=run, number=number, at=now, epochs=epochs, grants=grants, retold=retold)

    def _ahead_s(self, keeper: str, at: float, now: float, *, given: bool) -> float:
        """By how much the clock is ahead by which a state was written at `at`."""
        known = self.journal.ahead_s(keeper)
        if known is not None:
            return known
        # What is handed over is as old as its message. No snapshot is of a time to come.
        ahead_s = at - now if at > now or given else 0.0
        return 0.0 if abs(ahead_s) < CLOCKS_S else ahead_s
