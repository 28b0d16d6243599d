"""A silent stream keeps its client's connection open, in the form of its API; before the first event, too."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from pointsman_contracts.journey import Target
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_contracts.response import ResponseCompleted
from pointsman_testing import eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import post, raw_connection, raw_request
from pointsman_testing.scripted_engine import Received, ScriptedEngine

CHAT = "/v1/chat/completions"
OFTEN: dict[str, object] = {"edge": {"keep_alive": "250ms"}}
COMMENT = b": keep-alive\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
Script = Callable[[Received], Awaitable[None]]


def chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({"id": "c", "model": "llama-8b", "choices": [choice]}).encode() + b"\n\n"


ROLE = chunk({"role": "assistant", "content": ""})
HELLO = chunk({"content": "Hello"})
END = chunk({}, "stop") + b"data: [DONE]\n\n"


def body(**fields: object) -> bytes:
    document = {"model": "llama-8b", "messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
    return json.dumps(document).encode()


def script(*parts: bytes | float) -> Script:
    """A stream of these pieces; a number is a pause in seconds."""

    async def play(request: Received) -> None:
        await request.begin_stream()
        for part in parts:
            if isinstance(part, bytes):
                await request.chunk(part)
            else:
                await asyncio.sleep(part)
        await request.chunk(b"")

    return play


@pytest.mark.parametrize(
    ("path", "parts", "form"),
    [
        (CHAT, (HELLO, 0.7, END), COMMENT),
        (
            "/v1/messages",
            (
                b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"text":"Hi"}}\n\n',
                0.7,
                b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
            ),
            PING,
        ),
    ],
)
async def test_a_silent_stream_gets_events_that_its_clients_pass_over(
    start_edge: StartEdge, path: str, parts: tuple[bytes | float, ...], form: bytes
) -> None:
    async with ScriptedEngine(script(*parts)) as engine:
        edge = await start_edge(engine.url, config=OFTEN)
        answer = await raw_request(edge.url, post(path, body(max_tokens=9)))
    assert answer.body.count(form) >= 1
    said = b"".join(part for part in parts if isinstance(part, bytes))
    assert answer.body.replace(form, b"") == said


async def test_events_are_never_parted(start_edge: StartEdge) -> None:
    async with ScriptedEngine(script(HELLO, HELLO[:20], 0.7, HELLO[20:], END)) as engine:
        edge = await start_edge(engine.url, config=OFTEN)
        answer = await raw_request(edge.url, post(CHAT, body()))
    assert HELLO + COMMENT in answer.body
    assert answer.body.replace(COMMENT, b"") == HELLO + HELLO + END


async def test_switched_off_nothing_is_added(start_edge: StartEdge) -> None:
    async with ScriptedEngine(script(HELLO, 0.5, END)) as engine:
        edge = await start_edge(engine.url, config={"edge": {"keep_alive": "off"}})
        answer = await raw_request(edge.url, post(CHAT, body()))
    assert answer.body == HELLO + END


async def test_the_head_of_a_stream_leaves_before_its_first_event_where_that_takes_long(start_edge: StartEdge) -> None:
    release = asyncio.Event()

    async def thinks(request: Received) -> None:
        await request.begin_stream()
        await release.wait()
        await request.chunk(HELLO + END)
        await request.chunk(b"")

    async with ScriptedEngine(thinks) as engine:
        edge = await start_edge(engine.url, config=OFTEN)
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, body()))
            head = await client.read_until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert b"text/event-stream" in head
            assert COMMENT in await client.read_until(b"alive\n\n\r\n")
            release.set()
            rest = await client.read_until(b"0\r\n\r\n")
        assert HELLO in rest
        await eventually(lambda: edge.events.of(ResponseCompleted))
    assert edge.events.of(ResponseCompleted)[0].outcome == "ok"


async def test_a_document_never_begins_early(start_edge: StartEdge) -> None:
    async def slow(request: Received) -> None:
        await asyncio.sleep(0.6)
        await request.answer(b'{"error":{"message":"busy"}}', status=503)

    async with ScriptedEngine(slow) as engine:
        edge = await start_edge(engine.url, config=OFTEN)
        answer = await raw_request(edge.url, post(CHAT, body(stream=False)))
    assert answer.status == 503


@pytest.mark.parametrize("comments", [1, 3])
async def test_an_error_behind_comments_has_a_status_unless_they_went_on_for_long(
    start_edge: StartEdge, comments: int
) -> None:
    error = b'data: {"error":{"message":"busy","code":503,"type":"overloaded_error"}}\n\n'
    async with ScriptedEngine(
        script(*[b": PROCESSING\n\n", 0.6] * (comments - 1), b": PROCESSING\n\n", error)
    ) as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post(CHAT, body()))
    assert answer.status == (503 if comments == 1 else 200)
    assert b'"overloaded_error"' in answer.body
    if comments > 1:
        assert answer.body.startswith(COMMENT)
        assert answer.body.count(b"data: ") == 1


async def test_the_next_endpoint_goes_on_with_a_stream_whose_head_has_left(start_edge: StartEdge) -> None:
    async with (
        ScriptedEngine(script(b": PROCESSING\n\n", 0.6, b": PROCESSING\n\n", ROLE)) as first,
        ScriptedEngine(script(HELLO, END)) as second,
    ):
        edge = await start_edge(first.url, second.url)
        answer = await raw_request(edge.url, post(CHAT, body()))
    assert (answer.status, answer.complete) == (200, True)
    assert answer.body == COMMENT + HELLO + END


async def test_a_document_follows_such_a_head_as_events(start_edge: StartEdge) -> None:
    async def document(request: Received) -> None:
        await asyncio.sleep(0.6)
        message = {"role": "assistant", "content": "Hello"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        await request.answer(
            json.dumps({"object": "chat.completion", "model": "llama-8b", "choices": [choice]}).encode()
        )

    async with ScriptedEngine(document) as engine:
        edge = await start_edge(engine.url, config=OFTEN)
        answer = await raw_request(edge.url, post(CHAT, body()))
    *_, event, done, rest = answer.body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert json.loads(event.removeprefix(b"data: "))["choices"][0]["delta"]["content"] == "Hello"


async def _only(edge: EdgeUnderTest, *targets: Target) -> None:
    first, *others = targets
    endpoint = ChosenEndpoint(worker=first.provider or "", url="", target=first)
    changes = {"target": first, "endpoints": (endpoint,), "alternatives": tuple(others), "scheduler": ""}
    edge.stages.changes = {"model": "large", **changes}


@pytest.mark.parametrize(
    "parts",
    [(ROLE,), (b": wait\n\n",), (ROLE, b'data: {"error":{"message":"busy"}}\n\n'), ()],
    ids=["role only", "comments only", "an error", "nothing"],
)
async def test_a_provider_that_says_nothing_is_followed_by_the_next_one(
    start_edge: StartEdge, parts: tuple[bytes, ...]
) -> None:
    async with ScriptedEngine(script(*parts)) as first, ScriptedEngine(script(HELLO, END)) as second:
        providers = {
            name: {"kind": "openai", "base_url": f"{engine.url}/v1"} for name, engine in (("a", first), ("b", second))
        }
        edge = await start_edge(config={"providers": providers, "models": {}})
        await _only(edge, Target(model="m", provider="a"), Target(model="m", provider="b"))
        answer = await raw_request(edge.url, post(CHAT, body()))
        assert answer.status == 200
        assert b"Hello" in answer.body
        await eventually(lambda: edge.events.of(ResponseCompleted))
    assert [each.worker for each in edge.events.of(ResponseCompleted)[0].attempts] == ["a", "b"]


async def test_a_kept_connection_that_a_provider_has_closed_is_no_failure(start_edge: StartEdge) -> None:
    async def once(request: Received) -> None:
        first = [each for each in engine.received if each.connection == request.connection]
        if len(first) > 1:
            request.cut()
            return
        await script(HELLO, END)(request)

    async with ScriptedEngine(once) as engine:
        edge = await start_edge(
            config={"providers": {"a": {"kind": "openai", "base_url": f"{engine.url}/v1"}}, "models": {}}
        )
        await _only(edge, Target(model="m", provider="a"))
        for _ in range(3):
            assert (await raw_request(edge.url, post(CHAT, body()))).status == 200
        await eventually(lambda: len(edge.events.of(ResponseCompleted)) == 3)
    assert engine.connections == 3
    assert {len(each.attempts) for each in edge.events.of(ResponseCompleted)} == {1}
