"""Composes the epp-adapter: an edge behind a gRPC server for Envoy."""

from functools import partial

from pointsman_contracts.story import DryRunQuery
from pointsman_core.config import Config
from pointsman_edge.deciding.policy import compile_policy, useless_alone
from pointsman_edge.dry_runs import answer_dry_run
from pointsman_edge.edge import TICK_S, Edge, EdgeOptions, Surroundings, connect, surroundings
from pointsman_edge.taking_in.request_headers import HeaderRules
from pointsman_edge.taking_in.trust import TrustedProxies
from pointsman_epp_adapter.adapters.body_routing import BodyRouting
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.grpc_server import GrpcServer
from pointsman_epp_adapter.adapters.processor import Processor
from pointsman_epp_adapter.domain.protocol_headers import OWNED
from pointsman_epp_adapter.settings import EppAdapterSettings
from pointsman_hosting.host import run
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service


class EppAdapter:
    """One edge, composed. It connects to nothing by itself."""

    def __init__(self, around: Surroundings, settings: EppAdapterSettings) -> None:
        headers = HeaderRules(
            (*settings.identity_headers, *OWNED),
            forward_credentials=settings.forward_credentials,
            limit=settings.max_head_bytes,
        )
        trusted = TrustedProxies(settings.trusted_proxies, unnamed=settings.trust_unnamed)
        self.edge = edge = Edge(around, EdgeOptions(headers, trusted))
        self._settings = settings
        self._envoy = envoy = EnvoyEdge(edge, settings)
        routing = BodyRouting(edge, around.registry) if settings.mode == "body-based-routing" else None
        processor = Processor(envoy, routing)
        edge.metrics.read(
            "protocol_violations", "ext_proc streams that broke the protocol", lambda: processor.violations
        )
        self.server = GrpcServer(processor, envoy.stopping, settings)

    def cannot_route(self) -> str | None:
        """Why every request would be refused; None if some can be served, by the edge alone if need be."""
        if self._settings.mode == "body-based-routing":
            return None
        policy = self.edge.policy()
        missing = self.edge.missing(policy)
        if missing is None:
            return None
        if not missing.alone:
            return missing.reason
        why = useless_alone(policy, self.edge.pools, providers=self._settings.providers)
        return None if why is None else f"{missing.reason}; {why}"

    def tick(self) -> None:
        """Call every `TICK_S`."""
        self.edge.tick()
        self._envoy.providers.log_missing(self.edge.policy())
        self.server.tell_health(serving=self.cannot_route() is None)

    async def close(self) -> None:
        """After the server has ended: publish the events that wait."""
        await self.edge.wait_until_drained(0)


def check(config: Config) -> None:
    """Raise ConfigError if this service would refuse the configuration."""
    compile_policy(config, 0)


def build(service: Service[EppAdapterSettings]) -> None:
    """Compose the service."""
    wiring = surroundings(service)
    adapter = EppAdapter(wiring.around, service.settings)
    connect(service, wiring, adapter.edge, adapter.edge.keep_snapshot)
    service.events.handle(DryRunQuery, partial(answer_dry_run, adapter.edge), group="edges")
    service.every(TICK_S, adapter.tick)
    # `routing` covers the bus: without it, an edge that can decide alone is ready.
    service.readiness.remove_check("bus")
    configuration = wiring.configuration
    service.readiness.add_check(
        "routing", lambda: None if configuration.missing is not None else adapter.cannot_route()
    )
    service.on_stop(adapter.close)
    service.serve(adapter.server)


PROGRAM = Program("epp-adapter", EppAdapterSettings, build)


def main() -> int:
    """Run the service until a signal ends it; returns the exit code."""
    return run(PROGRAM)
