"""The engines of a pool at one moment, with planned requests added: finds where one more would cost least."""

from collections.abc import Sequence
from typing import Final

from pointsman_plugins.scheduling.arrays import Floats
from pointsman_scheduler.domain.delay.estimator import DelayEstimator, worth_of_a_copy
from pointsman_scheduler.domain.delay.formula import EngineDelay, EngineFigures, stand
from pointsman_scheduler.domain.delay.one_by_one import delays
from pointsman_scheduler.domain.delay.pass_model import Rates


class Outlook:
    """A copy: the shadows stay as they are. Times are milliseconds; rows are those of the last `lay_out`."""

    def __init__(self, estimator: DelayEstimator, now: float) -> None:
        self._estimator: Final = estimator
        self._now: Final = now
        figures, rates = estimator.engines(now)
        self.rates: Final[Rates] = rates
        self.budget: Final = float(estimator.batch_tokens)
        self.figures: Final[list[EngineFigures]] = list(figures)
        self._standings: list[EngineDelay[float]] = []
        """Delays from `figures`, computed on first use."""
        self._added: Final[dict[int, list[float]]] = {}
        """Row → tokens to compute of each added request, in the order in which they were added."""

    def costs(
        self, prompt: int, matched: Floats, max_output: int | None, uses: float, rows: Sequence[int] | None
    ) -> list[float]:
        """As `DelayEstimator.costs`, for these rows or all. `uses`: of the longest prefix that any worker holds."""
        held: list[float] = [min(tokens, prompt - 1.0) for tokens in matched.tolist()]
        worth = 0.0
        if uses:
            worth = worth_of_a_copy(uses, held.count(max(held)))
        if not self._standings:
            self._standings = [stand(at, self.budget, self.rates) for at in self.figures]
        figures, standings = self.figures, self._standings
        if rows is not None:
            held = [held[row] for row in rows]
            figures, standings = [figures[row] for row in rows], [standings[row] for row in rows]
        terms = self._estimator.terms(prompt, max_output, self._now, min([at.queued for at in figures]))
        return delays(standings, held, prompt, worth, terms)

    def add(self, row: int, uncached: float, prompt: int) -> None:
        """Add a request that waits at an engine, behind all that wait there."""
        at = self.figures[row]
        added = self._added.setdefault(row, [])
        added.append(uncached)
        waiting = at.waiting + uncached
        whole, last = divmod(waiting, self.budget)
        covered = shared = 0.0
        for tokens in reversed(added):
            if covered >= last:
                break
            shared += 1.0
            covered += tokens
        self.figures[row] = changed = at._replace(
            waiting=waiting,
            whole=whole,
            last=last,
            shared=shared,
            queued=at.queued + 1.0,
            carried=at.carried + prompt,
        )
        if self._standings:
            self._standings[row] = stand(changed, self.budget, self.rates)

    def prefill_ms(self, tokens: float) -> float:
        """How long a pass over so many prompt tokens takes, without the decoding sequences. More tokens than one pass
        takes are computed in several."""
        rates, budget = self.rates, self.budget
        whole, rest = divmod(tokens, budget)
        took = whole * (rates.prefill + budget * (rates.linear + rates.square * budget))
        return took + (rates.prefill + rest * (rates.linear + rates.square * rest) if rest else 0.0)

    def left_ms(self, row: int) -> float:
        """The rest of the pass with prompts that is in flight; 0 without one, and when it is overdue."""
        return max(0.0, self.figures[row].free_at - self._now)

    def step_ms(self, row: int) -> float:
        """A decode step of the running batch."""
        at, rates = self.figures[row], self.rates
        return (rates.decode + rates.batch * at.decoding + rates.growth * at.context) * at.speed if at.decoding else 0.0
