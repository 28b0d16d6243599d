"""`edf` and `slo-deadline`: the most urgent first."""

from collections.abc import Mapping
from typing import ClassVar, Final

from pointsman_core.plugins import Params, Plugin
from pointsman_core.units import PositiveDuration
from pointsman_scheduler.domain.flow_control.item import Demand
from pointsman_scheduler.domain.flow_control.points import OrderingPolicy


class EarliestDeadline(OrderingPolicy):
    """By the end of the wait: the request's deadline or its time to live, whichever is first."""

    type_name: ClassVar[str] = "edf"

    def key(self, demand: Demand, ttl: float) -> float:
        return min(demand.deadline, demand.offered_at + ttl)


class SloDeadlineParams(Params):
    default: PositiveDuration = 10.0
    """Time to the first token that a request without an objective is given."""


class SloDeadline(OrderingPolicy):
    """By the moment at which the first token is due."""

    type_name: ClassVar[str] = "slo-deadline"
    params_type: ClassVar[type[Params]] = SloDeadlineParams

    def __init__(self, name: str, params: SloDeadlineParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._default: Final = params.default

    def key(self, demand: Demand, ttl: float) -> float:
        return demand.offered_at + (self._default if demand.slo_ttft_s is None else demand.slo_ttft_s)
