"""How long a request would wait on each worker, and how long it would make the others wait."""

from pointsman_scheduler.domain.delay.estimator import DelayEstimator
from pointsman_scheduler.domain.delay.pass_size import DelayForecast, PassSizeSearch

__all__ = ["DelayEstimator", "DelayForecast", "PassSizeSearch"]
