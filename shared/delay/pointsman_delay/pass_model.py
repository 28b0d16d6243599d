"""How long a forward pass of an engine takes, learnt from the times that the edges observe.

A pass computes chunks of prompts, or one token for each running sequence, or both. Its duration in milliseconds is
taken as linear in seven features:

    y = a0 [it computes prompts] + a1 k + a2 k² + a3 c  +  d0 [it decodes] + d1 b + d2 K

with k the thousands of prompt tokens it computes, c the millions of token pairs between these and what came before
them (attention), b the sequences that decode and K the millions of tokens of their context. An observation is the sum
over the passes between two moments that the edge knows: first tokens, and first to last token of one answer.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from pointsman_plugins.scheduling.arrays import Floats

FEATURES: Final = 7
PREFILL, KILOTOKENS, SQUARE, PAIRS, DECODE, BATCH, CONTEXT = range(FEATURES)

_PRIOR: Final = np.array([15.0, 20.0, 0.3, 0.0, 8.0, 0.05, 40.0])
_PRIOR_DEVIATION: Final = np.array([30.0, 40.0, 1.0, 0.05, 15.0, 0.3, 80.0])
"""A mid-size model on one accelerator, and room for anything from a tenth to several times of it."""
_PRIOR_VARIANCE: Final = _PRIOR_DEVIATION**2
_FORGET: Final = 0.9995
_HUBER: Final = 3.0
"""Standard deviations. Residuals beyond lose weight in proportion."""
LEAST_BATCH_SHARE: Final = 0.01
"""Least cost of each sequence in a decode step, as a share of the step's fixed part."""
_WARM: Final = 20
_SETTLED: Final = 500
_PAUSE_MS: Final = 20.0
"""Once `_SETTLED` observations were learnt from, one in this time is enough: learning from each would cost a busy
scheduler as much as deciding."""
_MISS_GAIN: Final = 0.02
_TRUST_AFTER: Final = 24
_TRUST_BELOW: Final = 0.35
_DISTRUST_ABOVE: Final = 0.5
_KNOWN: Final = 0.25
"""A coefficient whose variance is below this share of the prior's has been observed."""


def prompt_passes(tokens: int, pairs: float, batch_tokens: int, shape: Floats) -> Floats:
    """Features of the passes that compute `tokens` prompt tokens, at most `batch_tokens` a pass. `pairs`: token pairs
    in attention; `shape`: features of passes with the same decoding sequences."""
    whole, rest = divmod(tokens, batch_tokens)
    passes = whole + (rest > 0)
    computed = shape * (passes / max(1.0, shape[PREFILL]))
    computed[PREFILL] = passes
    computed[KILOTOKENS] = tokens * 1e-3
    computed[SQUARE] = (whole * batch_tokens**2 + rest**2) * 1e-6
    computed[PAIRS] = pairs * 1e-6
    return computed


class Rates(NamedTuple):
    """The coefficients as durations in milliseconds."""

    prefill: float
    """For a pass that computes prompts."""
    linear: float
    """For a prompt token."""
    square: float
    """For the square of the pass's prompt tokens."""
    pairs: float
    """For a pair of tokens in attention."""
    decode: float
    """For a pass that decodes."""
    batch: float
    """For a sequence in it."""
    growth: float
    """For a token of their context."""

    def passes_ms(self, tokens: float, budget: float) -> float:
        """How long it takes to compute `tokens` prompt tokens, without the decoding sequences: in passes of at most
        `budget`."""
        whole, rest = divmod(tokens, budget)
        took = whole * (self.prefill + budget * (self.linear + self.square * budget))
        return took + (self.prefill + rest * (self.linear + self.square * rest) if rest else 0.0)


