"""How long a request may wait for its answer before its worker is suspect.

The measure is the delay model's prediction when the request was sent: the passes that its prompt and those ahead of it
fill at that worker, and for an answer that comes as a whole, as many decode steps as the client allows. The pool then
learns by which factor times exceed predictions for the answers that came, so the limit follows the pool where the model
is new or wrong, or where there is none.

Some times can't be predicted: to the end of a whole answer without a limit, and to the first token after media. Such a
request is never `certainly_late`.
"""

import math
from typing import Final, NamedTuple

from pointsman_delay import PassSizeSearch
from pointsman_delay.pass_model import PassModel
from pointsman_plugins.scheduling.worker import NEVER, Hold

_BATCH_TOKENS: Final = 8192
"""Stands for what the delay model learns, where a policy has none."""
_PRIOR_DEVIATION: Final = 1.0
_PRIOR_WEIGHT: Final = 2.0
"""Prior of ln(observed / predicted): three deviations are a factor of 20. Its weight is in observations."""
_GAIN: Final = 0.02
_LEAST_EXCESS: Final = -3.0
"""Engines may report far more tokens than they generated: such an answer seems to have come in no time."""
_LEAST_DEVIATION: Final = 0.5
DEVIATIONS: Final = 3.0
"""A request is overdue when the logarithm of its factor is this many standard deviations above the mean."""
DEVIATIONS_SUSPECT: Final = 2.0
"""The same at a worker that is suspect already."""
LEAST_S: Final = 2.0
"""No request is overdue earlier: an engine may pause for a collection of garbage or to capture a graph."""
LEAST_SUSPECT_S: Final = 1.0
"""The same at a worker that is suspect already."""
LEAST_STANDING_S: Final = 4.0
"""How long a worker's counters stand before a request there counts as unanswered that isn't certainly late."""
LEAST_SILENT_S: Final = 10.0
"""The same for a worker that shows nothing of what it does."""
_SETTLED: Final = 500
_PAUSE_S: Final = 0.02
"""Once `_SETTLED` times were learnt from, one in this time is enough, as in `PassModel`."""
_LATE_PAUSE_S: Final = 1.0
"""Answers that take far longer than usual are learnt from this seldom, and as if they had come at that limit: an
outage ends with many of them at once, and would else be taken for the usual time."""
LEAST_ENDLESS_S: Final = 3.5
"""No stream that has begun lasts too long earlier: an engine may stand still for 3 s."""
_KNOWN_AFTER: Final = 20.0
"""Observations before a limit is told to edges."""
_FEW: Final = 20
"""Answers that must have ended before the length of one says something."""
_LONGER: Final = 2.0
"""By what an answer may exceed the longest of those that ended last."""
_FORGETTING: Final = 0.98
"""What each end leaves of the longest time that is remembered."""


class Limits(NamedTuple):
    """Factors by which times may exceed predictions, of whole answers and of streams."""

    usual: tuple[float, float]
    suspect: tuple[float, float]
    """At a worker that is suspect already."""


class Excess:
    """Mean and deviation of the logarithm of observed over predicted times."""

    __slots__ = ("count", "late_at", "learnt_at", "mean", "square")

    def __init__(self) -> None:
        self.learnt_at = self.late_at = NEVER
        self.count = _PRIOR_WEIGHT
        self.mean = 0.0
        self.square = _PRIOR_DEVIATION**2
        """Mean of the squares."""

    def learn_excess(self, observed_ms: float, predicted_ms: float) -> None:
        """One more observation."""
        excess = max(_LEAST_EXCESS, math.log(max(1.0, observed_ms) / predicted_ms))
        self.count += 1.0
        gain = max(_GAIN, 1.0 / self.count)
        self.mean += gain * (excess - self.mean)
        self.square += gain * (excess * excess - self.square)

    def factor_at(self, deviations: float) -> float:
        """By what times exceed predictions at this many deviations above the mean."""
        deviation = max(_LEAST_DEVIATION, math.sqrt(max(0.0, self.square - self.mean**2)))
        return math.exp(min(self.mean + deviations * deviation, 20.0))


