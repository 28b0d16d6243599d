"""Everything that the requests of this edge share, beside what every edge has."""

import asyncio
import time

from pointsman_edge.edge import Edge
from pointsman_epp_adapter.adapters.provider_request import ProviderRequests
from pointsman_epp_adapter.domain.destination import address_of
from pointsman_epp_adapter.settings import EppAdapterSettings


class EnvoyEdge:
    """An edge behind Envoy. Composed once, in `main`."""

    def __init__(self, edge: Edge, settings: EppAdapterSettings) -> None:
        self.edge = edge
        self.settings = settings
        self.providers = ProviderRequests(edge.providers, routed=settings.providers)
        self.created = int(time.time())
        """Unix seconds, for the model list."""
        self.stopping = asyncio.Event()
        """Set when the process ends."""

    def worker_at(self, address: str, rank: int | None = None) -> str | None:
        """The worker with this `ip:port`, as far as the snapshots know; of several data-parallel ranks there this one,
        or the first."""
        for snapshot in self.edge.pools.values():
            for view in snapshot.workers:
                if rank in (None, view.rank) and address_of(view.url) == address:
                    return view.worker
        return None
