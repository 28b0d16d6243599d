"""The workers that one request may still go to, as columns."""

import numpy as np
from msgspec import Struct

from pointsman_plugins.scheduling.arrays import Bools, Floats, Ints
from pointsman_plugins.scheduling.dice import Dice
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.worker import Worker


class Candidates(Struct, frozen=True, eq=False, gc=False):
    """Entry `i` of every column belongs to the candidate at fleet row `row(i)`. Columns are read-only by custom."""

    fleet: Fleet
    now: float
    """Monotonic seconds."""
    dice: Dice
    """The random numbers of this decision."""
    rows: Ints | None = None
    """None while the whole fleet is in the running, which spares every column a copy."""

    @property
    def size(self) -> int:
        """Number of candidates."""
        return len(self.fleet.workers) if self.rows is None else len(self.rows)

    def keep(self, mask: Bools) -> "Candidates":
        """The candidates whose entry in `mask` is true."""
        rows = np.flatnonzero(mask) if self.rows is None else self.rows[mask]
        return Candidates(self.fleet, self.now, self.dice, rows)

    def take(self, column: Floats) -> Floats:
        """The candidates' entries of a column of the whole fleet."""
        return column if self.rows is None else column[self.rows]

    def indices(self) -> Ints:
        """Fleet rows of the candidates."""
        return np.arange(self.size) if self.rows is None else self.rows

    def row(self, index: int) -> int:
        return index if self.rows is None else int(self.rows[index])

    def worker(self, index: int) -> Worker:
        return self.fleet.workers[self.row(index)]

    def workers(self) -> list[Worker]:
        if self.rows is None:
            return self.fleet.workers
        return [self.fleet.workers[row] for row in self.rows.tolist()]

    @property
    def waiting(self) -> Floats:
        """Requests queued in the engine."""
        return self.take(self.fleet.waiting)

    @property
    def running(self) -> Floats:
        """Sequences in the running batch."""
        return self.take(self.fleet.running)

    @property
    def kv_usage(self) -> Floats:
        """Used part of the KV cache in [0,1]."""
        return self.take(self.fleet.kv_usage)

    @property
    def open(self) -> Floats:
        """Requests on the schedulers' books."""
        return self.take(self.fleet.open)

    @property
    def prefill_tokens(self) -> Floats:
        """Prompt tokens that requests on the books still have to compute."""
        return self.take(self.fleet.prefill_tokens)

    @property
    def context_tokens(self) -> Floats:
        """Prompt tokens of all requests on the books."""
        return self.take(self.fleet.context_tokens)
