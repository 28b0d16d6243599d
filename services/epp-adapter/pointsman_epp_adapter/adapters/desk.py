"""What all exchanges of this edge share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from pointsman_contracts.pool import PoolSnapshot
from pointsman_edge.deciding.decider import Decider
from pointsman_edge.deciding.engine_load import EngineLoad
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.reviewing.ways_back import WaysBack
from pointsman_edge.taking_in.held_bodies import HeldBodies
from pointsman_edge.taking_in.request_headers import HeaderRules
from pointsman_edge.taking_in.request_id import RequestIds
from pointsman_edge.taking_in.trust import TrustedProxies
from pointsman_edge.telling.announcer import Announcer
from pointsman_edge.telling.exchange import Exchange
from pointsman_edge.telling.metrics import EdgeMetrics
from pointsman_epp_adapter.adapters.provider_way import ProviderWay
from pointsman_epp_adapter.domain.destination import address_of
from pointsman_epp_adapter.settings import EppAdapterSettings
from pointsman_runtime.telling.telemetry import Tracing


@dataclass(frozen=True, slots=True)
class Desk:
    """Composed once, in `main`."""

    edge: str
    """Instance of this edge."""
    settings: EppAdapterSettings
    policy: Callable[[], EdgePolicy]
    """The current revision's."""
    headers: HeaderRules
    trusted: TrustedProxies
    decider: Decider
    bodies: HeldBodies
    ways_back: WaysBack
    providers: ProviderWay
    announcer: Announcer
    metrics: EdgeMetrics
    load: EngineLoad
    pools: dict[str, PoolSnapshot]
    tracing: Tracing
    created: int
    """Unix seconds, for the model list."""
    ids: RequestIds = field(default_factory=RequestIds)
    open: dict[str, Exchange] = field(default_factory=dict[str, Exchange])
    """Exchanges that haven't ended, by request id."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """The process ends."""

    def worker_at(self, address: str) -> str | None:
        """The worker with this `ip:port`, as far as the snapshots know."""
        for snapshot in self.pools.values():
            for view in snapshot.workers:
                if address_of(view.url) == address:
                    return view.worker
        return None

    def boot_of(self, pool: str, worker: str) -> str:
        """The life of a worker; empty when it isn't known."""
        snapshot = self.pools.get(pool)
        views = snapshot.workers if snapshot else ()
        return next((view.boot_id for view in views if view.worker == worker), "")
