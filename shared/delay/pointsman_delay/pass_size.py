"""How many prompt tokens the engines take up in one pass: the size that explains best what they do.

Engines don't report it, and a pool's shadows follow them only when both cut prompts alike. While
predictions are poor, a rival with another size gets the same requests; when it predicts better, it takes over, and
the search goes on from there. Sizes are the configured one times powers of two: a smaller error costs little. A search
tries no size twice, then it pauses: where answers fit no size, a rival that knows only the last requests often seems
better, and sizes would take over from each other without end.
"""

from collections.abc import Hashable, Sequence
from copy import deepcopy
from typing import Final

from pointsman_contracts.scheduling import LegsForecast
from pointsman_delay.estimator import DelayEstimator
from pointsman_delay.handover import Handovers, LegPrompt, Pair, Weights, weigh
from pointsman_delay.token_pace import LEAST_SHARE, TokenPace, TokenPaces, prompt_share

LEAST_TOKENS: Final = 256
MOST_TOKENS: Final = 65536
_POOR: Final = 0.05
"""A mean error above which another size is worth trying."""
_WARM: Final = 150
"""Observations that a rival learns from before its errors count."""
_TRIAL: Final = 500
_BETTER: Final = 0.95
"""A rival takes over when its error is below this fraction of the other's."""
_STEPS: Final = (0.5, 2.0, 0.25, 4.0, 0.125, 8.0)
"""Sizes of rivals, relative to the best. When the best is off by a lot, its neighbours may be no better."""
_SETTLED: Final = 400
"""Observations before the first trial."""
_PAUSE: Final = 4000
"""Observations until the next search; doubled each time that no rival was better."""
_LONGEST_PAUSE: Final = 100_000


class DelayForecast:
    """Predicts: a producer that keeps shadows of engines."""

    estimator: "PassSizeSearch"


