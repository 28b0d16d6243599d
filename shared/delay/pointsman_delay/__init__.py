"""How long a request would wait on each worker, and how long it would make the others wait."""

from pointsman_delay.estimator import DelayEstimator
from pointsman_delay.pass_size import DelayForecast, PassSizeSearch

__all__ = ["DelayEstimator", "DelayForecast", "PassSizeSearch"]
