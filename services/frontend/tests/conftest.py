"""Edges on real sockets, with the stages and the event bus played by the test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.content import PromptTokens
from pointsman_contracts.pool import PoolSnapshot
from pointsman_core.config import Config, load
from pointsman_edge.deciding.policy import compile_policy
from pointsman_edge.edge import TICK_S, Surroundings
from pointsman_edge.telling.kept_responses import KeptResponses
from pointsman_frontend.main import Frontend
from pointsman_frontend.settings import FrontendSettings
from pointsman_hosting.health import HealthApp, Readiness
from pointsman_hosting.http_server import HttpServer
from pointsman_runtime.telling.telemetry import Tracing
from pointsman_testing import eventually
from pointsman_testing.fake_stages import EdgeUnderTest, FakeReviewers, FakeStages, RecordedEvents, StartEdge

CONFIG = {
    "pools": {"llama-8b": {"models": ["llama-8b", "sql"], "loras": ["sql"]}},
    "models": {"big": {"provider": "elsewhere"}},
    "providers": {"elsewhere": {"kind": "openai", "base_url": "http://127.0.0.1:9"}},
}


@pytest.fixture
async def start_edge() -> AsyncIterator[StartEdge]:
    """`await start_edge(*engine_urls, config={…}, **settings)`; every edge ends with the test."""
    ends: list[Callable[[], Awaitable[None]]] = []

    async def start(
        *urls: str,
        config: dict[str, object] | None = None,
        grace_s: float = 1,
        tracing: Tracing | None = None,
        responses: KeptResponses | None = None,
        **settings: object,
    ) -> EdgeUnderTest:
        stages, events, registry = FakeStages(*urls), RecordedEvents(), CollectorRegistry()
        reviewers = FakeReviewers()
        compiled = compile_policy(_config(config or {}), 1)
        frontend = Frontend(
            Surroundings(
                instance="edge-1",
                policy=lambda: compiled,
                stages=stages,
                reviewers=reviewers,
                bus=events,
                tracing=tracing or Tracing(),
                registry=registry,
                responses=responses,
            ),
            FrontendSettings.model_validate({"instance": "edge-1", **settings}),
            HealthApp(Readiness(), registry),
        )
        server = HttpServer(frontend.app, "127.0.0.1", 0, grace_s=grace_s, protocol=frontend.protocol)
        await server.start()
        ticking = asyncio.create_task(_tick(frontend))
        stopped = False

        async def stop() -> None:
            nonlocal stopped
            if not stopped:
                stopped = True
                await server.stop()
                await frontend.close()
                ticking.cancel()
                # Each task that was woken to write has run: one that is missing would delay all later writes.
                await eventually(lambda: frontend.writes.to_come == 0)

        def metric(name: str) -> float:
            return sum(
                sample.value for family in registry.collect() for sample in family.samples if sample.name == name
            )

        def hear(message: PoolSnapshot | PromptTokens) -> None:
            if isinstance(message, PromptTokens):
                frontend.edge.bodies.take_tokens(message)
            else:
                frontend.edge.keep_snapshot(message)

        ends.append(stop)
        return EdgeUnderTest(
            server.url,
            stages,
            reviewers,
            events,
            hear,
            frontend.edge.open_requests,
            metric,
            stop,
            move=frontend.edge.move_requests,
        )

    yield start
    for end in ends:
        await end()


async def _tick(frontend: Frontend) -> None:
    while True:
        await asyncio.sleep(TICK_S / 4)
        frontend.tick()


def _config(changes: dict[str, object]) -> Config:
    return load({**CONFIG, **changes})