class PassSizeSearch:
    """`DelayEstimator` with a pass size that is searched for; the answers are those of `best`."""

    def __init__(self, batch_tokens: int, first_token_weight: float) -> None:
        self._weight: Final = first_token_weight
        self.best = DelayEstimator(batch_tokens, first_token_weight)
        self._told: tuple[DelayEstimator, ...] = (self.best,)
        """The estimators that get the requests: the best, and its rival during a trial."""
        self._workers: Sequence[tuple[int, float]] = ()
        self._tried = {batch_tokens}
        """Sizes that this search has tried."""
        self._next_trial = _SETTLED
        """Number of observations of the best."""
        self._pause = _PAUSE
        self._errors = [0.0, 0.0]
        """Errors of the best and the rival, summed over the trial."""
        self.handovers: Final = Handovers()
        """Learnt times of KV caches that go from one engine to another."""
        self.paces: Final = TokenPaces()

    def copy(self) -> "PassSizeSearch":
        """One that answers the same, and that can be asked without a trace in this one."""
        memo: dict[int, object] = {}
        for each in self._told:
            each.skip_requests(memo)
        return deepcopy(self, memo)

    def lay_out(self, workers: Sequence[tuple[int, float]]) -> None:
        """Set the workers; see `DelayEstimator.lay_out`."""
        self._workers = workers
        for each in self._told:
            each.lay_out(workers)

    def sent(self, life: int, key: Hashable, now: float, prompt: int, hit: int, *, told: bool = True) -> None:
        """A request was sent; see `DelayEstimator.sent`."""
        for each in self._told:
            each.sent(life, key, now, prompt, hit, told=told)

    def started(self, key: Hashable, now: float) -> None:
        """The first token came; see `DelayEstimator.started`."""
        for each in self._told:
            each.started(key, now)

    def ended(self, key: Hashable, now: float, output_tokens: int | None) -> None:
        """A request ended; see `DelayEstimator.ended`."""
        told = self._told
        if len(told) > 1:
            for each in told:
                each.ended(key, now, output_tokens)
            self._judge(*told)
            return
        best = self.best
        best.ended(key, now, output_tokens)
        if best.model.observations >= self._next_trial:
            self._try_another()

    def await_prompt(self, key: Hashable, now: float, prompt: int) -> None:
        """Another engine computes a request's prompt; see `DelayEstimator.await_prompt`."""
        for each in self._told:
            each.await_prompt(key, now, prompt)

    def handed_over(self, leg: Hashable, answer: Hashable, at: float, now: float) -> None:
        """The answer of a request began now, whose prompt the engine of its leg had computed `at` this earlier time.
        No-op where either is unknown."""
        best = self.best
        first, second = best.place_of(leg), best.place_of(answer)
        request = best.request(answer)
        if first is not None and second is not None and request is not None:
            shadow = second[1]
            step_ms = best.model.decode_ms(shadow.decoding + 1, shadow.context + request.prompt) * shadow.speed
            self.handovers.learn_handover((first[0], second[0]), request.prompt, max(0.0, now - at - step_ms))
        for each in self._told:
            each.handed_over(leg, at)

    def weigh(
        self, rows: tuple[int, int], lives: Pair, prompt: LegPrompt, now: float, *, max_output: int | None, pause: float
    ) -> LegsForecast:
        """The request's cost on one engine and on two: see `handover.weigh`, and `DelayEstimator.terms`."""
        best = self.best
        figures, _ = best.engines(now)
        terms = best.terms(prompt.tokens, max_output, now, min(figures[row].queued for row in rows))
        weights = Weights(self.handovers.predict_ms(lives, prompt.tokens), pause)
        return weigh(best, rows, prompt, terms, weights)

    def step_ms(self, row: int, now: float) -> float:
        """How long a decode step of this worker takes."""
        figures, _ = self.best.engines(now)
        at = figures[row]
        return self.best.model.decode_ms(at.decoding, at.context) * at.speed

    def pace_prompts(self, life: int, key: Hashable, itl: float | None, prompt: int, uncached: int, now: float) -> None:
        """A request was sent: its prompt counts where answers are promised a time between tokens, and so does its own
        promise `itl`, if it can be kept."""
        if itl is not None and prompt_share(self.step_with(life, prompt, alone=True), itl) < LEAST_SHARE:
            itl = None
        best, at = self.best, self.best.read_figures(life, 0.0)
        took = best.model.rates.passes_ms(uncached, float(best.batch_tokens)) * at.speed
        step = best.model.decode_ms(at.decoding, at.context) * at.speed
        self.paces.note_sent(life=life, key=key, itl=itl, prompt_ms=took, now=now, step=step)

    def list_paces(self) -> list[TokenPace | None]:
        """For each worker; empty when no answer is promised a time between tokens."""
        return [self.paces.of_engine(life) for life, _ in self._workers] if self.paces else []

    def step_with(self, life: int, prompt: int | None = None, *, alone: bool = False) -> float:
        """A decode step of a worker, with one more answer to such a prompt in its batch. `alone`: and no other."""
        at, rates = self.best.read_figures(life, 0.0), self.best.model.rates
        batch, context = (0.0, 0.0) if alone else (at.decoding + at.queued, at.carried)
        if prompt is not None:
            batch, context = batch + 1.0, context + prompt
        return (rates.decode + rates.batch * batch + rates.growth * context) * at.speed

    def predict_token_ms(self, life: int, now: float) -> float:
        """The time between two tokens at a worker, when all requests there have joined its batch."""
        step, pace = self.step_with(life), self.paces.of_engine(life)
        return step if pace is None else pace.token_ms(now, step)

    def _try_another(self) -> None:
        best = self.best
        if best.model.relative_error < _POOR:
            self._next_trial = best.model.observations + _SETTLED
            return
        sizes = (int(best.batch_tokens * step) for step in _STEPS)
        tokens = next((each for each in sizes if LEAST_TOKENS <= each <= MOST_TOKENS and each not in self._tried), None)
        if tokens is None:
            self._tried = {best.batch_tokens}
            self._next_trial = best.model.observations + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            return
        self._tried.add(tokens)
        rival = DelayEstimator(tokens, self._weight)
        rival.lay_out(self._workers)
        # Otherwise all sizes but the first would begin with a handicap where engines differ.
        rival.speeds = best.speeds
        self._errors = [0.0, 0.0]
        self._told = (best, rival)

    def _judge(self, best: DelayEstimator, rival: DelayEstimator) -> None:
        observations = rival.model.observations
        if observations < _WARM:
            return
        self._errors[0] += best.model.relative_error
        self._errors[1] += rival.model.relative_error
        if observations < _TRIAL:
            return
        self._told = (best,)
        if self._errors[1] < _BETTER * self._errors[0]:
            rival.inherit_learning(best)
            self.best = rival
            self._told = (rival,)
            self._pause = _PAUSE
        self._next_trial = self.best.model.observations
