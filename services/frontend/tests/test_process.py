"""The frontend as a process on a real NATS server; this test plays the preprocessor and the engine."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace
from nats.js.errors import NotFoundError

from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.message import read_fields
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.presence import OpenRequests, OpenRequestsQuery
from pointsman_contracts.reply import ChosenEndpoint, Decision
from pointsman_contracts.response import ResponseCompleted, ResponseStarted
from pointsman_contracts.subjects import ANY, subject
from pointsman_frontend.settings import FrontendSettings
from pointsman_journey.hop import Hop
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.configuring.settings import SettingsError, load
from pointsman_runtime.jetstream.stores import EVENT_STREAM
from pointsman_runtime.telling.process import Process
from pointsman_testing import NatsServer, Processes, ServiceProcess, builders, eventually
from pointsman_testing.observer import observing
from pointsman_testing.raw_http import post, raw_connection, raw_request
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine

CHAT = "/v1/chat/completions"
CANARY = "CANARY-9f31"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"%b"}]}' % CANARY.encode()
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
CREDENTIAL = "authorization: Bearer sk-CANARY-9f31"


class Around:
    """The preprocessor, one engine, and what the frontend publishes."""

    def __init__(self, url: str, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.service = Journeys(
            Bus(Connection([url], name="around"), Process("preprocessor", f"preprocessor-{os.urandom(4).hex()}"))
        )
        self.completed: list[ResponseCompleted] = []
        self.started: list[ResponseStarted] = []
        self.service.stage(PreprocessRequest, self._decide)
        self.service.bus.listen(ResponseCompleted, self.completed.append, ANY)
        self.service.bus.listen(ResponseStarted, self.started.append, ANY)

    def _decide(self, request: PreprocessRequest, hop: Hop[PreprocessRequest]) -> Decision:
        endpoint = ChosenEndpoint(worker="worker-1", url=self.engine.url)
        return builders.decision(request.request_id, endpoints=(endpoint,))


@pytest.fixture
async def around(own_nats_server: NatsServer) -> AsyncIterator[Around]:
    async with ScriptedEngine() as engine:
        around = Around(own_nats_server.url, engine)
        around.service.open()
        await around.service.bus.wait_connected()
        around.service.serve()
        yield around
        await around.service.close()


@pytest.fixture
async def frontend(own_nats_server: NatsServer, processes: Processes, tmp_path: Path) -> ServiceProcess:
    config = tmp_path / "pointsman.yaml"
    config.write_text(yaml.safe_dump({"pools": {"llama-8b": {}}}))
    return processes.start(
        "pointsman-frontend",
        env={
            "POINTSMAN_NATS_URL": own_nats_server.url,
            "POINTSMAN_CONFIG": str(config),
            "POINTSMAN_PORT": "0",
            "POINTSMAN_INSTANCE": "edge-1",
            "POINTSMAN_LOG_LEVEL": "debug",
            "POINTSMAN_DRAIN_TIMEOUT_S": "20",
        },
    )


async def door(process: ServiceProcess) -> str:
    """Where the frontend takes requests."""
    await process.wait_ready()
    return next(str(line["url"]) for line in process.log_lines() if line["event"] == "serving")


async def test_a_request_passes_the_bus_and_the_engine_and_leaves_no_text_behind(
    frontend: ServiceProcess, around: Around
) -> None:
    url = await door(frontend)
    answer = await raw_request(url, post(CHAT, BODY, CREDENTIAL, "x-request-id: mine"))
    assert (answer.status, answer.body) == (200, ANSWER)
    assert around.engine.received[0].body == BODY
    (done,) = await eventually(lambda: around.completed)
    assert (done.request_id, done.source, done.outcome) == ("mine", "edge-1", "ok")
    for script in (_cut_off, _nonsense):
        around.engine.script = script
        await raw_request(url, post(CHAT, BODY, CREDENTIAL))
    await raw_request(url, post("/v1/" + CANARY, BODY, CREDENTIAL)[:-1] + b"\xff")
    await raw_request(url, b"DELETE /v1/models/%b HTTP/1.1\r\nhost: x\r\n\r\n" % CANARY.encode())
    await eventually(lambda: len(around.completed) == 5)
    assert {done.status for done in around.completed} >= {404, 405}
    assert CANARY not in frontend.log_text()
    assert CANARY not in repr(around.completed) + repr(around.started)
    metrics = await raw_request(url, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
    assert CANARY.encode() not in metrics.body


async def _cut_off(request: Received) -> None:
    await request.begin_stream()
    await request.chunk(EVENT)
    request.cut()


async def _nonsense(request: Received) -> None:
    await request.write(CANARY.encode())
    request.cut()


async def test_open_requests_are_published_and_a_stop_lets_them_finish(
    frontend: ServiceProcess, around: Around
) -> None:
    go_on = asyncio.Event()

    async def slow(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(EVENT)
        await go_on.wait()
        await request.chunk(b"data: [DONE]\n\n")
        await request.chunk(b"")

    around.engine.script = slow
    url = await door(frontend)
    async with raw_connection(url) as client:
        await client.send(post(CHAT, BODY, "x-request-id: mine"))
        await client.read_until(EVENT)
        query = OpenRequestsQuery(request_ids=("mine", "other"))
        assert OpenRequests.decode(await around.service.bus.ask(query, "edge-1", timeout=30)).request_ids == ("mine",)
        ending = asyncio.create_task(frontend.terminate())
        await eventually(lambda: any(line["event"] == "stopping" for line in frontend.log_lines()))
        health = await raw_request(frontend.http_url or "", b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")
        assert health.status == 503
        go_on.set()
        assert b"[DONE]" in await client.closed()
    assert await ending == 0
    (done,) = await eventually(lambda: around.completed)
    assert done.outcome == "ok"


async def test_while_the_bus_is_gone_the_edge_serves_alone_and_tells_of_it_later(
    own_nats_server: NatsServer, frontend: ServiceProcess, around: Around
) -> None:
    url = await door(frontend)
    view = {"worker": "worker-1", "url": around.engine.url}
    snapshot = read_fields(
        PoolSnapshot,
        {"pool": "llama-8b", "source": "c", "sequence": 1, "at_ms": 1, "workers": [view], "models": ["llama-8b"]},
    )

    async def heard() -> bool:
        around.service.bus.publish(replace(snapshot, models=("llama-8b", "heard")), "llama-8b")
        return (await raw_request(url, b"GET /v1/models/heard HTTP/1.1\r\nhost: x\r\n\r\n")).status == 200

    await eventually(heard)
    await asyncio.to_thread(own_nats_server.kill)

    async def alone() -> bool:
        answer = await raw_request(url, post(CHAT, BODY))
        return (answer.status, answer.header("x-pointsman-level")) == (200, "static")

    await eventually(alone)
    # A load balancer must keep sending requests here.
    assert (await raw_request(frontend.http_url or "", b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")).status == 200
    await asyncio.to_thread(own_nats_server.start)

    async def told() -> list[ResponseCompleted]:
        kept = await _kept(own_nats_server.url)
        return kept if any(done.level == "static" for done in kept) else []

    kept = await eventually(told)
    assert [done.sequence for done in kept] == list(range(1, len(kept) + 1))


async def _kept(url: str) -> list[ResponseCompleted]:
    """Completions of the pool that the event stream has."""
    found: list[ResponseCompleted] = []
    async with observing(url) as seen:
        sequence = 1
        while True:
            try:
                message = await seen.js.get_msg(
                    EVENT_STREAM, seq=sequence, subject=subject(ResponseCompleted, "llama-8b"), next=True
                )
            except NotFoundError:
                return found
            found.append(ResponseCompleted.decode(message.data or b""))
            sequence = (message.seq or 0) + 1


def test_a_port_that_strangers_can_reach_must_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_HOST", "192.0.2.1")
    with pytest.raises(SettingsError, match="POINTSMAN_OPEN_TO_ALL=true"):
        load(FrontendSettings)
    monkeypatch.setenv("POINTSMAN_OPEN_TO_ALL", "true")
    assert load(FrontendSettings).host == "192.0.2.1"


def test_lists_are_written_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_TRUSTED_PROXIES", '["10.0.0.0/8", "::1"]')
    assert [str(network) for network in load(FrontendSettings).trusted_proxies] == ["10.0.0.0/8", "::1/128"]
    monkeypatch.setenv("POINTSMAN_TRUSTED_PROXIES", '["somewhere"]')
    with pytest.raises(SettingsError, match="trusted_proxies"):
        load(FrontendSettings)
