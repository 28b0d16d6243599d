"""Endpoint pickers on real sockets, with the stages and the event bus played by the test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.content import PromptTokens
from pointsman_contracts.pool import PoolSnapshot
from pointsman_core.config import load
from pointsman_edge.deciding.decider import UnusableStages
from pointsman_edge.deciding.policy import compile_policy
from pointsman_edge.edge import TICK_S, Surroundings
from pointsman_epp_adapter.main import EppAdapter
from pointsman_epp_adapter.settings import EppAdapterSettings
from pointsman_runtime.telling.telemetry import Tracing
from pointsman_testing.ext_proc import ExtProcClient
from pointsman_testing.fake_stages import FakeReviewers, FakeStages, RecordedEvents
from pointsman_testing.picker import PickerUnderTest, StartPicker

CONFIG = {"pools": {"llama-8b": {"models": ["llama-8b"]}}}


@pytest.fixture
async def start_picker() -> AsyncIterator[StartPicker]:
    """`await start_picker(*engine_urls, config={…}, **settings)`; every picker ends with the test."""
    ends: list[Callable[[], Awaitable[None]]] = []

    async def start(
        *urls: str, config: dict[str, object] | None = None, missing: UnusableStages | None = None, **settings: object
    ) -> PickerUnderTest:
        stages, events = FakeStages(*(urls or ("http://10.0.0.1:8000", "http://10.0.0.2:8000"))), RecordedEvents()
        reviewers = FakeReviewers()
        compiled = compile_policy(load({**CONFIG, **(config or {})}), 1)
        registry = CollectorRegistry()
        adapter = EppAdapter(
            Surroundings(
                instance="epp-1",
                policy=lambda: compiled,
                stages=stages,
                reviewers=reviewers,
                bus=events,
                tracing=Tracing(),
                registry=registry,
                missing=lambda _policy: missing,
            ),
            EppAdapterSettings.model_validate({"instance": "epp-1", "port": 0, **settings}),
        )
        await adapter.server.start()
        ticking = asyncio.create_task(_tick(adapter))
        target = adapter.server.url.partition("://")[2]
        client = ExtProcClient(target)
        stopped = False

        async def stop() -> None:
            nonlocal stopped
            if not stopped:
                stopped = True
                await adapter.server.stop()
                ticking.cancel()

        def hear(message: PoolSnapshot | PromptTokens) -> None:
            if isinstance(message, PromptTokens):
                adapter.edge.bodies.take_tokens(message)
            else:
                adapter.edge.keep_snapshot(message)

        async def end() -> None:
            await client.channel.close()
            await stop()

        ends.append(end)
        asked = adapter.edge.open_requests
        port = adapter.server.health_port
        return PickerUnderTest(
            client, target, stages, reviewers, events, hear, asked, stop, registry.get_sample_value, port
        )

    yield start
    for end in ends:
        await end()
    # A handshake that its client gave up ends in the loop's next turns.
    for _ in range(10):
        await asyncio.sleep(0)


async def _tick(adapter: EppAdapter) -> None:
    while True:
        adapter.tick()
        await asyncio.sleep(TICK_S / 4)
