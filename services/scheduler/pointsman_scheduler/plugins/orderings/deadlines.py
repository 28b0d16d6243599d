"""`edf` and `slo-deadline`: the most urgent first."""

from pointsman_core.units import PositiveDuration
from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.flow_control import Demand, OrderingPolicy


class EarliestDeadline(OrderingPolicy):
    """By the end of the wait: the request's deadline or its time to live, whichever is first."""

    type_name = "edf"

    def key(self, demand: Demand, ttl: float) -> float:
        return min(demand.deadline, demand.offered_at + ttl)


class SloDeadlineParams(Params):
    default: PositiveDuration = 10.0
    """Time to the first token that a request without an objective is given."""


class SloDeadline(OrderingPolicy[SloDeadlineParams]):
    """By the moment at which the first token is due."""

    type_name = "slo-deadline"

    def key(self, demand: Demand, ttl: float) -> float:
        return demand.offered_at + (self.params.default if demand.slo_ttft_s is None else demand.slo_ttft_s)
