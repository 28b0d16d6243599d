"""What was found out about the endpoints of one pool."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pointsman_contracts.pool import PoolDiscovery, PoolRules
from pointsman_metrics_collector.domain.engines import Key, ScrapedEngine


@dataclass(frozen=True, slots=True)
class EngineSource:
    """By the cluster or by a file."""

    kind: str
    """As in the pool's `discovery`."""
    engines: Mapping[Key, ScrapedEngine] = field(default_factory=dict[Key, ScrapedEngine])
    problem: str = ""
    """Why that may be old or incomplete; empty when it isn't."""
    rules: PoolRules | None = None
    """None when nobody says any, or they aren't known."""
    answered: bool = True
    """Whether anything was ever found out: `engines` is empty for want of an answer otherwise."""

    @property
    def told(self) -> PoolDiscovery:
        """For the pool's snapshot."""
        return PoolDiscovery(kind=self.kind, problem=self.problem, endpoints=len(self.engines))
