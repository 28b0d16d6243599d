"""The real Envoy before a real adapter, real services and simulated engines."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio
from nats.aio.msg import Msg
from prometheus_client.parser import text_string_to_metric_families

from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY, subject
from pointsman_testing import Processes, eventually
from pointsman_testing.answered import answered
from pointsman_testing.ext_proc import ExtProcClient
from pointsman_testing.observer import observing
from pointsman_testing.processes import ServiceProcess
from pointsman_testing.raw_http import raw_request
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

MODEL = "llama-3.1-8b"
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
StartEnvoy = Callable[..., Awaitable[str]]


STAGES: Final = ("preprocessor", "profile-picker", "model-selector", "scheduler")


@dataclass
class Gateway:
    """Envoys before one adapter."""

    stack: Stack
    doors: dict[str, str]
    """By the way that Envoy is configured."""
    adapter: ServiceProcess
    start_adapter: Callable[[], ServiceProcess]
    http: aiohttp.ClientSession
    completed: list[ResponseCompleted]
    bundled: bool
    """Whether the adapter has stages of its own beside it."""

    async def ask(self, door: str, prompt: str = "Hello", **fields: Any) -> tuple[int, str, Any]:
        """A chat; returns status, body, headers."""
        body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": prompt}], **fields}

        async def once() -> tuple[int, str, Any]:
            data = io.BytesIO(json.dumps(body).encode())
            async with self.http.post(self.doors[door] + CHAT, data=data, headers=JSON) as answer:
                return answer.status, await answer.text(), answer.headers

        return await answered(once)

    async def completion(self, request_id: str) -> ResponseCompleted:
        """How a request ended."""
        return await eventually(lambda: next((each for each in self.completed if each.request_id == request_id), None))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["separate", "bundled"])
async def gateway(
    request: pytest.FixtureRequest, stacks: StackFactory, module_processes: Processes, start_envoy: StartEnvoy
) -> AsyncIterator[Gateway]:
    """An adapter by itself, or in one process with stages of its own."""
    bundled = request.param == "bundled"
    async with stacks.start(static="allow") as stack:
        port = 0

        def start() -> ServiceProcess:
            env = {**stack.env, "POINTSMAN_PORT": str(port), "POINTSMAN_DRAIN_TIMEOUT_S": "5"}
            if bundled:
                return module_processes.fork("pointsman-bundle", "epp-adapter", *STAGES, env=env)
            return module_processes.fork("pointsman-epp-adapter", env=env)

        adapter = start()
        await adapter.wait_ready()
        url = next(str(line["url"]) for line in adapter.log_lines() if line["event"] == "serving")
        port = int(url.rpartition(":")[2])
        engines = [("127.0.0.1", urlsplit(engine.url).port or 0) for engine in stack.engines]
        only_second = {
            "name": "envoy.filters.http.set_metadata",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
                "metadata": [
                    {
                        "metadata_namespace": "envoy.lb.subset_hint",
                        "value": {"x-gateway-destination-endpoint-subset": [f"127.0.0.1:{engines[1][1]}"]},
                    }
                ],
            },
        }
        there = ("127.0.0.1", port)
        doors = {
            "usual": await start_envoy(there, engines),
            "buffered": await start_envoy(there, engines, buffered=True),
            "duplex": await start_envoy(there, engines, duplex=True),
            "subset": await start_envoy(there, engines, filters=[only_second]),
            "open": await start_envoy(there, engines, fail_open=True),
        }
        async with aiohttp.ClientSession() as http, observing(stack.nats.url) as observer:
            completed = observer.listen(ResponseCompleted, ANY)
            yield Gateway(stack, doors, adapter, start, http, completed, bundled)


def metrics_reference() -> str:
    return (Path(__file__).resolve().parents[2] / "docs/metrics.md").read_text(encoding="utf-8")


OPEN_REQUESTS = "pointsman_scheduler_open_requests"


def metric(text: str, name: str) -> float:
    """Sum over the samples of a metric."""
    families = text_string_to_metric_families(text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


each_way = pytest.mark.parametrize("door", ["usual", "buffered", "duplex"])


@pytest.mark.requirement("S1-4", "S1-22")
@each_way
async def test_a_completion_comes_from_an_engine_and_is_published_with_its_usage(gateway: Gateway, door: str) -> None:
    status, text, headers = await gateway.ask(door)
    assert status == 200, text
    assert headers["x-simulated-engine"] in ("engine-1", "engine-2")
    done = await gateway.completion(headers["x-request-id"])
    assert (done.outcome, done.worker, done.level) == (
        "ok", headers["x-simulated-engine"], headers["x-pointsman-level"]
    )  # fmt: skip
    assert done.usage is not None
    assert done.usage.completion_tokens == 4


@each_way
async def test_a_stream_arrives_whole_and_is_completed(gateway: Gateway, door: str) -> None:
    status, text, headers = await gateway.ask(door, stream=True, stream_options={"include_usage": True})
    assert status == 200
    assert text.endswith("data: [DONE]\n\n")
    done = await gateway.completion(headers["x-request-id"])
    assert (done.outcome, done.stream) == ("ok", True)
    assert (done.usage is not None) == (door == "duplex"), "outside of full duplex the stream passes unseen"


@each_way
async def test_a_model_that_doesnt_exist_is_404_naming_those_that_do(gateway: Gateway, door: str) -> None:
    status, text, _ = await gateway.ask(door, model="gpt-nope")
    assert (status, MODEL in text) == (404, True)


@each_way
async def test_a_body_of_a_mebibyte_is_served_and_one_of_21_is_refused(gateway: Gateway, door: str) -> None:
    status, text, _ = await gateway.ask(door, prompt="word " * 80_000, user="x" * 650_000)
    assert status == 200, text[:300]
    status, text, _ = await gateway.ask(door, prompt="word " * (21 * 2**20 // 5))
    assert (status, "body_too_large" in text) == (413, True)


@pytest.mark.parametrize(("version", "more"), [("1.0", ""), ("1.1", "expect: x\r\n")])
async def test_old_clients_and_those_that_expect_something_are_served(
    gateway: Gateway, version: str, more: str
) -> None:
    answer = await raw_request(gateway.doors["usual"], _chat(version, more))
    assert answer.status == 200, answer.body


async def test_what_envoy_refuses_by_itself_has_the_shape_of_an_error(gateway: Gateway) -> None:
    upgrade = _chat("1.1", "connection: upgrade\r\nupgrade: websocket\r\n")
    for sent, status in ((upgrade, 403), (upgrade.replace(b"host: gateway\r\n", b"").replace(b"upgrade", b"x"), 400)):
        answer = await raw_request(gateway.doors["usual"], sent)
        assert answer.status == status
        error = json.loads(answer.body)["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "refused_by_proxy")


def _chat(version: str, headers: str) -> bytes:
    body = json.dumps({"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]})
    head = f"POST {CHAT} HTTP/{version}\r\nhost: gateway\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n{headers}\r\n{body}".encode()


async def test_a_subset_hint_restricts_the_choice(gateway: Gateway) -> None:
    engines = {(await gateway.ask("subset"))[2]["x-simulated-engine"] for _ in range(6)}
    assert engines == {"engine-2"}


@each_way
async def test_a_client_that_leaves_a_stream_stops_the_engine(gateway: Gateway, door: str) -> None:
    endless = {"model": MODEL, "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    body = {**endless, "messages": [{"role": "user", "content": "Hello"}]}
    async with gateway.http.post(gateway.doors[door] + CHAT, json=body) as answer:
        await answer.content.readany()
        request_id, serving = answer.headers["x-request-id"], answer.headers["x-simulated-engine"]
        # However long a busy machine takes to notice that the client has left, the answer takes longer.
        [engine] = [each for each in gateway.stack.engines if each.name == serving]
        engine.process.pause()
    try:
        done = await gateway.completion(request_id)
    finally:
        engine.process.resume()
    assert done.outcome == ("client_gone" if door == "duplex" else "ok")

    async def idle() -> bool:
        return [(await engine.state())["running"] for engine in gateway.stack.engines] == [0, 0]

    await eventually(idle)


async def test_after_hundreds_of_aborted_exchanges_nothing_is_open_or_reserved(gateway: Gateway) -> None:
    """Ten thousand of them: `python -m benchmarks.envoy`."""
    url = next(str(line["url"]) for line in gateway.adapter.log_lines() if line["event"] == "serving")
    before = len(gateway.completed)
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}).encode()

    async def abort(client: ExtProcClient, number: int) -> None:
        """Right after the head, while it is decided, or when it is on the books."""
        call = client.open()
        await call.request()
        if number % 3:
            await call.body(body)
        if number % 3 == 2:
            await call.replies(2)
        call.reset()

    async with ExtProcClient(url.partition("://")[2]) as client:
        for start in range(0, 300, 50):
            await asyncio.gather(*(abort(client, number) for number in range(start, start + 50)))

    async def nothing_left() -> bool:
        texts: list[str] = []
        for process in (gateway.adapter, *gateway.stack.services["scheduler"]):
            async with gateway.http.get(f"{process.http_url}/metrics") as answer:
                texts.append(await answer.text())
        return metric(texts[0], "pointsman_edge_open_requests") == metric(texts[1], OPEN_REQUESTS) == 0

    await eventually(nothing_left, timeout=60)
    # One that hadn't arrived when it was reset is none.
    await eventually(lambda: len(gateway.completed) - before > 100)


async def test_models_are_listed(gateway: Gateway) -> None:
    async with gateway.http.get(gateway.doors["buffered"] + "/v1/models") as answer:
        listed = await answer.json()
    assert MODEL in {model["id"] for model in listed["data"]}


async def test_without_the_scheduler_the_adapter_decides_alone_or_by_its_own(gateway: Gateway) -> None:
    gateway.stack.services["scheduler"][0].kill()
    try:

        async def alone() -> bool:
            status, _, headers = await gateway.ask("duplex")
            return status == 200 and headers["x-pointsman-level"] == ("full" if gateway.bundled else "static")

        await eventually(alone)
    finally:
        await gateway.stack.restart("scheduler", 0)


async def test_while_nats_is_gone_the_adapter_decides_alone_and_tells_everything_once_it_is_back(
    gateway: Gateway,
) -> None:
    async def full() -> bool:
        status, _, headers = await gateway.ask("buffered")
        return status == 200 and headers["x-pointsman-level"] == "full"

    await eventually(full, timeout=60)
    async with observing(gateway.stack.nats.url) as seen:
        heard = seen.listen(PoolSnapshot, ANY)
        # The adapter hears them with us: it knows the pool by the second one.
        await eventually(lambda: len(heard) >= 2, timeout=60)
    await asyncio.to_thread(gateway.stack.nats.kill)
    ids: list[str] = []
    try:

        async def alone() -> bool:
            status, _, headers = await gateway.ask("duplex")
            if status == 200 and headers["x-pointsman-level"] == ("degraded" if gateway.bundled else "static"):
                ids.append(headers["x-request-id"])
            return len(ids) >= 3

        await eventually(alone)
        # A health check must keep succeeding.
        async with gateway.http.get(f"{gateway.adapter.http_url}/ready") as answer:
            assert (answer.status, await answer.json()) == (200, {"ready": True, "reasons": {}})
    finally:
        await asyncio.to_thread(gateway.stack.nats.start)

    await eventually(full, timeout=60)
    # The stream has them, whichever process was back first.
    async with observing(gateway.stack.nats.url) as seen:
        told: dict[str, str] = {}

        async def keep(message: Msg) -> None:
            event = ResponseCompleted.decode(message.data)
            told[event.request_id] = event.outcome

        await seen.js.subscribe(subject(ResponseCompleted, ANY), cb=keep, ordered_consumer=True)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        await eventually(lambda: {told.get(request_id) for request_id in ids} == {"ok"})


async def test_the_adapters_metrics_are_documented(gateway: Gateway) -> None:
    documented = metrics_reference()
    async with gateway.http.get(f"{gateway.adapter.http_url}/metrics") as answer:
        text = await answer.text()
    families = [family for family in text_string_to_metric_families(text) if family.name.startswith("pointsman_")]
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert [name for name in sorted(names) if f"`{name}`" not in documented] == []


async def test_an_adapter_that_hangs_fails_its_requests_soon_and_serves_again_when_it_goes_on(gateway: Gateway) -> None:
    doors = ("usual", "buffered", "duplex")
    assert [(await gateway.ask(door))[0] for door in doors] == [200, 200, 200]
    gateway.adapter.pause()
    try:
        async with asyncio.timeout(60):  # less than Envoy's wait for a message or a request
            answers = await asyncio.gather(*(gateway.ask(door) for door in doors))
    finally:
        gateway.adapter.resume()
    assert [status for status, _, _ in answers] == [500, 500, 500]

    async def all_served() -> bool:
        return [(await gateway.ask(door))[0] for door in doors] == [200, 200, 200]

    await eventually(all_served)


@pytest.mark.requirement("S1-30")
async def test_without_the_adapter_envoy_fails_closed_or_open_and_recovers_when_it_is_back(gateway: Gateway) -> None:
    gateway.adapter.kill()
    assert [(await gateway.ask(door))[0] for door in ("usual", "buffered")] == [500, 500]
    status, _, headers = await gateway.ask("open")
    assert status == 200
    assert "x-pointsman-level" not in headers
    gateway.adapter = gateway.start_adapter()
    await gateway.adapter.wait_ready()
    for door in ("usual", "buffered", "duplex", "open"):

        async def served(door: str = door) -> bool:
            status, _, headers = await gateway.ask(door)
            return status == 200 and "x-pointsman-level" in headers

        await eventually(served)
