"""The regret of decisions: what each candidate would have cost, with what is known once the request has ended.

Shadows of the engines follow every request that was sent, by whichever scheduler. The formula is the scheduler's
(`formula`), with facts in place of expectations:

    output   the real length of the answer
    rates    as the pass model has learnt them since
    r        for each engine, the requests that did come to it before this one's first token
    free_at  for each engine, the first token that did end the pass in flight, where one reported it

    cost     = formula / w, so that one millisecond is one request's wait of one millisecond for its first token
    regret   = cost of the chosen engine - least cost of any candidate
"""

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from pointsman_delay.few_delays import delays
from pointsman_delay.formula import BOUNDLESS, EngineFigures, ask, delay, stand
from pointsman_delay.pass_model import Rates
from pointsman_delay.pass_size import PassSizeSearch
from pointsman_delay.sent import Sent
from pointsman_plugins.scheduling.arrays import FEW

BATCH_TOKENS: Final = 8192
FIRST_TOKEN_WEIGHT: Final = 16.0
"""Both as of the producer `delay-prediction`."""
_UNSEEN_MS: Final = 60_000.0
"""A worker that no decision has seen for this long is forgotten."""
_LOST_MS: Final = 3_600_000.0
"""A request whose end didn't come in this time is forgotten."""


K = TypeVar("K", bound=Hashable)
"""The identity of a request."""


class EngineThen(NamedTuple):
    """One engine at the moment of a decision."""

    worker: str
    uncached: int
    """Prompt tokens that it would have had to compute."""
    came: int
    """Requests that were sent to it between the decision and this request's first token."""
    figures: EngineFigures
    """With the end of its pass in flight as it turned out."""


class JudgedDecision(NamedTuple, Generic[K]):
    """The candidates of one decision, once its request has ended."""

    key: K
    at: float
    prompt: int
    output: int
    candidates: Sequence[EngineThen]
    costs_us: Sequence[int]
    """Cost of each candidate, in microseconds."""


class Scale(NamedTuple):
    """The inputs of a cost, beside candidate and request."""

    rates: Rates
    others: float
    """Expected answer of other requests, in tokens."""
    budget: float
    """Prompt tokens that one pass computes."""
    first_token: float
    """w."""


def costs_us(candidates: Sequence[EngineThen], at: float, prompt: int, output: int, scale: Scale) -> list[int]:
    """The cost of each candidate, in microseconds."""
    rates, others, budget, weight = scale
    terms = ask(
        now=at,
        prompt=float(prompt),
        output=float(output),
        others=others,
        budget=budget,
        first_token=weight,
        ahead=0.0,
        spared=0.0,
        rates=rates,
    )
    held = [float(prompt - each.uncached) for each in candidates]
    came = [weight * each.came for each in candidates]
    if len(candidates) <= FEW:
        engines = [stand(each.figures, budget, rates) for each in candidates]
        # `there` and what is to come are prices of the same work.
        engines = [engine._replace(there=engine.there + price) for engine, price in zip(engines, came, strict=True)]
        costs = delays(engines, held, prompt, 0.0, terms)
    else:
        columns = np.array([each.figures for each in candidates], dtype=np.float64).T
        engine = stand(tuple(columns), budget, rates)
        engine = engine._replace(there=engine.there + np.array(came))
        hit = np.array(held)
        costs = delay(engine, prompt - hit, hit, None, terms).tolist()
    return [round(cost / weight * 1000.0) for cost in costs]


class _Open:
    """A decision whose request hasn't ended."""

    __slots__ = ("at", "ended", "figures", "first", "held", "output", "prompt", "reporters", "workers")

    def __init__(self, at: float, prompt: int, workers: Sequence[str], held: list[int]) -> None:
        self.at: Final = at
        self.prompt: Final = prompt
        self.workers: Final = workers
        self.held: Final = held
        self.figures: list[EngineFigures] = []
        self.reporters: list[Sent | None] = []
        self.first: float | None = None
        self.output = 0


class _SeenWorker:
    """A worker, as long as decisions see it."""

    __slots__ = ("number", "seen")

    def __init__(self, number: int, seen: float) -> None:
        self.number: Final = number
        self.seen = seen


