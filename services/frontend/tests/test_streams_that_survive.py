"""A client of the frontend reads one whole answer though the engine that began it dies: over real sockets."""

import asyncio
import gc
import json
from typing import Any

import openai
import pytest

from pointsman_apis.chat import CHAT
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseStarted
from pointsman_edge.sending.retry_budget import RetryBudget
from pointsman_frontend.domain.resuming.passed_stream import PassedStream
from pointsman_testing import eventually
from pointsman_testing.continuing_engine import Body, ContinuingEngine
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import Received, Script, ScriptedEngine

RESUMED: Body = {"profiles": {"standard": {"resume": "exact"}}}

POOL = "llama-8b"
ENGINE = ContinuingEngine(model=POOL)
ASKED: Body = {
    "model": POOL,
    "messages": [{"role": "user", "content": "Tell me"}],
    "max_tokens": 50,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}
MODELS = b'{"object":"list","data":[{"id":"llama-8b","max_model_len":4096}]}'


def serving(engine: ContinuingEngine, *, events: int | None = None, models: bytes = MODELS) -> Script:
    """Answers as this engine does; with `events` it dies after so many of a stream."""

    async def script(request: Received) -> None:
        if request.method == "GET":
            await request.answer(models)
            return
        await request.begin_stream()
        for number, event in enumerate(engine.events(request.path, json.loads(request.body))):
            if number == events:
                await request.chunk(event[: len(event) // 2])
                request.cut()
                return
            await request.chunk(event)
        await request.chunk(b"")

    return script


def tell_kinds(edge: EdgeUnderTest, *kinds: str) -> None:
    views = tuple(
        WorkerView(worker=f"worker-{number}", url="http://x", engine=kind) for number, kind in enumerate(kinds, 1)
    )
    edge.hear(PoolSnapshot(pool=POOL, source="c", sequence=1, at_ms=1, workers=views))


def text_of(stream: bytes) -> str:
    events = [json.loads(line[6:]) for line in stream.split(b"\n\n") if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


def body(**more: Any) -> bytes:
    return json.dumps(ASKED | more).encode()


@pytest.mark.parametrize("resume", ["exact", "text"])
async def test_nothing_is_read_again_in_a_stream_that_ends_well(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, resume: str
) -> None:
    """To read all of it again takes a third of a request's time."""
    read: list[bytes] = []

    def note(stream: PassedStream, data: bytes) -> None:
        del stream
        read.append(data)

    monkeypatch.setattr(PassedStream, "read_events", note)
    async with ScriptedEngine(serving(ENGINE)) as engine:
        edge = await start_edge(engine.url, config={"profiles": {"standard": {"resume": resume}}})
        tell_kinds(edge, "vllm")
        answer = await raw_request(edge.url, post(CHAT.path, body()))
    assert text_of(answer.body)
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert read == []


async def test_the_official_client_reads_one_answer_of_two_engines(start_edge: StartEdge) -> None:
    dying, living = serving(ENGINE, events=9), serving(ContinuingEngine(model="x", answer_id="2"))
    plain = [json.loads(event[6:]) for event in ENGINE.events(CHAT.path, ASKED) if event != b"data: [DONE]\n\n"]
    async with ScriptedEngine(dying) as first, ScriptedEngine(living) as second:
        edge = await start_edge(first.url, second.url, config=RESUMED)
        tell_kinds(edge, "vllm", "vllm")
        async with openai.AsyncOpenAI(base_url=f"{edge.url}/v1", api_key="unused", max_retries=0) as ai:
            create: Any = ai.chat.completions.create
            chunks: list[Any] = [chunk async for chunk in await create(**ASKED)]
        assert json.loads(first.received[0].body)["return_token_ids"] is True
        assert [request.path for request in second.received] == ["/v1/completions"]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "".join(each["choices"][0]["delta"]["content"] for each in plain if each["choices"])
    assert {chunk.id for chunk in chunks} == {"chatcmpl-1"}
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices and chunk.choices[0].delta.role] == [
        "assistant"
    ]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("stop", "length")
    (usage,) = [chunk.usage for chunk in chunks if chunk.usage]
    assert usage.model_dump(exclude_none=True) == plain[-1]["usage"]
    (failed,) = edge.events.of(AttemptFailed)
    assert (failed.worker, failed.outcome, failed.next_worker) == ("worker-1", "cut_off", "worker-2")
    assert [each.worker for each in edge.events.of(ResponseStarted)] == ["worker-1", "worker-2"]
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.outcome, done.status, done.worker) == ("ok", 200, "worker-2")
    assert [(each.worker, each.outcome) for each in done.attempts] == [
        ("worker-1", "cut_off"),
        ("worker-2", "answered"),
    ]
    (seam,) = done.seams
    assert (seam.worker, seam.next_worker, seam.form) == ("worker-1", "worker-2", "exact")
    assert 0 < seam.kept_tokens < seam.computed_again
    assert seam.gap_ms >= 0
    assert seam.at_ms >= 0
    assert done.usage is not None
    assert done.usage.completion_tokens == plain[-1]["usage"]["completion_tokens"]
    assert edge.metric("pointsman_edge_resumed_total") == 1
    assert edge.metric("pointsman_edge_resume_tokens_total") == seam.computed_again


async def test_a_chat_without_a_limit_is_as_long_as_the_next_engine_allows(start_edge: StartEdge) -> None:
    async with ScriptedEngine(serving(ENGINE, events=5)) as first, ScriptedEngine(serving(ENGINE)) as second:
        edge = await start_edge(first.url, second.url, config=RESUMED)
        tell_kinds(edge, "vllm", "vllm")
        answer = await raw_request(edge.url, post(CHAT.path, body(max_tokens=None)))
        assert answer.body.endswith(b"data: [DONE]\n\n")
        asked = json.loads(second.received[1].body)
        assert asked["max_tokens"] == 4096 - len(asked["prompt"])


@pytest.mark.parametrize(
    "models",
    [
        b'{"data":[{"id":"llama-8b","max_model_len":12}]}',
        b'{"data":[{"id":"llama-8b","max_model_len":-1}]}',
        b'{"data":[{"id":"llama-8b","max_model_len":"long"}]}',
        b'{"data":[]}',
        b"<html>",
        b" " * 2_000_000,
    ],
    ids=["shorter than the answer", "negative", "a text", "no model", "a page", "without end"],
)
async def test_an_engine_that_could_not_hold_the_answer_does_not_end_it(start_edge: StartEdge, models: bytes) -> None:
    scripts = serving(ENGINE, events=5), serving(ENGINE, models=models), serving(ENGINE)
    async with ScriptedEngine(scripts[0]) as first, ScriptedEngine(scripts[1]) as second:
        async with ScriptedEngine(scripts[2]) as third:
            edge = await start_edge(first.url, second.url, third.url, config=RESUMED)
            tell_kinds(edge, "vllm", "vllm", "vllm")
            answer = await raw_request(edge.url, post(CHAT.path, body(max_tokens=None)))
            assert [request.path for request in third.received] == ["/v1/models", "/v1/completions"]
        assert [request.path for request in second.received] == ["/v1/models"]
    assert text_of(answer.body) == text_of(ENGINE.stream(CHAT.path, ASKED | {"max_tokens": None}))


@pytest.mark.parametrize("says", ["nothing", "comments", "empty texts"])
async def test_a_rest_that_never_comes_is_left_as_soon_as_a_stream_that_stops(start_edge: StartEdge, says: str) -> None:
    async def hangs(request: Received) -> None:
        if says != "nothing":
            await request.begin_stream()
        while not request.gone.is_set():
            if says == "comments":
                await request.chunk(b": working\n\n")
            elif says == "empty texts":
                await request.chunk(b'data: {"choices":[{"index":0,"text":"","finish_reason":null}]}\n\n')
            await asyncio.wait({asyncio.ensure_future(request.gone.wait())}, timeout=0.05)

    async with ScriptedEngine(serving(ENGINE, events=9)) as first, ScriptedEngine(hangs) as second:
        async with ScriptedEngine(serving(ENGINE)) as third:
            edge = await start_edge(
                first.url, second.url, third.url, config=RESUMED | {"edge": {"stream_idle_timeout": 0.3}}
            )
            tell_kinds(edge, "vllm", "vllm", "vllm")
            answer = await raw_request(edge.url, post(CHAT.path, body()))
        await eventually(lambda: second.received[0].gone.is_set())
    assert text_of(answer.body) == text_of(ENGINE.stream(CHAT.path, ASKED))
    (done,) = edge.events.of(ResponseCompleted)
    assert [each.outcome for each in done.attempts] == ["cut_off", "timeout", "answered"]


@pytest.mark.parametrize(
    ("kinds", "settings", "more", "reason"),
    [
        (("vllm", "sglang"), {}, {}, "no_engine"),
        (("vllm", "vllm"), {}, {"tools": [{"type": "function"}]}, "tools"),
        (("vllm", "vllm"), {"resume": "off"}, {}, None),
        (("vllm", "vllm"), {"resume_attempts": 0}, {}, None),
        (("", "vllm"), {}, {}, None),
    ],
    ids=["no other engine of the kind", "tools", "off", "no attempts", "an unknown kind"],
)
async def test_otherwise_the_stream_ends_with_an_error(
    start_edge: StartEdge, kinds: tuple[str, ...], settings: Body, more: Body, reason: str | None
) -> None:
    async with ScriptedEngine(serving(ENGINE, events=9)) as first, ScriptedEngine(serving(ENGINE)) as second:
        edge = await start_edge(
            first.url, second.url, config={"profiles": {"standard": {"resume": "exact", **settings}}}
        )
        tell_kinds(edge, *kinds)
        answer = await raw_request(edge.url, post(CHAT.path, body(**more)))
    assert b"The engine stopped before its answer was complete" in answer.body
    assert b'token_ids":[' not in answer.body
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.outcome, done.seams, done.unresumed) == ("cut_off", (), reason)
    assert not second.received


