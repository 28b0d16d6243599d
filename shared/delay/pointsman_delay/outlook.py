"""The engines of a pool at one moment, with planned requests added: finds where one more would cost least.

Of the requests planned for an engine, those that go before one more delay its first token, and it delays the first
tokens of those that go after it. Taken longest first and served shortest first, each request is placed where the sum of
all first tokens grows least (the rule of minimal mean flow time on machines of different speed; Horowitz and Sahni,
"Exact and approximate algorithms for scheduling nonidentical processors", J. ACM 23, 1976).
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from pointsman_delay.estimator import DelayEstimator, worth_of_a_copy
from pointsman_delay.few_delays import delays
from pointsman_delay.formula import EngineDelay, EngineFigures, stand
from pointsman_delay.pass_model import Rates
from pointsman_plugins.scheduling.arrays import Floats

_queued: Final = itemgetter(EngineFigures._fields.index("queued"))


class Outlook:
    """A copy: the shadows stay as they are. Times are milliseconds; rows are those of the last `lay_out`."""

    def __init__(self, estimator: DelayEstimator, now: float) -> None:
        self._estimator: Final = estimator
        self._now: Final = now
        figures, rates = estimator.engines(now)
        self.rates: Final[Rates] = rates
        self.budget: Final = float(estimator.batch_tokens)
        self.first_token_weight: Final = estimator.first_token_weight
        self.base: Final[Sequence[EngineFigures]] = tuple(figures)
        """The engines' figures, without the added requests."""
        self._figures: list[EngineFigures] = []
        self._standings: list[EngineDelay[float]] = []
        """Delays from `_figures`; both are made on first use."""
        self._stale: Final[set[int]] = set()
        """Rows whose requests have changed since: most plans end before anything asks for them again."""
        self._before: Final[dict[int, list[float]]] = {}
        """Row → tokens to compute of each added request that goes before the next one that is placed."""
        self._after: Final[dict[int, list[float]]] = {}
        """Likewise of those that go after it."""
        self._prompts: Final[dict[int, list[int]]] = {}
        """Row → prompt tokens of each added request."""

    def costs(
        self, prompt: int, matched: Floats, max_output: int | None, uses: float, rows: Sequence[int] | None
    ) -> list[float]:
        """Like `DelayEstimator.costs`, for these rows or all. `uses`: of the longest prefix that any worker holds."""
        held: list[float] = matched.tolist()
        best, most = max(held), prompt - 1.0
        if best > most:
            best, held = most, [min(tokens, most) for tokens in held]
        worth = worth_of_a_copy(uses, held.count(best)) if uses else 0.0
        if not self._standings:
            self._figures = [*self.base]
            self._standings = [*self._estimator.standings()]
        while self._stale:
            self._update(self._stale.pop())
        figures, standings = self._figures, self._standings
        if rows is not None:
            held = [held[row] for row in rows]
            figures, standings = [figures[row] for row in rows], [standings[row] for row in rows]
        terms = self._estimator.terms(prompt, max_output, self._now, min(map(_queued, figures)))
        return delays(standings, held, prompt, worth, terms)

    def add(self, row: int, uncached: float, prompt: int, *, before: bool) -> None:
        """Add a request that waits for an engine. `before`: it goes before the requests that are placed from now on;
        otherwise they go before it."""
        (self._before if before else self._after).setdefault(row, []).append(uncached)
        self._prompts.setdefault(row, []).append(prompt)
        self._stale.add(row)

    def remove_planned(self, row: int, uncached: float, prompt: int) -> None:
        """Remove a request that was added with `before`."""
        self._before[row].remove(uncached)
        self._prompts[row].remove(prompt)
        self._stale.add(row)

    def close(self) -> None:
        """From now on requests that are placed go after all those that were added."""
        for row, tokens in self._after.items():
            self._before.setdefault(row, []).extend(tokens)
            tokens.clear()
            self._stale.add(row)

    def _update(self, row: int) -> None:
        base, before, after, prompts = self.base[row], self._before.get(row), self._after.get(row), self._prompts[row]
        carried = base.carried
        for prompt in prompts:
            carried += prompt
        at = base._replace(queued=base.queued + len(prompts), carried=carried)
        if before:
            waiting = base.waiting + sum(before)
            whole, last = divmod(waiting, self.budget)
            covered = shared = 0.0
            for tokens in reversed(before):
                if covered >= last:
                    break
                shared += 1.0
                covered += tokens
            at = at._replace(waiting=waiting, whole=whole, last=last, shared=shared)
        standing = stand(at, self.budget, self.rates)
        if after:
            # Each of them waits for its first token by the time that the work takes.
            standing = standing._replace(there=standing.there + self.first_token_weight * len(after))
        self._figures[row], self._standings[row] = at, standing

    def step_ms(self, row: int) -> float:
        """A decode step of the running batch."""
        at, rates = self.base[row], self.rates
        return (rates.decode + rates.batch * at.decoding + rates.growth * at.context) * at.speed if at.decoding else 0.0
