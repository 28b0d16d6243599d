"""Time until an engine sees that a client has hung up, through a whole edge with immediate decisions."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from pointsman_core.config import load
from pointsman_edge.deciding.policy import compile_policy
from pointsman_edge.edge import Surroundings
from pointsman_frontend.main import Frontend
from pointsman_frontend.settings import FrontendSettings
from pointsman_hosting.health import HealthApp, Readiness
from pointsman_hosting.http_server import HttpServer
from pointsman_runtime.telling.telemetry import Tracing
from pointsman_testing import eventually
from pointsman_testing.fake_stages import FakeReviewers, FakeStages, RecordedEvents
from pointsman_testing.raw_http import post, raw_connection
from pointsman_testing.scripted_engine import Received, Script, ScriptedEngine

EVENT = b"data: x\n\n"
BODY = b'{"model":"m"}'
AT_ONCE = 50
"""Clients that hang up in the same moment."""


async def _silent(request: Received) -> None:
    await request.gone.wait()


async def _streaming(request: Received) -> None:
    await request.begin_stream()
    await request.chunk(EVENT)
    await request.gone.wait()


async def _in_a_document(request: Received) -> None:
    await request.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
    await request.gone.wait()


PHASES: dict[str, tuple[Script, bool]] = {
    "before the first byte": (_silent, False),
    "mid-stream": (_streaming, True),
    "in a document": (_in_a_document, False),
}
"""The engine's behaviour, and whether the client receives a part of it."""


@asynccontextmanager
async def _edge(engine: ScriptedEngine) -> AsyncGenerator[str]:
    registry = CollectorRegistry()
    policy = compile_policy(load({}), 1)
    frontend = Frontend(
        Surroundings(
            instance="edge-1",
            policy=lambda: policy,
            stages=FakeStages(engine.url),
            reviewers=FakeReviewers(),
            bus=RecordedEvents(),
            tracing=Tracing(),
            registry=registry,
        ),
        FrontendSettings(),
        HealthApp(Readiness(), registry),
    )
    server = HttpServer(frontend.app, "127.0.0.1", 0, protocol=frontend.protocol)
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop()
        await frontend.close()


async def _one(url: str, path: str, sees_some: bool, everybody: asyncio.Barrier) -> float:
    async with raw_connection(url) as client:
        await client.send(post(path, BODY))
        if sees_some:
            await client.read_until(EVENT)
        await everybody.wait()
        client.close()
        return time.monotonic()


async def measure(phase: str, path: str, rounds: int) -> list[float]:
    """Milliseconds from each hang-up until its engine noticed it, sorted. Clients hang up `AT_ONCE` at a time."""
    script, sees_some = PHASES[phase]
    found: list[float] = []
    async with ScriptedEngine(script) as engine, _edge(engine) as url:
        for _ in range(rounds):
            engine.received.clear()
            everybody = asyncio.Barrier(AT_ONCE + 1)
            clients = [asyncio.create_task(_one(url, path, sees_some, everybody)) for _ in range(AT_ONCE)]
            await eventually(lambda: len(engine.received) == AT_ONCE)
            await everybody.wait()
            left_at = min(await asyncio.gather(*clients))
            for request in engine.received:
                await request.gone.wait()
                found.append((request.gone_at - left_at) * 1000)
    return sorted(found)
