"""Blocks of one worker in order of last use."""

import math
from array import array
from collections import deque
from collections.abc import Sequence
from itertools import compress, groupby, repeat
from operator import eq
from typing import Final, NamedTuple

from msgspec import Struct

SLACK: Final = 4096
JOINED: Final = 64
"""A use of this many blocks or fewer joins the last run if both have the same time."""


class _Run(Struct, eq=False, gc=False):
    """Blocks that were used at one time, the least recently used first."""

    stamp: int
    at: float
    blocks: "array[int]"


class FrozenRecency(NamedTuple):
    """All of a `Recency` at one moment. Runs are triples of stamp, time and blocks."""

    held: dict[int, int]
    newest: int
    logged: int
    oldest: list[int]
    oldest_run: tuple[int, float] | None
    cleaned: "list[tuple[int, float, array[int]]]"
    rest: "list[tuple[int, float, array[int]]]"
    flags: tuple[bool, bool, bool]
    """Ranked, cleaning, sealed."""


class Promise:
    """A copy of a `Recency` as it was at one moment. It is made when it is kept, or before the next change: whichever
    comes first."""

    __slots__ = ("_frozen", "_recency", "ranked")

    def __init__(self, recency: "Recency") -> None:
        self._recency: Final = recency
        self._frozen: FrozenRecency | None = None
        self.ranked: Final = recency.ranked

    def keep(self) -> FrozenRecency:
        """The copy: about 10 ns a block the first time. Not from another thread than the one that makes changes, unless
        it was called before."""
        if self._frozen is None:
            self._frozen = self._recency.keep()
        return self._frozen

    def kept(self, frozen: FrozenRecency) -> None:
        """For the table alone: it made the copy."""
        self._frozen = frozen


