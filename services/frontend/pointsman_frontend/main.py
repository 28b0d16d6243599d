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
from pointsman_edge.credentials.provider_credentials import Credentials
from pointsman_edge.deciding.alone import useless_alone
from pointsman_edge.deciding.decider import Decider, DecisionSource, Stages
from pointsman_edge.deciding.engine_load import EngineLoad
from pointsman_edge.deciding.model_catalogue import ModelCatalogue
from pointsman_edge.deciding.policy import EdgePolicy, compile_policy
from pointsman_edge.reviewing.reviews import Reviewers, StageReviewers
from pointsman_edge.reviewing.ways_back import WaysBack
from pointsman_edge.sending.provider_book import ProviderBook
from pointsman_edge.taking_in.held_bodies import HeldBodies
from pointsman_edge.taking_in.request_headers import HeaderRules
from pointsman_edge.taking_in.trust import TrustedProxies
from pointsman_edge.telling.announcer import Announcer, EventBus
from pointsman_edge.telling.metrics import EdgeMetrics
from pointsman_frontend.adapters.app import EdgeApp
from pointsman_frontend.adapters.engine_client import EngineClient
from pointsman_frontend.adapters.forwarder import Forwarder
from pointsman_frontend.adapters.http_connection import Bounds, bounded
from pointsman_frontend.adapters.own_worker import OwnWorker
from pointsman_frontend.adapters.provider_client import ProviderClient
from pointsman_frontend.adapters.providers import Providers
from pointsman_frontend.adapters.proxy import Intake, Proxy
from pointsman_frontend.handlers import Handlers
from pointsman_frontend.settings import FrontendSettings
from pointsman_runtime.journey.journey_client import JourneyClient
from pointsman_runtime.service.health import HealthApp
from pointsman_runtime.service.host import run
from pointsman_runtime.service.http_server import HttpServer
from pointsman_runtime.service.rollout import Rollout
from pointsman_runtime.service.service import Program, Service
from pointsman_runtime.telling.telemetry import Tracing

TICK_S = 0.1
"""How exact limits of time are, and how soon events that waited for the bus follow once it is back."""


@dataclass(frozen=True)
class Surroundings:
    """What an edge stands on."""

    instance: str
    settings: FrontendSettings
    policy: Callable[[], EdgePolicy]
    """The current revision's."""
    decisions: DecisionSource
    reviewers: Reviewers
    events: EventBus
    tracing: Tracing
    health: HealthApp
    registry: CollectorRegistry


class Frontend:
    """One edge, composed. It connects to nothing by itself."""

    def __init__(self, around: Surroundings) -> None:
        settings = around.settings
        self.pools: dict[str, PoolSnapshot] = {}
        self.metrics = metrics = EdgeMetrics(around.registry)
        load = EngineLoad()
        self.announcer = Announcer(around.events, around.instance, settings.events_kept, around.registry)
        book = ProviderBook(Credentials())
        self.providers = Providers(book, ProviderClient(book))
        self._policy = around.policy
        self.engines = EngineClient(idle_s=settings.engine_idle_s, idle_connections=settings.engine_idle_connections)
        self.bodies = HeldBodies()
        self.ways_back = WaysBack(around.instance, around.reviewers, self.bodies, self.announcer)
        headers = HeaderRules(
            settings.identity_headers, forward_credentials=settings.forward_credentials, limit=settings.max_head_bytes
        )
        trusted = TrustedProxies(settings.trusted_proxies)
        decider = Decider(around.decisions, self.pools, load)
        own_worker = OwnWorker(decider, settings.own_worker)
        if settings.own_worker is not None:
            metrics.read("sent_elsewhere", "Requests that the worker beside this edge couldn't take", own_worker.misses)
        self.proxy = Proxy(
            Intake(
                edge=around.instance,
                policy=around.policy,
                headers=headers,
                trusted=trusted,
                body_limit_s=settings.body_timeout_s,
                tracing=around.tracing,
            ),
            own_worker,
            Forwarder(
                self.engines,
                load,
                self.announcer,
                metrics,
                self.pools,
                around.tracing,
                self.providers,
                tell_endpoint=settings.tell_endpoint,
            ),
            self.ways_back,
            self.bodies,
            self.announcer,
            metrics,
        )
        models = ModelCatalogue(around.instance, around.policy, self.pools, headers, trusted, decider)
        self.app = EdgeApp(self.proxy, around.health, models, int(time.time()))
        self.protocol = bounded(
            Bounds(
                settings.max_head_bytes,
                settings.head_timeout_s,
                self.proxy.ids.new,
                lambda reason: metrics.refused_connections.update((reason,)),
            )
        )
        self.handlers = Handlers(self.pools, self.proxy.open_requests, self.engines)

    def tick(self) -> None:
        """Call every `TICK_S`."""
        self.proxy.sweep()
        self.engines.sweep()
        self.providers.check(self._policy())
        self.announcer.flush()

    async def close(self) -> None:
        """After the server has ended: let cancelled requests say their last words, and send what waits."""
        await self.proxy.drained()
        await self.ways_back.drained()
        self.announcer.flush()
        self.engines.close()
        await self.providers.close()


def build(service: Service[FrontendSettings]) -> None:
    """Compose the service."""
    settings = service.settings
    configuration = service.configuration(compile_policy)
    rollout = Rollout(configuration, service.bus.heartbeat.table)
    client = JourneyClient(service.bus)
    frontend = Frontend(
        Surroundings(
            instance=service.process.instance,
            settings=settings,
            policy=lambda: rollout.current.compiled,
            decisions=Stages(service.bus, client),
            reviewers=StageReviewers(service.bus),
            events=service.bus,
            tracing=service.tracing,
            health=service.health,
            registry=service.registry,
        )
    )
    frontend.metrics.read("held", "Requests held while a stage had no live replica", lambda: client.held.total)
    frontend.metrics.read("resent", "Times that a request was sent into the stages again", lambda: client.resent)
    frontend.metrics.read("abandoned", "Requests whose holder fell silent, sent again", lambda: client.abandoned)
    service.bus.listen(PoolSnapshot, frontend.handlers.snapshot, ANY, keep="latest")
    service.events.handle(OpenRequestsQuery, frontend.handlers.open_requests, service.process.instance)
    service.bus.answer(ContentQuery, frontend.bodies.answer, service.process.instance)
    service.bus.answer(ContentEdits, frontend.bodies.edit, service.process.instance)
    service.bus.listen(PromptTokens, frontend.bodies.take_tokens, service.process.instance)

    def bus() -> str | None:
        """As of every service, but for an edge that can decide alone: whoever asks it is to go on."""
        reason = service.bus.missing
        if reason is None or configuration.missing is not None:
            return reason
        why = useless_alone(rollout.current.compiled, frontend.pools, providers=True)
        return None if why is None else f"{reason}; {why}"

    service.readiness.add("bus", bus)
    service.every(TICK_S, frontend.tick)
    service.every(TICK_S, lambda: rollout.tick(asyncio.get_running_loop().time()))
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
    """Run the service until it is told to stop; returns the exit code."""
    return run(PROGRAM)