async def test_engines_that_die_one_after_the_other_are_each_asked_once(start_edge: StartEdge) -> None:
    scripts = [serving(ENGINE, events=number) for number in (6, 5, 4, 3)]
    engines = [ScriptedEngine(script) for script in scripts]
    for engine in engines:
        await engine.start()
    edge = await start_edge(*(engine.url for engine in engines), config=RESUMED)
    tell_kinds(edge, *["vllm"] * 4)
    answer = await raw_request(edge.url, post(CHAT.path, body(ignore_eos=True, max_tokens=90)))
    assert b"error" in answer.body
    (done,) = edge.events.of(ResponseCompleted)
    assert [each.worker for each in done.attempts] == ["worker-1", "worker-2", "worker-3"]
    assert [(seam.worker, seam.next_worker) for seam in done.seams] == [
        ("worker-1", "worker-2"),
        ("worker-2", "worker-3"),
    ]
    assert done.unresumed == "no_engine"
    assert edge.metric("pointsman_edge_unresumed_total") == 1
    for engine in engines:
        await engine.stop()


async def test_a_spent_budget_continues_nothing(start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    def spent(budget: RetryBudget, now: float) -> bool:
        del budget, now
        return False

    monkeypatch.setattr(RetryBudget, "spend", spent)
    async with ScriptedEngine(serving(ENGINE, events=9)) as first, ScriptedEngine(serving(ENGINE)) as second:
        edge = await start_edge(first.url, second.url, config=RESUMED)
        tell_kinds(edge, "vllm", "vllm")
        answer = await raw_request(edge.url, post(CHAT.path, body()))
    assert b"The engine stopped before its answer was complete" in answer.body
    assert not second.received
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.outcome, done.unresumed) == ("cut_off", "no_engine")


