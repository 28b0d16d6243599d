"""The words that explain a decision of a pool to operators and clients."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np

from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.run import Removed, Run
from pointsman_plugins.scheduling.worker import Worker

_REASONS: Final = 3
"""Different reasons that one error lists."""


def not_given(everyone: Candidates, allowed: Candidates) -> Removed:
    """The workers that a trusted proxy did not name."""
    others = np.setdiff1d(everyone.indices(), allowed.indices())
    return Removed("given-worker", others, "another worker was given with the request")


def reasons_of(run: Run) -> list[str]:
    """Why the last filter removed each of the remaining endpoints."""
    removed, workers = run.removed[-1], run.candidates.fleet.workers
    rows: list[int] = removed.rows.tolist()
    return [removed.why if isinstance(removed.why, str) else removed.why(workers[row]) for row in rows]


def counted(reasons: Iterable[str]) -> str:
    """The most frequent reasons, without the names of endpoints: clients read them."""
    counts = Counter(reasons)
    words = [f"{why}, {count} times" if count > 1 else why for why, count in counts.most_common(_REASONS)]
    return "; ".join([*words, "and others"] if len(counts) > _REASONS else words)


def describe_age(worker: Worker, now: float) -> str:
    """How old the worker's load report is."""
    age = now - worker.heard
    told = f"is {age * 1000:.0f} ms old" if age != float("inf") else "never came"
    return f"the load report of {worker.name} {told}"