class Hindsight(Generic[K]):
    """The engines of one pool. Times are milliseconds of one clock; a time before the last one counts as that."""

    def __init__(self, batch_tokens: int = BATCH_TOKENS, first_token_weight: float = FIRST_TOKEN_WEIGHT) -> None:
        self._weight: Final = first_token_weight
        self._search: Final = PassSizeSearch(batch_tokens, first_token_weight)
        self._now = 0.0
        self._lives: dict[str, _SeenWorker] = {}
        self._rows: dict[str, int] = {}
        self._born = 0
        self._seen: Sequence[str] = ()
        """The workers of the last decision."""
        self._seen_at = 0.0
        self._arrivals: dict[str, list[float]] = {}
        """Worker → when requests were sent to it, in order."""
        self._swept = 0.0
        self._open: dict[K, _Open] = {}
        self._over: list[tuple[K, _Open]] = []
        """Requests that have ended and weren't judged yet."""

    @property
    def trusted(self) -> bool:
        """Whether the pass model predicts well enough to judge by."""
        return self._search.best.model.is_trusted

    @property
    def scale(self) -> Scale:
        """As it is known now."""
        best = self._search.best
        return Scale(best.model.rates, best.expected_output, float(best.batch_tokens), self._weight)

    def add_decision(
        self,
        key: K,
        at: float,
        prompt: int,
        workers: Sequence[str],
        matched: Sequence[float],
        chosen: str,
        *,
        told: bool = True,
    ) -> None:
        """A request was sent to `chosen`. `matched`: prompt tokens that each of `workers` holds. `told`: its first
        token will be reported."""
        now = self._tick(at)
        self._know(workers if chosen in workers else [*workers, chosen], now)
        estimator = self._search.best
        prompt = max(1, prompt)
        held = [min(int(tokens), prompt - 1) for tokens in matched]
        self._open.pop(key, None)
        opened = self._open[key] = _Open(now, prompt, workers, held)
        figures, _ = estimator.engines(now)
        rows = [self._rows[worker] for worker in workers]
        opened.figures = [figures[row] for row in rows]
        opened.reporters = [estimator.reporter(row) for row in rows]
        self._send(key, chosen, prompt, opened, now, told=told)

    def moved(self, key: K, at: float, worker: str) -> None:
        """The request goes to another worker, because one failed: it isn't judged."""
        now = self._tick(at)
        opened = self._open.pop(key, None)
        if opened is not None:
            self._know((worker,), now)
            self._send(key, worker, opened.prompt, opened, now, told=True)

    def started(self, key: K, at: float) -> None:
        """The first token came."""
        now = self._tick(at)
        self._search.started(key, now)
        opened = self._open.get(key)
        if opened is not None and opened.first is None:
            opened.first = now

    def ended(self, key: K, at: float, output: int | None) -> bool:
        """The request ended; `output`: tokens of its answer, None when that is unknown. Returns whether it will be
        judged."""
        now = self._tick(at)
        opened = self._open.pop(key, None)
        if opened is not None and opened.first is None:
            sent = self._search.best.request(key)
            opened.first = sent.started if sent is not None else None
        self._search.ended(key, now, output)
        if opened is None or opened.first is None or not output:
            return False
        opened.output = output
        self._over.append((key, opened))
        return True

    def judge(self) -> list[JudgedDecision[K]]:
        """The requests that have ended since the last call; none while the model isn't trusted."""
        over, self._over = self._over, []
        if self._now - self._swept > _UNSEEN_MS:
            self._sweep()
        if not self.trusted:
            return []
        scale = self.scale
        return [self._judged(key, opened, scale) for key, opened in over]

    def _judged(self, key: K, opened: _Open, scale: Scale) -> JudgedDecision[K]:
        candidates: list[EngineThen] = []
        for worker, held, figures, reporter in zip(
            opened.workers, opened.held, opened.figures, opened.reporters, strict=True
        ):
            if reporter is not None and reporter.started is not None:
                turned_out = figures._replace(free_at=reporter.started)
            else:
                turned_out = figures
            came = self._came(worker, opened.at, opened.first or opened.at)
            candidates.append(EngineThen(worker, opened.prompt - held, came, turned_out))
        costs = costs_us(candidates, opened.at, opened.prompt, opened.output, scale)
        return JudgedDecision(
            key=key, at=opened.at, prompt=opened.prompt, output=opened.output, candidates=candidates, costs_us=costs
        )

    def _sweep(self) -> None:
        """Forget requests whose end didn't come, and arrivals that no open decision counts."""
        self._swept = self._now
        lost = [key for key, opened in self._open.items() if self._now - opened.at > _LOST_MS]
        for key in lost:
            del self._open[key]
            self._search.ended(key, self._now, None)
        oldest = min((opened.at for opened in self._open.values()), default=self._now)
        for times in self._arrivals.values():
            del times[: bisect_right(times, oldest)]

    def _came(self, worker: str, after: float, until: float) -> int:
        """Requests sent to a worker in this time, without the one that was decided at `after`."""
        times = self._arrivals.get(worker, [])
        return bisect_right(times, until) - bisect_right(times, after)

    def _send(self, key: K, worker: str, prompt: int, opened: _Open, now: float, *, told: bool) -> None:
        held = opened.held[opened.workers.index(worker)] if worker in opened.workers else 0
        self._search.sent(self._lives[worker].number, key, now, prompt, held, told=told)
        self._arrivals.setdefault(worker, []).append(now)

    def _tick(self, at: float) -> float:
        self._now = max(self._now, at)
        return self._now

    def _know(self, workers: Sequence[str], now: float) -> None:
        """Lay the estimator out when a worker is new, or was not seen for long."""
        self._seen_at = now
        if workers == self._seen:
            return
        self._mark_seen()
        self._seen = workers
        if any(worker not in self._lives for worker in workers):
            self._mark_seen()
            self._lives = {worker: life for worker, life in self._lives.items() if now - life.seen <= _UNSEEN_MS}
            for worker in workers:
                if worker not in self._lives:
                    self._born += 1
                    self._lives[worker] = _SeenWorker(self._born, now)
            self._rows = {worker: row for row, worker in enumerate(self._lives)}
            self._search.lay_out([(life.number, BOUNDLESS) for life in self._lives.values()])

    def _mark_seen(self) -> None:
        for worker in self._seen:
            life = self._lives.get(worker)
            if life is not None:
                life.seen = self._seen_at
