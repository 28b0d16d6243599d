"""What was found out about the endpoints of one pool."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pointsman_contracts.pool import PoolDiscovery, PoolRules
from pointsman_metrics_collector.domain.engines import Engine, Key


@dataclass(frozen=True, slots=True)
class Finding:
    """By the cluster or by a file."""

    kind: str
    """As in the pool's `discovery`."""
    engines: Mapping[Key, Engine] = field(default_factory=dict[Key, Engine])
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
