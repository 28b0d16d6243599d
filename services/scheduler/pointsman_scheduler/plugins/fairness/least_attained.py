"""`least-attained-service`: the next flow is the one with the least recent service for its weight.

Service counts in tokens, prompt once and expected output `output_weight` times, and fades by half every
`half_life` (the program-aware fairness of llm-d-router 0.10).
"""

import heapq
from typing import Annotated, Final

from pydantic import Field

from pointsman_core.units import PositiveDuration
from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.flow_control import Demand, FairnessPolicy, Turns

REBASE_AFTER: Final = 64.0
"""Half-lives after which amounts are scaled down, long before a float overflows."""
SLACK: Final = 1024


class LeastAttainedParams(Params):
    half_life: PositiveDuration = 60.0
    """Service this long ago counts half."""
    output_weight: float = Field(default=2.0, ge=0)
    """The weight of an output token, where a prompt token has 1."""
    weights: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict[str, float])
    """Flow → its share relative to others; 1 where absent."""


class LeastAttainedService(FairnessPolicy[LeastAttainedParams]):
    """Shares in tokens, by weight."""

    type_name = "least-attained-service"

    def turns(self) -> Turns:
        return _Ledger(self.params)


class _Ledger(Turns):
    """Amounts are kept as of a fixed moment. Later service counts more then, which orders flows as fading
    would, without touching those that aren't served."""

    def __init__(self, params: LeastAttainedParams) -> None:
        self._params: Final = params
        self._base = 0.0
        self._attained: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._heap: list[tuple[float, int, str]] = []
        self._pushed = 0
        self._floor = 0.0
        """Service of the flow that was served last. A flow that returns starts with at least this much, so that resting
        earns no right to a burst."""

    def enter(self, flow: str, now: float) -> None:
        self._waiting.add(flow)
        self._attained[flow] = max(self._attained.get(flow, 0.0), self._floor)
        self._push(flow)

    def leave(self, flow: str) -> None:
        self._waiting.discard(flow)
        if len(self._attained) > SLACK + 2 * len(self._waiting):
            # A flow at or below the floor can be forgotten: it would return with the floor as its amount.
            resting = [f for f, amount in self._attained.items() if f not in self._waiting and amount <= self._floor]
            if len(resting) < SLACK // 2:
                resting = [f for f in self._attained if f not in self._waiting]
            for idle in resting:
                del self._attained[idle]

    def next(self, now: float) -> str:
        while True:
            amount, _, flow = self._heap[0]
            if flow in self._waiting and amount == self._attained[flow]:
                return flow
            heapq.heappop(self._heap)

    def served(self, demand: Demand, flow: str, now: float) -> None:
        self._rebase(now)
        params = self._params
        self._floor = max(self._floor, self._attained[flow])
        tokens = max(1.0, demand.prefill_tokens + params.output_weight * demand.output_tokens)
        scale = 2.0 ** ((now - self._base) / params.half_life)
        self._attained[flow] += tokens * scale / params.weights.get(flow, 1.0)
        self._push(flow)

    def _push(self, flow: str) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self._attained[flow], self._pushed, flow))
        if len(self._heap) > SLACK + 2 * len(self._waiting):
            self._heap = [(self._attained[each], place, each) for place, each in enumerate(sorted(self._waiting))]
            heapq.heapify(self._heap)

    def _rebase(self, now: float) -> None:
        halvings = (now - self._base) / self._params.half_life
        if halvings < REBASE_AFTER:
            return
        factor = 2.0**-halvings
        self._base = now
        self._floor *= factor
        self._attained = {flow: amount * factor for flow, amount in self._attained.items()}
        self._heap = [(self._attained[flow], place, flow) for place, flow in enumerate(sorted(self._waiting))]
        heapq.heapify(self._heap)