class Recency:
    """A table of blocks and a log of their uses. An entry of the log counts if the table says that it was the block's
    last use; the others are swept out a few at each use, so no call takes long and the log stays within about twice
    the table.

    (A dictionary kept in order by deleting and inserting would look for its first key past all that were deleted:
    taking the oldest ones out of a large one, one by one, is quadratic.)
    """

    __slots__ = (
        "_cleaned",
        "_cleaning",
        "_next",
        "_oldest",
        "_oldest_run",
        "_promise",
        "_rest",
        "_sealed",
        "_slack",
        "held",
        "logged",
        "ranked",
    )

    def __init__(self, slack: int = SLACK) -> None:
        self._slack: Final = slack
        self.ranked = False
        """For the owner: whether memory can be taken from this table."""
        self.held: Final[dict[int, int]] = {}
        """Block → stamp of the run of its last use. The owner looks blocks up here, because a method call for each
        costs more."""
        self._next = 0
        self.logged = 0
        """Entries of the log."""
        self._oldest: list[int] = []
        """The rest of the oldest run, the least recently used last."""
        self._oldest_run: _Run | None = None
        self._cleaned: deque[_Run] = deque()
        """Runs older than those in `_rest`."""
        self._rest: deque[_Run] = deque()
        self._cleaning = False
        self._sealed = False
        """Whether the last run is closed."""
        self._promise: Promise | None = None
        """The copy that is still to be made; then this is a `_Promised`."""

    def __len__(self) -> int:
        return len(self.held)

    def __contains__(self, block: int) -> bool:
        return block in self.held

    def use(self, blocks: Sequence[int], at: float) -> None:
        """These were used at this time, the last one most recently. Times never go back."""
        if not blocks:
            return
        stamps, runs, count = self.held, self._rest, len(blocks)
        if (
            runs
            and (last := runs[-1]).at == at
            and not self._sealed
            and count <= JOINED
            and last.stamp not in map(stamps.get, blocks)
        ):
            last.blocks.extend(blocks)
            stamp = last.stamp
        else:
            self._next = stamp = self._next + 1
            runs.append(_Run(stamp, at, array("Q", blocks)))
            self._sealed = False
        stamps.update(dict.fromkeys(blocks, stamp))
        self.logged = logged = self.logged + count
        if self._cleaning or logged > 2 * len(stamps) + self._slack:
            self._clean(2 * count + JOINED)

    def discard(self, block: int) -> bool:
        """Remove one. Returns whether it was in."""
        stamp = self.held.pop(block, None)
        if stamp == self._next:
            self._sealed = True  # otherwise a use in the same run would revive its former place
        return stamp is not None

    def oldest_at(self) -> float | None:
        """When the least recently used one was used; None when the table is empty."""
        run = self._find_oldest()
        return None if run is None else run.at

    def take(self, count: int, until: float = math.inf) -> list[int]:
        """Remove the `count` least recently used ones, the least recent first; fewer if the table holds fewer that
        weren't used after `until`."""
        taken: list[int] = []
        stamps = self.held
        while (left := count - len(taken)) > 0 and (run := self._find_oldest()) is not None and run.at <= until:
            some = self._oldest[-left:]
            del self._oldest[-left:]
            some.reverse()
            self.logged -= len(some)
            some = [*compress(some, map(eq, map(stamps.get, some), repeat(run.stamp)))]
            deque(map(stamps.pop, some), maxlen=0)
            taken += some
        return taken

    def take_any(self, most: int) -> list[int]:
        """Remove up to so many, whichever are quickest."""
        self._sealed = True
        held = self.held
        return [held.popitem()[0] for _ in range(min(most, len(held)))]

    def entries(self) -> list[tuple[int, float]]:
        """Each block with the time of its last use, the least recently used first."""
        runs = [*self._cleaned, *self._rest]
        if self._oldest_run is not None:
            runs.insert(0, _Run(self._oldest_run.stamp, self._oldest_run.at, array("Q", reversed(self._oldest))))
        stamps = self.held
        return [(block, run.at) for run in runs for block in run.blocks if stamps.get(block) == run.stamp]

    def restore(self, entries: list[tuple[int, float]]) -> None:
        """Replace everything by these blocks, with the times of their last use."""
        self.held.clear()
        self._oldest_run = None
        self._oldest.clear()
        self._rest.clear()
        self._cleaned.clear()
        self.logged = 0
        for at, run in groupby(sorted(entries, key=lambda entry: entry[1]), key=lambda entry: entry[1]):
            self.use([block for block, _ in run], at)

    def freeze(self) -> FrozenRecency:
        """A copy that later changes leave as it is: about 10 ns a block."""
        oldest = self._oldest_run
        return FrozenRecency(
            held=self.held.copy(),
            newest=self._next,
            logged=self.logged,
            oldest=self._oldest.copy(),
            oldest_run=None if oldest is None else (oldest.stamp, oldest.at),
            cleaned=_frozen(self._cleaned),
            rest=_frozen(self._rest),
            flags=(self.ranked, self._cleaning, self._sealed),
        )

    def promise(self) -> Promise:
        """Like `freeze`, in no time: what is copied is copied before the next change, or when the promise is kept."""
        self._promise = promise = Promise(self)
        self.__class__ = _Promised  # pyright: ignore[reportAttributeAccessIssue] - it has the same slots
        return promise

    def keep(self) -> FrozenRecency:
        """Make the promised copy."""
        promise, self._promise = self._promise, None
        self.__class__ = Recency  # pyright: ignore[reportAttributeAccessIssue] - as above
        frozen = self.freeze()
        if promise is not None:
            frozen = frozen._replace(flags=(promise.ranked, *frozen.flags[1:]))
            promise.kept(frozen)
        return frozen

    def thaw(self, frozen: FrozenRecency) -> None:
        """Replace everything by this."""
        self.held.clear()
        self.held.update(frozen.held)
        self._next, self.logged = frozen.newest, frozen.logged
        self._oldest = frozen.oldest.copy()
        self._oldest_run = None if frozen.oldest_run is None else _Run(*frozen.oldest_run, array("Q"))
        self._cleaned = deque([_Run(*run) for run in frozen.cleaned])
        self._rest = deque([_Run(*run) for run in frozen.rest])
        self.ranked, self._cleaning, self._sealed = frozen.flags

    def _find_oldest(self) -> _Run | None:
        stamps, oldest = self.held, self._oldest
        while True:
            run = self._oldest_run
            if run is not None:
                while oldest:
                    if stamps.get(oldest[-1]) == run.stamp:
                        return run
                    oldest.pop()
                    self.logged -= 1
            runs = self._cleaned or self._rest
            if not runs:
                self._oldest_run = None
                return None
            self._oldest_run = run = runs.popleft()
            alive = self._alive(run)
            self.logged -= len(run.blocks) - len(alive)
            alive.reverse()
            oldest += alive

    def _alive(self, run: _Run) -> list[int]:
        """The run's blocks that weren't used again since, by calls that cost a fifth of a loop."""
        blocks = run.blocks
        return [*compress(blocks, map(eq, map(self.held.get, blocks), repeat(run.stamp)))]

    def _clean(self, budget: int) -> None:
        """Drop dead entries from the oldest runs that this round hasn't come to."""
        self._cleaning = True
        rest, last_use = self._rest, self.held.get
        while rest and budget > 0:
            run = rest.popleft()
            blocks, stamp = run.blocks, run.stamp
            budget -= len(blocks)
            if stamp not in map(last_use, blocks):  # as it mostly is where many requests share a prompt
                self.logged -= len(blocks)
                continue
            kept = self._alive(run)
            if len(kept) < len(blocks):
                run.blocks = array("Q", kept)
                self.logged -= len(blocks) - len(kept)
            self._cleaned.append(run)
        if not rest:
            self._rest, self._cleaned = self._cleaned, deque()
            self._cleaning = False


class _Promised(Recency):
    """A table whose copy is promised: every change makes the copy first. A class of its own, so that tables without a
    promise pay nothing."""

    __slots__ = ()

    def use(self, blocks: Sequence[int], at: float) -> None:
        self.keep()
        self.use(blocks, at)

    def discard(self, block: int) -> bool:
        self.keep()
        return self.discard(block)

    def oldest_at(self) -> float | None:
        self.keep()
        return self.oldest_at()

    def take(self, count: int, until: float = math.inf) -> list[int]:
        self.keep()
        return self.take(count, until)

    def take_any(self, most: int) -> list[int]:
        self.keep()
        return self.take_any(most)

    def restore(self, entries: list[tuple[int, float]]) -> None:
        self.keep()
        self.restore(entries)

    def promise(self) -> Promise:
        self.keep()
        return self.promise()

    def thaw(self, frozen: FrozenRecency) -> None:
        self.keep()
        self.thaw(frozen)


def _frozen(runs: deque[_Run]) -> "list[tuple[int, float, array[int]]]":
    frozen = [(run.stamp, run.at, run.blocks) for run in runs]
    if frozen:  # the only one whose blocks may change in place
        stamp, at, blocks = frozen[-1]
        frozen[-1] = stamp, at, blocks[:]
    return frozen
