"""Composes the frontend: an edge behind an HTTP server."""

import time
from functools import partial

from pointsman_contracts.story import DryRunQuery
from pointsman_edge.deciding.policy import useless_alone
from pointsman_edge.dry_runs import answer_dry_run
from pointsman_edge.edge import TICK_S, Edge, EdgeOptions, Surroundings, connect, surroundings
from pointsman_edge.taking_in.request_headers import HeaderRules
from pointsman_edge.taking_in.trust import TrustedProxies
from pointsman_frontend.adapters.app import EdgeApp
from pointsman_frontend.adapters.background_requests import BackgroundRequests
from pointsman_frontend.adapters.batch_door import BatchDoor
from pointsman_frontend.adapters.cascades import Cascades
from pointsman_frontend.adapters.connection_bounds import Bounds
from pointsman_frontend.adapters.drained_engines import DrainedEngines
from pointsman_frontend.adapters.engine_client import EngineClient
from pointsman_frontend.adapters.forwarder import Forwarder
from pointsman_frontend.adapters.gathered_writes import GatheredWrites
from pointsman_frontend.adapters.http_connection import bounded
from pointsman_frontend.adapters.http_request import LAST_WORDS_S, HttpEdge, HttpRequest
from pointsman_frontend.adapters.outgoing import Outgoing
from pointsman_frontend.adapters.provider_client import ProviderClient
from pointsman_frontend.adapters.providers import Providers
from pointsman_frontend.settings import FrontendSettings
from pointsman_hosting.health import HealthApp
from pointsman_hosting.host import run
from pointsman_hosting.http_server import HttpServer
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service


class Frontend:
    """One edge, composed. It connects to nothing by itself."""

    def __init__(self, around: Surroundings, settings: FrontendSettings, health: HealthApp) -> None:
        headers = HeaderRules(
            settings.identity_headers, forward_credentials=settings.forward_credentials, limit=settings.max_head_bytes
        )
        options = EdgeOptions(headers, TrustedProxies(settings.trusted_proxies), settings.own_worker)
        self.edge = edge = Edge(around, options)
        self._providers = Providers(edge.providers, ProviderClient(edge.providers))
        self.writes = GatheredWrites()
        self._engines = EngineClient(
            self.writes, idle_s=settings.engine_idle_s, idle_connections=settings.engine_idle_connections
        )
        forwarder = Forwarder(edge, self._engines, self._providers, tell_endpoint=settings.tell_endpoint)
        edge.metrics.read(
            "retries_refused",
            "Further attempts that a retry budget had no room for",
            lambda: forwarder.budgets.count_refused,
        )
        app = EdgeApp(
            HttpEdge(edge, forwarder, Cascades(edge, forwarder), settings.body_timeout_s), health, int(time.time())
        )
        self._batch = None if settings.batch_url is None else BatchDoor(settings.batch_url, edge, app)
        self.app = self._batch or app
        self.protocol = bounded(
            Bounds(
                settings.max_head_bytes,
                settings.head_timeout_s,
                edge.ids.make_id,
                lambda reason: edge.metrics.refused_connections.update((reason,)),
                edge.trusted.is_trusted,
            ),
            self.writes,
        )
        edge.leave = forwarder.legs.leave
        find_outgoing = partial(_find_outgoing, edge)
        edge.give_way = BackgroundRequests(self._engines, find_outgoing).give_way
        edge.move_off = DrainedEngines(edge, self._engines, find_outgoing).move_off

    def tick(self) -> None:
        """Call every `TICK_S`."""
        self.edge.tick()
        self._engines.sweep()
        self.edge.providers.log_missing(self.edge.policy())

    async def close(self) -> None:
        """After the server has ended: let cancelled requests answer, publish the events that wait, and disconnect."""
        await self.edge.wait_until_drained(2 * LAST_WORDS_S)
        self._engines.close()
        await self._providers.close()
        if self._batch is not None:
            await self._batch.close()


def _find_outgoing(edge: Edge, request_id: str) -> Outgoing | None:
    """An open request on its way to engines; None for any other one."""
    request = edge.open.get(request_id)
    return request.outgoing if isinstance(request, HttpRequest) else None


def build(service: Service[FrontendSettings]) -> None:
    """Compose the service."""
    settings = service.settings
    wiring = surroundings(service)
    frontend = Frontend(wiring.around, settings, service.health)
    connect(service, wiring, frontend.edge, frontend.edge.keep_snapshot)
    service.events.handle(DryRunQuery, partial(answer_dry_run, frontend.edge), group="edges")

    def bus() -> str | None:
        """Why the edge isn't ready for the bus's sake. Unlike other services, an edge that can decide alone is."""
        reason = service.bus.missing
        if reason is None or wiring.configuration.missing is not None:
            return reason
        why = useless_alone(wiring.around.policy(), frontend.edge.pools, providers=True)
        return None if why is None else f"{reason}; {why}"

    service.readiness.add_check("bus", bus)
    service.every(TICK_S, frontend.tick)
    service.on_stop(frontend.close)
    service.serve(
        HttpServer(
            frontend.app,
            settings.host,
            settings.port,
            grace_s=settings.drain_timeout_s,
            protocol=frontend.protocol,
            shared=settings.port_shared,
        )
    )


PROGRAM = Program("frontend", FrontendSettings, build)


def main() -> int:
    """Run the service until a signal ends it; returns the exit code."""
    return run(PROGRAM)