class Patience:
    """How long requests of one pool wait for the first byte before their engine is suspect."""

    _ends = _FEW
    """Answers that ended, up to `_FEW`; the default is of snapshots of earlier versions."""
    _longest_s = 0.0
    """Seconds that the longest of the last ones took."""

    def __init__(self) -> None:
        self._ends = 0
        self._longest_s = 0.0
        self.forecast: PassSizeSearch | None = None
        """The delay model of the newest policy; None for a policy without one."""
        self._prior: Final = PassModel().rates
        self._streams: Final = Excess()
        """The excess of times to the first byte."""
        self._wholes: Final = Excess()
        """The excess of answers that come as a whole."""
        self.limits = self._current()
        """As of the last `look`."""

    def predict_wait(self, hold: Hold) -> None:
        """Note how long the request will take to its first token, and for each further one. Its worker's books have it
        already."""
        worker, forecast = hold.worker, self.forecast
        if forecast is None:
            rates, budget, speed = self._prior, _BATCH_TOKENS, 1.0
        else:
            best = forecast.best
            rates, budget = best.model.rates, best.batch_tokens
            speed = best.speed_of(worker.life)
        ahead = max(1, worker.prefill_tokens)
        step = rates.decode + rates.batch * worker.open + rates.growth * worker.context_tokens
        if ahead < budget:
            took = rates.prefill + ahead * (rates.linear + rates.square * ahead) + step
        else:
            took = rates.passes_ms(ahead, budget) + (ahead // budget + 1) * step
        took *= speed
        hold.predicted_ms = max(1.0, took)
        hold.step_ms = step * speed

    def learn_wait(self, hold: Hold, now: float) -> None:
        """Its first byte came, or its end where no first byte is reported."""
        if not hold.predicted_ms or hold.change.media:
            return
        excess, predicted_ms = self._streams, hold.predicted_ms
        if not hold.change.streamed:
            if hold.answer_tokens is None:
                return
            excess = self._wholes
            predicted_ms += hold.answer_tokens * hold.step_ms
        if excess.count > _SETTLED and now - excess.learnt_at < _PAUSE_S:
            return
        took_ms = (now - hold.at) * 1000.0
        longest_ms = max(LEAST_SUSPECT_S * 1000.0, predicted_ms * self.limits.suspect[hold.change.streamed])
        if took_ms > longest_ms:
            if now - excess.late_at < _LATE_PAUSE_S:
                return
            excess.late_at, took_ms = now, longest_ms
        excess.learnt_at = now
        excess.learn_excess(took_ms, predicted_ms)

    def learn_end(self, hold: Hold, now: float) -> None:
        """Its answer, streamed or not, has ended as a whole."""
        if not hold.stalled:
            self._ends = min(_FEW, self._ends + 1)
            self._longest_s = max(now - hold.at, _FORGETTING * self._longest_s)

    @property
    def knows_lengths(self) -> bool:
        """Whether enough answers have ended to say that one takes too long, though its engine computes tokens."""
        return self._ends >= _FEW

    def update_limits(self) -> Limits:
        """Bring `limits` up to date."""
        self.limits = self._current()
        return self.limits

    def within_ms(self, hold: Hold) -> float | None:
        """How long the request may take to its first byte, or to its end where no first byte is reported; None where
        that can't be predicted, or while too little was observed. By the last `look`."""
        excess = self._streams if hold.change.streamed else self._wholes
        expected_ms = expected(hold)
        if expected_ms is None or excess.count < _KNOWN_AFTER:
            return None
        return round(max(LEAST_S * 1000.0, expected_ms * self.limits.usual[hold.change.streamed]), 1)

    def is_late(self, hold: Hold, waited_s: float) -> bool:
        """Whether the request waits for far longer than its first token should take. By the last `look`."""
        suspect = hold.worker.standing.hung
        if waited_s <= (LEAST_SUSPECT_S if suspect else LEAST_S):
            return False
        return waited_s * 1000.0 > hold.predicted_ms * self._factor(hold)

    def certainly_late(self, hold: Hold, waited_s: float) -> bool:
        """Whether the request waits for far longer than all that its worker has to do until something of it is seen."""
        expected_ms = expected(hold)
        if expected_ms is None or (not hold.change.streamed and waited_s <= _LONGER * self._longest_s):
            return False
        return waited_s * 1000.0 > expected_ms * self._factor(hold)

    def is_endless(self, hold: Hold, waited_s: float) -> bool:
        """Whether a stream that has begun lasts for far longer than its longest answer should. By the last `look`."""
        longest_ms = hold.predicted_ms + hold.change.output_tokens * hold.step_ms
        least_s = max(LEAST_ENDLESS_S, _LONGER * self._longest_s)
        return waited_s > least_s and waited_s * 1000.0 > longest_ms * self.limits.usual[0]

    def _factor(self, hold: Hold) -> float:
        limits = self.limits
        return (limits.suspect if hold.worker.standing.hung else limits.usual)[hold.change.streamed]

    def _current(self) -> Limits:
        wholes, streams = self._wholes, self._streams
        return Limits(
            (wholes.factor_at(DEVIATIONS), streams.factor_at(DEVIATIONS)),
            (wholes.factor_at(DEVIATIONS_SUSPECT), streams.factor_at(DEVIATIONS_SUSPECT)),
        )


def expected(hold: Hold) -> float | None:
    """Milliseconds to its first byte, or to its longest end where no first byte is reported; None where nothing tells
    how long that takes: its prompt has media, or its answer comes as a whole and has no limit."""
    if hold.change.media:
        return None
    if hold.change.streamed:
        return hold.predicted_ms
    return hold.predicted_ms + hold.change.output_tokens * hold.step_ms if hold.change.output_tokens else None
