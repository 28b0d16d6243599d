"""The endpoints found for one pool."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pointsman_contracts.pool import PoolDiscovery, PoolRules
from pointsman_metrics_collector.domain.engines import Key, ScrapedEngine


@dataclass(frozen=True, slots=True)
class EngineSource:
    """The engines found by the cluster or by a file."""

    kind: str
    """As in the pool's `discovery`."""
    engines: Mapping[Key, ScrapedEngine] = field(default_factory=dict[Key, ScrapedEngine])
    problem: str = ""
    """Why that may be old or incomplete; empty when it isn't."""
    rules: PoolRules | None = None
    """None when no object has rules, or they aren't known."""
    answered: bool = True
    """Whether any answer ever came; without one, `engines` is empty because nothing is known."""

    @property
    def discovery_state(self) -> PoolDiscovery:
        """The discovery state for the pool's snapshot."""
        return PoolDiscovery(kind=self.kind, problem=self.problem, endpoints=len(self.engines))