async def test_an_engine_whose_stream_has_an_error_of_its_own_is_continued(start_edge: StartEdge) -> None:
    """vLLM's server outlives its engine for a moment, says so in the stream, and ends that as if it were whole."""

    async def fails(request: Received) -> None:
        await request.begin_stream()
        for number, event in enumerate(ENGINE.events(request.path, json.loads(request.body))):
            if number == 6:
                break
            await request.chunk(event)
        error = {"message": "EngineCore encountered an issue.", "type": "Internal Server Error", "code": 500}
        await request.chunk(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"error": error}).encode())
        await request.chunk(b"")

    async with ScriptedEngine(fails) as first, ScriptedEngine(serving(ENGINE)) as second:
        edge = await start_edge(first.url, second.url, config=RESUMED)
        tell_kinds(edge, "vllm", "vllm")
        answer = await raw_request(edge.url, post(CHAT.path, body()))
        assert b"EngineCore" not in answer.body
        assert answer.body.count(b"[DONE]\n\n") == 1
        (done,) = edge.events.of(ResponseCompleted)
        assert (done.outcome, len(done.seams)) == ("ok", 1)
        # Without another engine, the client gets the engine's own error.
        await second.stop()
        answer = await raw_request(edge.url, post(CHAT.path, body()))
        assert b"EngineCore encountered an issue" in answer.body


@pytest.mark.parametrize("size", [1, 400_000], ids=["short", "in pieces"])
async def test_a_client_gets_no_ids_from_an_engine_that_answers_a_stream_as_a_whole(
    start_edge: StartEdge, size: int
) -> None:
    ids = list(range(size))
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop", "token_ids": ids}

    async def answers(request: Received) -> None:
        asked = json.loads(request.body)["return_token_ids"]
        document = {"id": "1", "choices": [choice if asked else {}], "prompt_token_ids": ids}
        await request.answer(json.dumps(document).encode())

    async with ScriptedEngine(answers) as first:
        edge = await start_edge(first.url, config=RESUMED)
        tell_kinds(edge, "vllm")
        answer = await raw_request(edge.url, post(CHAT.path, body()))
    hidden = {"id": "1", "choices": [choice | {"token_ids": None}], "prompt_token_ids": None}
    assert json.loads(answer.body) == hidden


async def test_a_stream_that_no_engine_broke_off_leaves_no_circle_for_the_garbage_collector(
    start_edge: StartEdge,
) -> None:
    async with ScriptedEngine(serving(ENGINE)) as first, ScriptedEngine(serving(ENGINE)) as second:
        edge = await start_edge(first.url, second.url, config=RESUMED)
        tell_kinds(edge, "vllm", "vllm")
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            answer = await raw_request(edge.url, post(CHAT.path, body()))
            await eventually(lambda: edge.events.of(ResponseCompleted))
            gc.collect()
            left = {type(each).__name__ for each in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert b"return_token_ids" in first.received[0].body
    assert not left & {"HttpRequest", "Outgoing", "RequestRecord", "Resuming"}
