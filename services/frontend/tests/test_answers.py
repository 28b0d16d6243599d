"""Answers to clients when everything works."""

import asyncio
import gc
import json
from array import array
from base64 import b64decode
from collections import Counter

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from pointsman_contracts.journey import BodyEdit, HeaderEdit, Target
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.response import ResponseCompleted, ResponseStarted, Usage
from pointsman_runtime.telling.process import Process
from pointsman_runtime.telling.telemetry import Tracing, provider_for
from pointsman_testing import eventually
from pointsman_testing.fake_stages import StartEdge
from pointsman_testing.raw_http import post, raw_connection, raw_request
from pointsman_testing.scripted_engine import ANSWER, Received, Script, ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = b'{ "model": "llama-8b",  "temperature": 1.0, "messages": [ {"role":"user","content":"caf\xc3\xa9"} ] }'
EVENTS = [
    b'data: {"id":"1","model":"llama-8b","choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"id":"1","model":"llama-8b","choices":[{"delta":{"content":"b"}}]}\n\n',
    b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":1}}}\n\n',
    b"data: [DONE]\n\n",
]


async def stream(request: Received) -> None:
    await request.begin_stream()
    for event in EVENTS:
        await request.chunk(event)
    await request.chunk(b"")


async def test_a_request_goes_to_the_engine_and_back_byte_for_byte(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post(CHAT, BODY, "x-request-id: my-1"))
    assert (answer.status, answer.body, answer.complete) == (200, ANSWER, True)
    assert answer.header("content-type") == "application/json"
    assert answer.header("content-length") == str(len(ANSWER))
    assert answer.header("x-request-id") == "my-1"
    assert answer.header("x-pointsman-level") == "full"
    (seen,) = engine.received
    assert (seen.path, seen.body) == (CHAT, BODY)
    assert seen.header("x-request-id") == "my-1"
    (asked,) = edge.stages.asked
    assert asked[1] == BODY
    assert (asked[0].request_id, asked[0].method, asked[0].path) == ("my-1", "POST", CHAT)
    # The time that the body took to arrive is taken off.
    assert 540_000 < asked[0].deadline_ms - asked[0].received_ms <= 600_000
    (completed,) = [message for message, _ in edge.events.sent if isinstance(message, ResponseCompleted)]
    assert ResponseCompleted.decode(completed.encode()) == completed


@pytest.mark.requirement("S1-28", "S1-40")
async def test_a_stream_passes_as_it_arrives(start_edge: StartEdge) -> None:
    """The second event is sent only after the client has read the first."""
    first_read = asyncio.Event()

    async def one_by_one(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(EVENTS[0])
        await first_read.wait()
        for event in EVENTS[1:]:
            await request.chunk(event)
        await request.chunk(b"")

    async with ScriptedEngine(one_by_one) as engine:
        edge = await start_edge(engine.url)
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            head = await client.read_until(EVENTS[0])
            first_read.set()
            rest = await client.read_until(b"\r\n0\r\n\r\n")
    assert b"content-type: text/event-stream; charset=utf-8\r\n" in head
    assert b"transfer-encoding: chunked\r\n" in head
    assert b"".join(EVENTS[1:]) == b"".join(part for part in rest.split(b"\r\n") if part.startswith(b"data:"))


async def test_every_event_tells_what_happened_to_a_streamed_request(start_edge: StartEdge) -> None:
    async with ScriptedEngine(stream) as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post(CHAT, BODY, "x-request-id: my-1"))
        assert answer.body == b"".join(EVENTS)
        await eventually(lambda: edge.events.of(ResponseCompleted))
    (started,) = edge.events.of(ResponseStarted)
    assert (started.request_id, started.source, started.sequence) == ("my-1", "edge-1", 1)
    assert (started.pool, started.worker, started.attempt) == ("llama-8b", "worker-1", 1)
    assert started.ttft_ms > 0
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.request_id, done.pool, done.worker, done.model) == ("my-1", "llama-8b", "worker-1", "llama-8b")
    assert (done.status, done.outcome, done.level, done.api) == (200, "ok", "full", "chat.completions")
    assert done.stream
    assert done.usage == Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=8, reasoning_tokens=1)
    assert done.bytes_out == len(b"".join(EVENTS))
    assert [(a.worker, a.outcome, a.status) for a in done.attempts] == [("worker-1", "answered", 200)]
    assert done.ttft_ms is not None
    assert 0 < done.decided_ms <= done.ttft_ms <= done.duration_ms


