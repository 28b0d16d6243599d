"""`weighted-shortest-prefill`: the least work for its weight first, which makes the mean wait least (Smith 1956)."""

from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import Field

from pointsman_core.plugins import Params, Plugin
from pointsman_scheduler.domain.flow_control.item import Demand
from pointsman_scheduler.domain.flow_control.points import OrderingPolicy


class ShortestPrefillParams(Params):
    aging: float = Field(default=1000.0, ge=0)
    """Tokens that each second of waiting is worth, so that long prompts go at last; 0 lets them wait."""


class WeightedShortestPrefill(OrderingPolicy):
    """Two requests that wait together age alike, so their order never changes."""

    type_name: ClassVar[str] = "weighted-shortest-prefill"
    params_type: ClassVar[type[Params]] = ShortestPrefillParams

    def __init__(self, name: str, params: ShortestPrefillParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._aging: Final = params.aging

    def key(self, demand: Demand, ttl: float) -> float:
        return demand.prefill_tokens / demand.weight + self._aging * demand.offered_at
