"""How long a request may wait for its answer before its worker is suspect.

The measure is the delay model's prediction when the request was sent: the passes that its prompt and those ahead of it
fill at that worker, and for an answer that comes as a whole, its decode steps too. The pool then learns by which factor
times exceed predictions, so the limit follows the pool where the model is new or wrong, or where there is none.
"""

import math
from typing import Final, NamedTuple

from pointsman_delay import PassSizeSearch
from pointsman_delay.pass_model import PassModel
from pointsman_plugins.scheduling.worker import Hold

_BATCH_TOKENS: Final = 8192
_OUTPUT_TOKENS: Final = 200.0
"""Both stand for what the delay model learns, where a policy has none."""
_PRIOR_DEVIATION: Final = 1.0
_PRIOR_WEIGHT: Final = 2.0
"""Of the logarithm of observed over predicted, before anything was observed: a factor of 20 is no surprise."""
_GAIN: Final = 0.02
_LEAST_DEVIATION: Final = 0.5
DEVIATIONS: Final = 3.0
"""A request is overdue when the logarithm of its factor is this many standard deviations above the mean."""
DEVIATIONS_SUSPECT: Final = 2.0
"""The same at a worker that is suspect already."""
LEAST_S: Final = 2.0
"""No request is overdue earlier: an engine may pause for a collection of garbage or to capture a graph."""
LEAST_SUSPECT_S: Final = 1.0
"""The same at a worker that is suspect already."""
_KNOWN_AFTER: Final = 20.0
"""Observations before a limit is told to edges."""


class Limits(NamedTuple):
    """Factors by which times may exceed predictions, of whole answers and of streams."""

    usual: tuple[float, float]
    suspect: tuple[float, float]
    """At a worker that is suspect already."""


class Excess:
    """Mean and deviation of the logarithm of observed over predicted times."""

    __slots__ = ("count", "mean", "square")

    def __init__(self) -> None:
        self.count = _PRIOR_WEIGHT
        self.mean = 0.0
        self.square = _PRIOR_DEVIATION**2
        """Mean of the squares."""

    def learn(self, observed_ms: float, predicted_ms: float) -> None:
        """One more observation."""
        excess = math.log(max(1.0, observed_ms) / predicted_ms)
        self.count += 1.0
        gain = max(_GAIN, 1.0 / self.count)
        self.mean += gain * (excess - self.mean)
        self.square += gain * (excess * excess - self.square)

    def factor(self, deviations: float) -> float:
        """By what times exceed predictions at this many deviations above the mean."""
        deviation = max(_LEAST_DEVIATION, math.sqrt(max(0.0, self.square - self.mean**2)))
        return math.exp(min(self.mean + deviations * deviation, 20.0))


class Patience:
    """Of one pool."""

    def __init__(self) -> None:
        self.forecast: PassSizeSearch | None = None
        """The delay model of the newest policy; None for a policy without one."""
        self._prior: Final = PassModel().rates
        self._streams: Final = Excess()
        """Of times to the first byte."""
        self._wholes: Final = Excess()
        """Of answers that come as a whole."""
        self.limits = self._current()
        """As of the last `look`."""

    def predict(self, hold: Hold) -> None:
        """Note how long the request will take to its first byte, or to its end where no first byte is reported. Its
        worker's books have it already."""
        worker, forecast = hold.worker, self.forecast
        if forecast is None:
            rates, budget, speed, output = self._prior, _BATCH_TOKENS, 1.0, _OUTPUT_TOKENS
        else:
            best = forecast.best
            rates, budget, output = best.model.rates, best.batch_tokens, best.expected_output
            speed = best.speed_of(worker.life)
        ahead = max(1, worker.prefill_tokens)
        step = rates.decode + rates.batch * worker.open + rates.growth * worker.context_tokens
        passes = ahead // budget + 1
        if not hold.streamed:
            most = hold.output_tokens
            passes += min(output, most) if most else output
        hold.predicted_ms = max(1.0, (rates.passes_ms(ahead, budget) + passes * step) * speed)

    def learn(self, hold: Hold, now: float) -> None:
        """Its first byte came, or its end where no first byte is reported."""
        if hold.predicted_ms:
            excess = self._streams if hold.streamed else self._wholes
            excess.learn((now - hold.at) * 1000.0, hold.predicted_ms)

    def look(self) -> Limits:
        """Bring `limits` up to date."""
        self.limits = self._current()
        return self.limits

    def within_ms(self, hold: Hold) -> float | None:
        """How long the request may take to its first byte, or to its end where no first byte is reported; None while
        too little was observed. By the last `look`."""
        excess = self._streams if hold.streamed else self._wholes
        if excess.count < _KNOWN_AFTER:
            return None
        return round(max(LEAST_S * 1000.0, hold.predicted_ms * self.limits.usual[hold.streamed]), 1)

    def _current(self) -> Limits:
        wholes, streams = self._wholes, self._streams
        return Limits(
            (wholes.factor(DEVIATIONS), streams.factor(DEVIATIONS)),
            (wholes.factor(DEVIATIONS_SUSPECT), streams.factor(DEVIATIONS_SUSPECT)),
        )