async def test_events_of_a_pool_are_numbered_without_gaps(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        for _ in range(3):
            await raw_request(edge.url, post(CHAT, BODY))
        edge.stages.changes = {"target": Target(model="m", pool="other")}
        await raw_request(edge.url, post(CHAT, BODY))
        await eventually(lambda: len(edge.events.of(ResponseCompleted)) == 4)
    numbers = [(event.pool, event.sequence) for event in edge.events.of(ResponseCompleted)]
    assert numbers == [("llama-8b", 1), ("llama-8b", 2), ("llama-8b", 3), ("other", 1)]
    assert [route for message, route in edge.events.sent if isinstance(message, ResponseCompleted)][-1] == ("other",)


async def test_the_decision_edits_headers_and_body_and_leaves_the_rest(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes = {
            "body": (BodyEdit(field="model", value="other"), BodyEdit(field="temperature", remove=True)),
            "headers": (
                HeaderEdit(name="X-Prefill", value="10.0.0.1:80\r\nx-evil: 1"),
                HeaderEdit(name="user-agent", value=None),
                HeaderEdit(name="x-removed", value="by a later stage"),
                HeaderEdit(name="X-Removed"),
                HeaderEdit(name="Transfer-Encoding", value="chunked"),
                HeaderEdit(name="content-length", value="0"),
                HeaderEdit(name="host", value="elsewhere"),
            ),
        }
        await raw_request(edge.url, post(CHAT, BODY, "User-Agent: tests"))
    (seen,) = engine.received
    assert seen.body == b'{ "model": "other", "messages": [ {"role":"user","content":"caf\xc3\xa9"} ] }'
    assert seen.header("x-prefill") == "10.0.0.1:80  x-evil: 1"
    assert seen.header("x-evil") is None
    assert seen.header("user-agent") is None
    assert seen.header("x-removed") is None
    assert seen.header("content-length") == str(len(seen.body))
    assert seen.header("transfer-encoding") is None
    assert seen.header("host") != "elsewhere"
    metrics = (await raw_request(edge.url, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()
    for name in ("transfer-encoding", "content-length", "host"):
        assert f'pointsman_edge_dropped_header_edits_total{{header="{name}"}} 1.0' in metrics


LEFT = (HeaderEdit(name="X-RateLimit-Remaining-Requests", value="7"), HeaderEdit(name="server-timing"))


async def test_headers_of_stages_reach_the_client_with_every_kind_of_answer(start_edge: StartEdge) -> None:
    async def boastful(request: Received) -> None:
        await request.answer(ANSWER, more="x-ratelimit-remaining-requests: 9999\r\nserver-timing: app;dur=1\r\n")

    edge = await start_edge()
    edge.stages.changes = {"answer_headers": (*LEFT, HeaderEdit(name="content-length", value="0"))}
    for script in (boastful, stream):
        async with ScriptedEngine(script) as engine:
            edge.stages.urls = (engine.url,)
            answer = await raw_request(edge.url, post(CHAT, BODY))
        assert (answer.status, answer.header("x-ratelimit-remaining-requests")) == (200, "7")
        assert answer.header("server-timing") is None
        assert answer.body
    nobody_there = await raw_request(edge.url, post(CHAT, BODY))
    assert (nobody_there.status, nobody_there.header("x-ratelimit-remaining-requests")) == (502, "7")


async def test_the_client_gets_back_the_model_name_that_it_asked_for(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes = {"model": "auto"}
        answer = await raw_request(edge.url, post(CHAT, BODY))
        engine.script = stream
        streamed = await raw_request(edge.url, post(CHAT, BODY))
        edge.stages.changes = {}
        plain = await raw_request(edge.url, post(CHAT, BODY))
    assert json.loads(answer.body)["model"] == "auto"
    assert answer.header("x-pointsman-model") == streamed.header("x-pointsman-model") == "llama-8b"
    assert plain.header("x-pointsman-model") is None, "it is the one that was asked for"
    assert answer.complete
    assert streamed.body == b"".join(EVENTS).replace(b'"model":"llama-8b"', b'"model":"auto"')


async def test_an_answer_too_large_to_hold_passes_with_its_length(start_edge: StartEdge) -> None:
    body = b'{"data":"' + b"x" * 3_000_000 + b'","usage":{"prompt_tokens":4}}'

    async def large(request: Received) -> None:
        await request.answer(body)

    async with ScriptedEngine(large) as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post("/v1/embeddings", BODY))
        await eventually(lambda: edge.events.of(ResponseCompleted))
    assert answer.body == body
    assert answer.header("content-length") == str(len(body))
    assert edge.events.of(ResponseCompleted)[0].usage == Usage(prompt_tokens=4, cached_unknown=True)


@pytest.mark.parametrize("script", [None, stream], ids=["whole", "streamed"])
async def test_a_request_that_has_ended_leaves_no_circle_for_the_garbage_collector(
    start_edge: StartEdge, script: Script | None
) -> None:
    """Its body and its answer would stay until the next collection, which takes longer the more there is."""
    async with ScriptedEngine() if script is None else ScriptedEngine(script) as engine:
        # A connection that is closed, for it was idle for as long as a busy machine took, isn't of a request.
        edge = await start_edge(engine.url, engine_idle_s=600.0)
        await raw_request(edge.url, post(CHAT, BODY))
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                await raw_request(edge.url, post(CHAT, BODY))
            await eventually(lambda: len(edge.events.of(ResponseCompleted)) == 4)
            gc.collect()
            left = Counter(type(each).__name__ for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    # One may be of a test before this one.
    kept = {name: left[name] for name in ("HttpRequest", "Outgoing", "RequestRecord", "EngineConnection")}
    assert not [name for name, count in kept.items() if count >= 3], kept


@pytest.mark.parametrize("count", [1, 300])
async def test_a_client_that_asks_for_base64_gets_it_from_an_engine_that_answers_with_lists(
    start_edge: StartEdge, count: int
) -> None:
    vectors = [[at + 0.5] * 1000 for at in range(count)]
    body = json.dumps({"data": [{"embedding": each} for each in vectors], "usage": {"prompt_tokens": 4}}).encode()

    async def answer(request: Received) -> None:
        await request.answer(body)

    async with ScriptedEngine(answer) as engine:
        edge = await start_edge(engine.url)
        asked = b'{"model":"llama-8b","input":["a"],"encoding_format":"base64"}'
        got = await raw_request(edge.url, post("/v1/embeddings", asked))
        await eventually(lambda: edge.events.of(ResponseCompleted))
    assert [array("f", b64decode(each["embedding"])).tolist() for each in json.loads(got.body)["data"]] == vectors
    assert edge.events.of(ResponseCompleted)[0].usage == Usage(prompt_tokens=4, cached_unknown=True)


async def test_an_engine_error_is_the_clients_to_see(start_edge: StartEdge) -> None:
    error = b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}'

    async def refuse(request: Received) -> None:
        await request.answer(error, status=400)

    async with ScriptedEngine(refuse) as engine:
        edge = await start_edge(engine.url, engine.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
        await eventually(lambda: edge.events.of(ResponseCompleted))
    assert (answer.status, answer.body) == (400, error)
    assert len(engine.received) == 1
    assert edge.events.of(ResponseCompleted)[0].outcome == "ok"


async def test_headers_of_the_engines_connection_and_of_gateways_stop_at_the_edge(start_edge: StartEdge) -> None:
    async def chatty(request: Received) -> None:
        more = (
            "x-request-id: engines-own\r\nx-pointsman-level: lie\r\nserver: engine\r\nkeep-alive: 5\r\nx-other: yes\r\n"
        )
        await request.answer(ANSWER, more=more)

    async with ScriptedEngine(chatty) as engine:
        edge = await start_edge(engine.url, tell_endpoint=True)
        answer = await raw_request(edge.url, post(CHAT, BODY, "x-request-id: mine"))
    names = [name for name, _ in answer.headers]
    assert answer.header("x-request-id") == "mine"
    assert answer.header("x-pointsman-level") == "full"
    assert answer.header("x-pointsman-endpoint") == "worker-1"
    assert answer.header("x-other") == "yes"
    assert "server" not in names
    assert "keep-alive" not in names
    assert len(names) == len(set(names))


@pytest.mark.parametrize("script", [None, stream])
@pytest.mark.parametrize(("queued_ms", "told"), [(0.0, None), (0.2, "1"), (811.5, "812")])
async def test_a_client_gets_the_time_that_its_request_waited_and_none_that_an_engine_invents(
    start_edge: StartEdge, script: Script | None, queued_ms: float, told: str | None
) -> None:
    async with ScriptedEngine(script or invents_a_queue) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes = {"queued_ms": queued_ms}
        answer = await raw_request(edge.url, post(CHAT, BODY))
    assert answer.status == 200
    assert dict(answer.headers).get("x-pointsman-queue-ms") == told


async def invents_a_queue(request: Received) -> None:
    await request.answer(ANSWER, more="x-pointsman-queue-ms: 5\r\n")


async def test_the_model_list_has_configured_models_and_those_of_open_pools(start_edge: StartEdge) -> None:
    listed = {"models": ["llama-8b", "sql"], "loras": ["sql"], "only_listed": True}
    models = {"big": {"pool": "llama-8b"}}
    edge = await start_edge(config={"pools": {"llama-8b": listed, "open": {}}, "models": models})
    edge.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, models=("llama-8b", "not-listed")))
    edge.hear(PoolSnapshot(pool="open", source="c", sequence=1, at_ms=1, models=("loaded-later",)))
    answer = await raw_request(edge.url, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
    document = json.loads(answer.body)
    assert document["object"] == "list"
    assert [model["id"] for model in document["data"]] == ["big", "llama-8b", "sql", "loaded-later"]
    assert document["data"][0]["object"] == "model"
    one = await raw_request(edge.url, b"GET /v1/models/sql HTTP/1.1\r\nhost: x\r\n\r\n")
    assert json.loads(one.body)["id"] == "sql"
    none = await raw_request(edge.url, b"GET /v1/models/org/none HTTP/1.1\r\nhost: x\r\n\r\n")
    assert none.status == 404
    assert json.loads(none.body)["error"]["code"] == "model_not_found"
    assert "loaded-later" in json.loads(none.body)["error"]["message"]
    assert answer.header("x-request-id")
    assert none.header("x-request-id")


async def test_health_and_metrics_are_on_the_same_port(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        await raw_request(edge.url, post(CHAT, BODY))
        live = await raw_request(edge.url, b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        ready = await raw_request(edge.url, b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")
        metrics = await raw_request(edge.url, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (live.status, ready.status, metrics.status) == (200, 200, 200)
    line = b'pointsman_edge_requests_total{api="chat.completions",outcome="ok",status="200"} 1.0'
    assert line in metrics.body
    assert b'pointsman_edge_decisions_total{level="full"} 1.0' in metrics.body
    assert b"pointsman_edge_first_byte_seconds_count 1.0" in metrics.body


async def test_a_sampled_request_has_one_trace_through_edge_stages_and_engine(start_edge: StartEdge) -> None:
    exporter = InMemorySpanExporter()
    provider = provider_for(Process("frontend", "edge-1"))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, tracing=Tracing(provider))
        await raw_request(edge.url, post(CHAT, BODY, f"traceparent: {parent}", "x-request-id: mine"))
        await raw_request(edge.url, post(CHAT, BODY, f"traceparent: {parent[:-1]}0"))
        await raw_request(edge.url, post(CHAT, BODY, "traceparent: nonsense"))
    engine_span, request_span = exporter.get_finished_spans()
    request_id, engine_id = _span_id(request_span), _span_id(engine_span)
    assert (request_span.name, engine_span.name) == ("POST /v1/chat/completions", "chat llama-8b")
    assert (request_span.kind, engine_span.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert request_span.parent is not None
    assert f"{request_span.parent.span_id:016x}" == "cd" * 8
    assert engine_span.parent is not None
    assert f"{engine_span.parent.span_id:016x}" == request_id
    assert request_span.attributes == {
        "pointsman.request_id": "mine",
        "pointsman.pool": "llama-8b",
        "pointsman.endpoint": "worker-1",
        "pointsman.profile": "standard",
        "pointsman.level": "full",
        "pointsman.cached_tokens": 0,
        "pointsman.attempts": 1,
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "llama-8b",
        "gen_ai.response.model": "llama-8b",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert engine_span.attributes is not None
    assert engine_span.attributes["server.address"] == "127.0.0.1"
    assert engine_span.attributes["gen_ai.request.model"] == "llama-8b"
    told = [traceparent for _, _, traceparent in edge.stages.asked]
    assert told == [f"00-{'ab' * 16}-{request_id}-01", f"{parent[:-1]}0", None]
    given = [request.header("traceparent") for request in engine.received]
    assert given == [f"00-{'ab' * 16}-{engine_id}-01", f"{parent[:-1]}0", None]


def _span_id(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"{context.span_id:016x}"
