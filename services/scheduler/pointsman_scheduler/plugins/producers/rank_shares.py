"""How much of the prompts each data-parallel rank of an engine computes.

The least delay alone lets ranks specialise: a pass costs the answers that run beside it, so a new prompt goes to the
rank with the fewest answers, and so does the next one. Then some ranks compute the prompts that none holds, and the
others answer those that they hold. All ranks of an engine have the same hardware, and many engines step them together:
the busiest one sets the pace.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from pointsman_delay import DelayEstimator
from pointsman_delay.estimator import LEAST_AHEAD
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.worker import Worker

_WINDOW_MS: Final = 30_000.0
_GAIN: Final = 6.0
"""The work of a prompt costs this part more at a rank, times the part of its time by which it computed prompts for
longer than the mean of its engine's ranks. With 4 to 10, the busiest rank computed 1.01 to 1.08 of the mean."""


class RankShares:
    """The shares of ranks, for the engines of one pool that have several. Times are milliseconds."""

    def __init__(self) -> None:
        self.has_ranks = False
        """Whether any engine has several ranks."""
        self._engines = np.zeros(0, dtype=np.intp)
        """By row: the number of its engine. A worker that is no rank is an engine of its own."""
        self._sizes: Floats = np.zeros(0)
        """By engine: its ranks."""
        self._rows: dict[int, int] = {}
        """By life."""
        self._computed: Floats = np.zeros(0)
        """By row: the time of the prompts that were sent there, fading."""
        self._at = 0.0

    def set_workers(self, workers: Sequence[Worker]) -> None:
        """Set the workers, in order."""
        numbers: dict[tuple[str, int | str], int] = {}
        engines: list[int] = []
        for worker in workers:
            own = worker.registration
            key = (own.boot_id, own.server) if own.server is not None and own.rank is not None else ("", worker.life)
            engines.append(numbers.setdefault(key, len(numbers)))
        self.has_ranks = len(numbers) < len(workers)
        if not self.has_ranks:
            return
        earlier = {life: self._computed.item(row) for life, row in self._rows.items()}
        self._rows = {worker.life: row for row, worker in enumerate(workers)}
        self._computed = np.array([earlier.get(worker.life, 0.0) for worker in workers])
        self._engines = np.array(engines, dtype=np.intp)
        self._sizes = np.bincount(self._engines).astype(np.float64)

    def note_prompt(self, life: int, uncached: int, estimator: DelayEstimator, now: float) -> None:
        """Note that a prompt was sent to a worker, which has to compute `uncached` tokens of it."""
        row = self._rows.get(life)
        if row is not None:
            if now > self._at:
                self._computed *= math.exp((self._at - now) / _WINDOW_MS)
                self._at = now
            self._computed[row] += uncached * _token_ms(estimator)

    def add_costs(self, costs: Floats, uncached: Floats, estimator: DelayEstimator, now: float) -> Floats:
        """The costs, higher at ranks that lately computed more than the others of their engine. `uncached`: tokens that
        each would have to compute."""
        if not estimator.model.is_trusted:
            return costs
        busy = self._computed * (math.exp(min(0.0, self._at - now) / _WINDOW_MS) / _WINDOW_MS)
        means = np.bincount(self._engines, busy) / self._sizes
        price = estimator.first_token_weight * (LEAST_AHEAD + 1.0) * _GAIN * _token_ms(estimator)
        return costs + price * uncached * (busy - means[self._engines])


def _token_ms(estimator: DelayEstimator) -> float:
    """One prompt token, in a full pass."""
    budget = float(estimator.batch_tokens)
    return estimator.model.rates.passes_ms(budget, budget) / budget
