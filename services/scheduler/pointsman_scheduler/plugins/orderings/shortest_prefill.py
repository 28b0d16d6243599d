"""`weighted-shortest-prefill`: the least work for its weight first, which makes the mean wait least (Smith 1956)."""

from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.flow_control import Demand, OrderingPolicy


class ShortestPrefillParams(Params):
    aging: float = Field(default=1000.0, ge=0)
    """Tokens that each second of waiting is worth, so that long prompts go at last; 0 lets them wait."""


class WeightedShortestPrefill(OrderingPolicy[ShortestPrefillParams]):
    """Two requests that wait together age alike, so their order never changes."""

    type_name = "weighted-shortest-prefill"

    def key(self, demand: Demand, ttl: float) -> float:
        return demand.prefill_tokens / demand.weight + self.params.aging * demand.offered_at
