"""A linear model that learns from one observation at a time."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pointsman_plugins.scheduling.arrays import Floats


class RecursiveLeastSquares:
    """`y ≈ x · coefficients`, with exponential forgetting (Haykin, Adaptive Filter Theory, ch. 13). Features should be
    of the order of 1."""

    def __init__(self, prior: Sequence[float], deviations: Sequence[float], forgetting: float = 0.998) -> None:
        """`prior` is where the coefficients begin, `deviations` how far from there each may lie, relative to the noise
        of the observations. An observation `n` steps back weighs `forgetting ** n`.

        Products are summed without BLAS, whose kernels round differently on different processors: a flight log that one
        machine recorded replays bit for bit on another."""
        self.coefficients: Floats = np.array(prior, dtype=np.float64)
        self.observations = 0
        self._variance: Floats = np.diag(np.array(deviations, dtype=np.float64) ** 2)
        self._ceiling: Final = float(np.max(self._variance)) * 100.0
        self._forgetting: Final = forgetting

    def learn_sample(self, features: Floats, value: float) -> None:
        """Take one observation in."""
        gain = (self._variance * features).sum(axis=1)
        gain /= self._forgetting + float((features * gain).sum())
        self.coefficients += gain * (value - float((features * self.coefficients).sum()))
        variance = (self._variance - np.outer(gain, (features * self._variance).sum(axis=1))) / self._forgetting
        # Forgetting without news lets the variance grow without bound; then one outlier would rule.
        if float(variance.trace()) < self._ceiling:
            self._variance = (variance + variance.T) / 2.0
        self.observations += 1

    def predict(self, features: Floats) -> Floats:
        """Values for rows of features, [rows, features] → [rows]."""
        return (features * self.coefficients).sum(axis=-1)
