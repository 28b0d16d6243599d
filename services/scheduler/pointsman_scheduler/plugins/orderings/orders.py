"""Which request of a flow goes first."""

from typing import ClassVar

from pydantic import Field

from pointsman_core.units import PositiveDuration
from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.flow_control import Demand, OrderingPolicy


class FirstCome(OrderingPolicy):
    """First come, first served."""

    type_name: ClassVar[str] = "fcfs"

    def key(self, demand: Demand, ttl: float) -> float:
        return demand.offered_at


class EarliestDeadline(OrderingPolicy):
    """By the end of the wait: the earlier of the request's deadline and its time to live."""

    type_name = "edf"

    def key(self, demand: Demand, ttl: float) -> float:
        return min(demand.deadline, demand.offered_at + ttl)


class SloDeadlineParams(Params):
    default: PositiveDuration = 10.0
    """Time to the first token assumed for a request without an objective."""


class SloDeadline(OrderingPolicy[SloDeadlineParams]):
    """By the moment at which the first token is due."""

    type_name = "slo-deadline"

    def key(self, demand: Demand, ttl: float) -> float:
        return demand.offered_at + (self.params.default if demand.slo_ttft_s is None else demand.slo_ttft_s)


class ShortestPrefillParams(Params):
    aging: float = Field(default=1000.0, ge=0)
    """Tokens that each second of waiting is worth, so that long prompts go eventually; 0 lets them wait."""


class WeightedShortestPrefill(OrderingPolicy[ShortestPrefillParams]):
    """The fewest prompt tokens for their weight go first. Two waiting requests age alike, so their order never
    changes."""

    type_name = "weighted-shortest-prefill"

    def key(self, demand: Demand, ttl: float) -> float:
        return demand.prefill_tokens / demand.weight + self.params.aging * demand.offered_at