class PassModel:
    """Recursive least squares with forgetting, a bounded covariance and Huber weights. One for a pool.

    Products are summed without BLAS, whose kernels round differently on different processors: a flight log that one
    machine recorded replays bit for bit on another.
    """

    _believed = _SETTLED
    """Observations since it began, or began to doubt all that it had learnt; the default is of snapshots of earlier
    versions."""

    def __init__(self) -> None:
        self.observations = 0
        self._believed = 0
        self.relative_error = 1.0
        """Running mean of |predicted - observed| / observed."""
        self._coefficients = _PRIOR.copy()
        self._covariance = np.diag(_PRIOR_VARIANCE)
        self._miss = 0.0
        self._trusted = False
        self._learnt_at = -math.inf
        self._unpack()

    def _unpack(self) -> None:
        self.weights: Floats = np.maximum(self._coefficients, 0.0)
        # A sequence more in the batch is never free, even where the noise hides what it costs; without this, short
        # requests would pile up on one of many idle engines.
        self.weights[BATCH] = max(self.weights[BATCH], LEAST_BATCH_SHARE * self.weights[DECODE])
        prefill, linear, square, pairs, decode, batch, growth = self.weights.tolist()
        self.rates = Rates(
            prefill=prefill,
            linear=linear * 1e-3,
            square=square * 1e-6,
            pairs=pairs * 1e-6,
            decode=decode,
            batch=batch,
            growth=growth * 1e-6,
        )
        """Another object whenever anything was learnt."""

    @property
    def is_trusted(self) -> bool:
        """Whether predictions are good enough to decide by; with hysteresis."""
        if self._trusted:
            self._trusted = self.relative_error < _DISTRUST_ABOVE
        else:
            self._trusted = self._believed >= _TRUST_AFTER and self.relative_error < _TRUST_BELOW
        return self._trusted

    @property
    def was_trusted(self) -> bool:
        """`trusted` as it was when it was last read. Reading this changes nothing."""
        return self._trusted

    @property
    def knows_decode(self) -> bool:
        """Whether answers have shown how long decode steps take. First tokens alone, by which the model may be trusted,
        don't."""
        return float(self._covariance.item(DECODE, DECODE)) < _KNOWN * float(_PRIOR_VARIANCE.item(DECODE))

    def predict_ms(self, features: Floats) -> float:
        """Milliseconds, at least 1."""
        return max(1.0, float(np.add.reduce(self.weights * features)))

    def predict_pass_ms(self, features: tuple[float, ...]) -> float:
        """The same, to the last bit, in a third of the time: the scheduler asks it for every request."""
        a0, a1, a2, a3, d0, d1, d2 = self.weights.tolist()
        computes, k, square, c, decodes, b, context = features
        return max(1.0, a0 * computes + a1 * k + a2 * square + a3 * c + d0 * decodes + d1 * b + d2 * context)

    def wants_observation(self, now: float) -> bool:
        """Whether an observation at this time, in milliseconds, should be learnt from; asking counts as learning."""
        if self.observations >= _SETTLED and now - self._learnt_at < _PAUSE_MS:
            return False
        self._learnt_at = now
        return True

    def learn_pass(self, features: Floats, observed_ms: float, deviation_ms: float) -> None:
        """One observation whose noise has this standard deviation."""
        residual = observed_ms - float((self._coefficients * features).sum())
        self.observations += 1
        self._believed += 1
        relative = min(abs(residual) / max(observed_ms, 1.0), 3.0)
        self.relative_error += max(0.02, 1.0 / self._believed) * (relative - self.relative_error)
        size = abs(residual) / deviation_ms
        weight = 1.0 if size < _HUBER or self._believed < _WARM else _HUBER / size
        spread = (self._covariance * features).sum(axis=1)
        gain = spread / (deviation_ms**2 / weight * _FORGET + float((features * spread).sum()))
        self._coefficients = self._coefficients + gain * residual
        self._covariance = (self._covariance - gain[:, None] * spread) / _FORGET
        variances = self._covariance.diagonal()
        if (variances > _PRIOR_VARIANCE).any():
            # The variance of a direction without observations must not grow without bound while it is forgotten.
            shrink = np.sqrt(np.minimum(1.0, _PRIOR_VARIANCE / variances))
            self._covariance = self._covariance * (shrink[:, None] * shrink)
        if self._believed >= _TRUST_AFTER and self.relative_error > _DISTRUST_ABOVE:
            # A few misleading observations have made the model certain of wrong coefficients. It needs hundreds of
            # others to leave them with this small covariance, and about twenty with the prior's.
            self._covariance = np.diag(_PRIOR_VARIANCE)
            self._believed = 0
        self._unpack()

    def common_miss(self, miss: float) -> float:
        """The running mean of the logarithm of observed over predicted, with one more."""
        self._miss += _MISS_GAIN * (miss - self._miss)
        return self._miss

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """The decode part of one pass; 0 without a batch."""
        rates = self.rates
        return rates.decode + rates.batch * batch + rates.growth * context_tokens if batch > 0 else 0.0
