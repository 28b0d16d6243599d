"""Engines are taken out of service under streams that no client loses, by each way that an operator has."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from pydantic import JsonValue

from pointsman_cli.stack import envoy
from pointsman_testing import Processes, eventually
from pointsman_testing.continuing_server import MODEL, ContinuingServer
from pointsman_testing.envoy_process import start_envoy
from pointsman_testing.stack import POOL, ServedPool, Stack, StackFactory
from pointsman_testing.whole_streams import WholeStreams

EXTENSIONS: Final = "type.googleapis.com/envoy.extensions.filters"
SERVED: Final = ServedPool(models=(MODEL,), loras=())

pytestmark = [pytest.mark.timeout(240)]


@asynccontextmanager
async def gateway(stacks: StackFactory, *engines: ContinuingServer) -> AsyncGenerator[Stack]:
    """A bundle before these engines, which it reads itself."""
    pool: JsonValue = {"models": [MODEL], "discovery": "static", "engines": [{"url": each.url} for each in engines]}
    profiles: JsonValue = {"standard": {"request": ["scheduler"], "resume": "exact"}}
    changes: dict[str, JsonValue] = {
        "pools": {POOL: pool},
        "models": {MODEL: {"pool": POOL}},
        "profiles": profiles,
        "profile-picker": {"use": "single", "profile": "standard"},
        "selectors": {},
    }
    async with stacks.start(engines=0, bundled=True, changes=changes, served=SERVED, replicas={"recorder": 1}) as stack:
        await eventually(lambda: serving(stack, len(engines)))
        yield stack


async def serving(stack: Stack, count: int) -> bool:
    code, said = await stack.command("engines", "list")
    return code == 0 and said.count("serving") == count


@asynccontextmanager
async def three_engines() -> AsyncGenerator[list[ContinuingServer]]:
    async with AsyncExitStack() as there:
        yield [
            await there.enter_async_context(ContinuingServer(pause_s=0.05, started_at=1.75e9 + number))
            for number in range(3)
        ]


def envoy_before(host: str, port: int) -> dict[str, JsonValue]:
    """The configuration of an Envoy that sends everything to one address."""
    address: JsonValue = {"socket_address": {"address": host, "port_value": port}}
    endpoints: JsonValue = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    manager: JsonValue = {
        "@type": f"{EXTENSIONS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "frontend", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "router",
                "typed_config": {"@type": f"{EXTENSIONS}.http.router.v3.Router"},
            }
        ],
    }
    return {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "static_resources": {
            "listeners": [
                {
                    "name": "gateway",
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [{"name": "frontend", "load_assignment": {"cluster_name": "frontend", "endpoints": endpoints}}],
        },
    }


@pytest.mark.requirement("ENGINE-8")
async def test_a_rolling_restart_of_every_engine_loses_no_character_behind_envoy(
    stacks: StackFactory, module_processes: Processes, tmp_path: Path
) -> None:
    """Envoy's upstream is the frontend. `python -m benchmarks.rolling_restart` at full size, without Envoy."""
    async with three_engines() as engines, gateway(stacks, *engines) as stack:
        executable = await asyncio.to_thread(envoy.executable)
        door = await start_envoy(module_processes, executable, envoy_before(*stack.door_address), tmp_path)
        async with WholeStreams(door, rate=4, tokens=100, whole_every=5) as streams:
            await eventually(lambda: all(engine.running >= 2 for engine in engines), timeout=60)
            for engine in engines:

                async def drains(engine: ContinuingServer = engine) -> bool:
                    """Once the others are known to serve, which a busy machine may doubt for a moment."""
                    code, said = await stack.command("engines", "drain", engine.url, "--within", "1s")
                    assert code == 0, said
                    return "has no requests left" in said

                await eventually(drains)
                assert engine.running == 0
                await engine.stop()
                assert engine.started_at is not None
                engine.started_at += 1000.0
                await engine.start()
                # A new life takes requests again without a word.
                await eventually(lambda: serving(stack, 3), timeout=60)
                await eventually(lambda engine=engine: engine.running, timeout=60)
        assert set(streams.outcomes) == {"equal"}, streams.outcomes
        assert (streams.missing, streams.doubled) == (0, 0)
        async with aiohttp.ClientSession() as http, http.get(f"{metrics(stack)}/metrics") as answer:
            text = await answer.text()
        assert 'pointsman_edge_drain_moves_total{answer="stream"}' in text


@pytest.mark.requirement("ENGINE-8")
async def test_orders_that_make_no_sense_are_refused_and_others_may_come_twice(stacks: StackFactory) -> None:
    async with (
        ContinuingServer(started_at=1.75e9) as one,
        ContinuingServer(started_at=1.76e9) as two,
        gateway(stacks, one, two) as stack,
    ):
        code, said = await stack.command("engines", "drain", "http://127.0.0.1:9")
        assert (code, "no engine http://127.0.0.1:9 is known" in said, one.url in said) == (1, True, True), said
        code, said = await stack.command("engines", "drain", one.url, "--within", "soon")
        assert (code, "Write it as 30s" in said) == (1, True), said
        assert (await stack.command("engines", "drain", one.url, "--within", "20m"))[0] == 0
        code, said = await stack.command("engines", "drain", f"{one.url}/v1", "--within", "10m")
        assert (code, "It drained already: ordered by an operator." in said) == (0, True), said
        code, said = await stack.command("engines", "list")
        assert "ordered by an operator" in said
        [left_s] = re.findall(r"draining, (\d+)", said)
        assert 300 < int(left_s) <= 600, said
        code, said = await stack.command("engines", "drain", two.url)
        assert (code, f"is the last engine of the pool {POOL} that serves {MODEL}" in said) == (1, True), said
        code, said = await stack.command("engines", "undrain", one.url)
        assert (code, "takes requests again" in said) == (0, True), said
        await eventually(lambda: serving(stack, 2))
        code, said = await stack.command("engines", "undrain", one.url)
        assert (code, "It didn't drain." in said) == (0, True), said
        code, said = await stack.command("engines", "drain", two.url, "--no-wait")
        code, said = await stack.command("engines", "drain", one.url, "--force")
        assert (code, "WARNING: nothing else serves m" in said) == (0, True), said
        async with aiohttp.ClientSession() as http:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
            async with http.post(f"{stack.door}/v1/chat/completions", json=body) as answer:
                assert (answer.status, "Retry-After" in answer.headers) == (503, True)
                assert "draining" in json.dumps(await answer.json())


def metrics(stack: Stack) -> str:
    """The address of a bundle's metrics."""
    url = stack.services["frontend"][0].http_url
    assert url is not None
    return url
