"""Wiring."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from pointsman_contracts.content import ContentEdits, ContentQuery, PromptTokens
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.presence import OpenRequestsQuery
from pointsman_contracts.subjects import ANY
from pointsman_core.config import Config
from pointsman_edge.credentials.provider_credentials import Credentials
from pointsman_edge.deciding.alone import useless_alone
from pointsman_edge.deciding.decider import Decider, DecisionSource, Missing, Stages
from pointsman_edge.deciding.engine_load import EngineLoad
from pointsman_edge.deciding.policy import EdgePolicy, compile_policy
from pointsman_edge.reviewing.reviews import Reviewers, StageReviewers
from pointsman_edge.reviewing.ways_back import WaysBack
from pointsman_edge.sending.provider_book import ProviderBook
from pointsman_edge.taking_in.held_bodies import HeldBodies
from pointsman_edge.taking_in.request_headers import HeaderRules
from pointsman_edge.taking_in.trust import TrustedProxies
from pointsman_edge.telling.announcer import Announcer, EventBus
from pointsman_edge.telling.metrics import EdgeMetrics
from pointsman_epp_adapter.adapters.body_routing import BodyRouting
from pointsman_epp_adapter.adapters.desk import Desk
from pointsman_epp_adapter.adapters.grpc_server import GrpcServer
from pointsman_epp_adapter.adapters.processor import Processor
from pointsman_epp_adapter.adapters.provider_way import ProviderWay
from pointsman_epp_adapter.domain.epp_headers import OWNED
from pointsman_epp_adapter.handlers import Handlers
from pointsman_epp_adapter.settings import EppAdapterSettings
from pointsman_runtime.journey.journey_client import JourneyClient
from pointsman_runtime.service.host import run
from pointsman_runtime.service.rollout import Rollout
from pointsman_runtime.service.service import Program, Service
from pointsman_runtime.telling.telemetry import Tracing

TICK_S = 0.1
"""How soon health follows, and events that waited for the bus once it is back."""


@dataclass(frozen=True)
class Surroundings:
    """What an edge stands on."""

    instance: str
    settings: EppAdapterSettings
    policy: Callable[[], EdgePolicy]
    """The current revision's."""
    decisions: DecisionSource
    missing: Callable[[EdgePolicy], Missing | None]
    """Why the stages can't be asked; None when they can."""
    reviewers: Reviewers
    events: EventBus
    tracing: Tracing
    registry: CollectorRegistry


class EppAdapter:
    """One edge, composed. It connects to nothing by itself."""

    def __init__(self, around: Surroundings) -> None:
        settings = around.settings
        self._around = around
        self.pools: dict[str, PoolSnapshot] = {}
        self.metrics = EdgeMetrics(around.registry)
        self.announcer = Announcer(around.events, around.instance, settings.events_kept, around.registry)
        load = EngineLoad()
        bodies = HeldBodies()
        self.desk = Desk(
            edge=around.instance,
            settings=settings,
            policy=around.policy,
            headers=HeaderRules(
                (*settings.identity_headers, *OWNED),
                forward_credentials=settings.forward_credentials,
                limit=settings.max_head_bytes,
            ),
            trusted=TrustedProxies(settings.trusted_proxies, unnamed=settings.trust_unnamed),
            decider=Decider(around.decisions, self.pools, load),
            bodies=bodies,
            ways_back=WaysBack(around.instance, around.reviewers, bodies, self.announcer),
            providers=ProviderWay(ProviderBook(Credentials()), routed=settings.providers),
            announcer=self.announcer,
            metrics=self.metrics,
            load=load,
            pools=self.pools,
            tracing=around.tracing,
            created=int(time.time()),
        )
        routed = settings.mode == "body-based-routing"
        self.processor = Processor(self.desk, BodyRouting(self.desk, around.registry) if routed else None)
        self.metrics.read("protocol_violations", "ext_proc streams that broke the protocol", self._violations)
        self.server = GrpcServer(self.processor, self.desk.stopping, settings)
        self.handlers = Handlers(self.pools, self.desk.open)

    def cannot_route(self) -> str | None:
        """Why requests would only be refused; None when they can be served, alone if need be."""
        if self._around.settings.mode == "body-based-routing":
            return None
        policy = self._around.policy()
        missing = self._around.missing(policy)
        if missing is None:
            return None
        if not missing.alone:
            return missing.reason
        why = useless_alone(policy, self.pools, providers=self._around.settings.providers)
        return None if why is None else f"{missing.reason}; {why}"

    def tick(self) -> None:
        """Call every `TICK_S`."""
        self.announcer.flush()
        self.desk.providers.tick(self._around.policy())
        self.server.tell_health(serving=self.cannot_route() is None)

    def _violations(self) -> int:
        return self.processor.violations


def check(config: Config) -> None:
    """Raise ConfigError when this service would refuse the configuration."""
    compile_policy(config, 0)


def build(service: Service[EppAdapterSettings]) -> None:
    """Compose the service."""
    bus = service.bus
    configuration = service.configuration(compile_policy)
    rollout = Rollout(configuration, bus.heartbeat.table)
    client = JourneyClient(bus)
    stages = Stages(bus, client)
    adapter = EppAdapter(
        Surroundings(
            instance=service.process.instance,
            settings=service.settings,
            policy=lambda: rollout.current.compiled,
            decisions=stages,
            missing=stages.missing,
            reviewers=StageReviewers(bus),
            events=bus,
            tracing=service.tracing,
            registry=service.registry,
        )
    )
    adapter.metrics.read("held", "Requests held while a stage had no live replica", lambda: client.held.total)
    adapter.metrics.read("resent", "Times that a request was sent into the stages again", lambda: client.resent)
    adapter.metrics.read("abandoned", "Requests whose holder fell silent, sent again", lambda: client.abandoned)
    bus.listen(PoolSnapshot, adapter.handlers.snapshot, ANY, keep="latest")
    service.events.handle(OpenRequestsQuery, adapter.handlers.open_requests, service.process.instance)
    bus.answer(ContentQuery, adapter.desk.bodies.answer, service.process.instance)
    bus.answer(ContentEdits, adapter.desk.bodies.edit, service.process.instance)
    bus.listen(PromptTokens, adapter.desk.bodies.take_tokens, service.process.instance)
    service.every(TICK_S, adapter.tick)
    service.every(TICK_S, lambda: rollout.tick(asyncio.get_running_loop().time()))
    # What it does without the bus, `routing` says: whoever asks it is to go on while it can decide alone.
    service.readiness.drop("bus")
    service.readiness.add("routing", lambda: None if configuration.missing is not None else adapter.cannot_route())

    async def say_the_rest() -> None:
        await adapter.desk.ways_back.drained()
        adapter.announcer.flush()

    service.on_stop(say_the_rest)
    service.serve(adapter.server)


PROGRAM = Program("epp-adapter", EppAdapterSettings, build)


def main() -> int:
    """Run the service until it is told to stop; returns the exit code."""
    return run(PROGRAM)
