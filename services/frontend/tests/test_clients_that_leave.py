"""A client that hangs up ends its request in every phase, and the engine hears of it at once.

How fast the engine hears is asserted as an order (before anything else happens), measured in `benchmarks/`.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pointsman_contracts.identity import Identity
from pointsman_contracts.presence import OpenRequestsQuery
from pointsman_contracts.response import AttemptFailed, RequestRejected, ResponseCompleted, ResponseStarted, Usage
from pointsman_testing import eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import RawConnection, RawResponse, post, raw_connection, raw_request
from pointsman_testing.scripted_engine import Received, Script, ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'


async def say_nothing(request: Received) -> None:
    await request.gone.wait()


async def only_a_head(request: Received) -> None:
    await request.begin_stream()
    await request.gone.wait()


async def one_event(request: Received) -> None:
    await request.begin_stream()
    await request.chunk(EVENT)
    await request.gone.wait()


async def half_a_document(request: Received) -> None:
    await request.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    await request.gone.wait()


async def half_a_large_document(request: Received) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4000000\r\n\r\n"
    await request.write(head + b"x" * 2_000_000)
    await request.gone.wait()


PATHS = (CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")
PHASES: dict[str, tuple[Script, bytes | None]] = {
    "before the first byte": (say_nothing, None),
    "after the engine's head": (only_a_head, None),
    "mid-stream": (one_event, EVENT),
    "in a document that is held": (half_a_document, None),
    "in a document that passes": (half_a_large_document, b"x" * 1000),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("phase", PHASES)
async def test_the_engine_hears_when_the_client_hangs_up(start_edge: StartEdge, phase: str, path: str) -> None:
    script, seen = PHASES[phase]
    async with ScriptedEngine(script) as engine, ScriptedEngine() as other:
        edge = await start_edge(engine.url, other.url)
        async with raw_connection(edge.url) as client:
            await client.send(post(path, BODY, "x-request-id: mine"))
            await eventually(lambda: engine.received)
            if seen is not None:
                await client.read_until(seen)
            else:
                await eventually(lambda: edge.metric("pointsman_edge_open_requests"))
            client.close()
            await asyncio.wait_for(engine.received[0].gone.wait(), 30)
        (done,) = await eventually(lambda: edge.events.of(ResponseCompleted))
        assert other.received == []
    assert (done.request_id, done.outcome) == ("mine", "client_gone")
    assert done.status == (200 if seen else 499)
    assert done.worker == "worker-1"
    assert done.usage is not None
    assert edge.events.of(AttemptFailed) == []
    assert edge.events.of(RequestRejected) == []
    assert edge.metric("pointsman_edge_open_requests") == 0


async def test_the_usage_so_far_of_a_stream_that_was_left_is_reported(start_edge: StartEdge) -> None:
    async with ScriptedEngine(one_event) as engine:
        edge = await start_edge(engine.url)
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            await client.read_until(EVENT)
        (done,) = await eventually(lambda: edge.events.of(ResponseCompleted))
    assert done.usage == Usage(prompt_tokens=3, completion_tokens=1, cached_unknown=True)
    assert done.bytes_out == len(EVENT)
    assert len(edge.events.of(ResponseStarted)) == 1


async def test_the_passed_part_of_a_stream_that_was_left_is_charged_and_marked_as_estimated(
    start_edge: StartEdge,
) -> None:
    async def without_usage(request: Received) -> None:
        await request.begin_stream()
        for _ in range(5):
            await request.chunk(b'data: {"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n')
        await request.gone.wait()

    prices = {"big": {"provider": "elsewhere"}, "llama-8b": {"pool": "llama-8b", "cost": {"input": 1, "output": 10}}}
    identity = Identity(tenant="acme", subject="ci", plan="pro")
    async with ScriptedEngine(without_usage) as engine:
        edge = await start_edge(engine.url, config={"models": prices})
        edge.stages.changes = {"prompt_tokens": 100, "identity": identity}
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            for _ in range(5):
                await client.read_until(b" word")
        (done,) = await eventually(lambda: edge.events.of(ResponseCompleted))
    assert done.usage == Usage(prompt_tokens=100, completion_tokens=5, estimated=True, cached_unknown=True)
    assert (done.served, done.identity) == ("llama-8b", identity)
    assert done.cost == pytest.approx((100 * 1 + 5 * 10) / 1e6)


@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_leaves_while_the_stages_decide_is_forgotten(start_edge: StartEdge, path: str) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        edge.stages.let_go.clear()
        async with raw_connection(edge.url) as client:
            await client.send(post(path, BODY))
            await eventually(lambda: edge.stages.asked)
        (done,) = await eventually(lambda: edge.events.of(ResponseCompleted))
        assert engine.received == []
    assert edge.stages.abandoned == 1
    assert (done.outcome, done.status, done.pool, done.attempts) == ("client_gone", 499, "-", ())
    assert done.usage is None


async def test_many_clients_that_leave_at_once_leave_nothing_behind(start_edge: StartEdge) -> None:
    async with ScriptedEngine(one_event) as engine:
        edge = await start_edge(engine.url)
        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(_read_one_event(edge))
        await eventually(lambda: len(edge.events.of(ResponseCompleted)) == 50)
        await eventually(lambda: all(request.gone.is_set() for request in engine.received))
    assert {each.outcome for each in edge.events.of(ResponseCompleted)} == {"client_gone"}
    assert sorted(each.sequence for each in edge.events.of(ResponseCompleted)) == list(range(1, 51))


async def _read_one_event(edge: EdgeUnderTest) -> None:
    async with raw_connection(edge.url) as client:
        await client.send(post(CHAT, BODY))
        await client.read_until(EVENT)


async def test_the_edge_says_which_requests_are_open(start_edge: StartEdge) -> None:
    query = OpenRequestsQuery(request_ids=("mine", "other"))
    async with ScriptedEngine(one_event) as engine:
        edge = await start_edge(engine.url)
        assert edge.ask_open(query).request_ids == ()
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY, "x-request-id: mine"))
            await client.read_until(EVENT)
            assert edge.ask_open(query).request_ids == ("mine",)
        await eventually(lambda: edge.events.of(ResponseCompleted))
        assert edge.ask_open(query).request_ids == ()


async def test_a_request_that_takes_too_long_before_the_first_byte_gets_an_error_that_says_so(
    start_edge: StartEdge,
) -> None:
    async with ScriptedEngine(say_nothing) as engine:
        edge = await start_edge(engine.url, config={"edge": {"request_timeout": "200ms"}})
        answer = await raw_request(edge.url, post(CHAT, BODY))
        await asyncio.wait_for(engine.received[0].gone.wait(), 30)
    assert answer.status == 504
    assert b"request_timeout" in answer.body
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.outcome, done.status) == ("timeout", 504)


async def test_a_stream_that_takes_too_long_ends_with_an_error_event(start_edge: StartEdge) -> None:
    async with ScriptedEngine(one_event) as engine:
        edge = await start_edge(engine.url, config={"edge": {"request_timeout": "200ms"}})
        answer = await raw_request(edge.url, post(CHAT, BODY))
        await asyncio.wait_for(engine.received[0].gone.wait(), 30)
    assert answer.complete
    assert answer.body.startswith(EVENT + b'data: {"error":')
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.outcome, done.status) == ("timeout", 200)


async def test_stopping_lets_open_requests_finish_and_takes_no_new_ones(start_edge: StartEdge) -> None:
    go_on = asyncio.Event()

    async def slow(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(EVENT)
        await go_on.wait()
        await request.chunk(b"data: [DONE]\n\n")
        await request.chunk(b"")

    async with ScriptedEngine(slow) as engine:
        edge = await start_edge(engine.url, grace_s=20)
        async with raw_connection(edge.url) as client, raw_connection(edge.url) as idle:
            await client.send(post(CHAT, BODY))
            await client.read_until(EVENT)
            stopping = asyncio.ensure_future(edge.stop())
            assert await idle.closed() == b""
            await eventually(_refuses(edge.url))
            go_on.set()
            assert b"[DONE]" in await client.closed()
            await stopping
    assert [each.outcome for each in edge.events.of(ResponseCompleted)] == ["ok"]


async def test_the_first_request_of_a_new_connection_is_served_though_the_edge_ends(start_edge: StartEdge) -> None:
    """Its client can't know that the pod has left its Service in the meantime."""
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, grace_s=20)
        async with raw_connection(edge.url) as client, raw_connection(edge.url) as used:
            await used.send(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            await used.read_until(b"true")  # it came later, so both are accepted
            stopping = asyncio.ensure_future(edge.stop())
            await used.closed()
            await client.send(post(CHAT, BODY))
            assert (await client.closed()).startswith(b"HTTP/1.1 200")
            await stopping


def _refuses(url: str) -> Callable[[], Awaitable[bool]]:
    async def refused() -> bool:
        try:
            async with raw_connection(url):
                return False
        except ConnectionRefusedError:
            return True

    return refused


@pytest.mark.parametrize("phase", ["deciding", "before the first byte", "mid-stream"])
async def test_a_request_that_isnt_finished_in_time_gets_an_error_and_its_event(
    start_edge: StartEdge, phase: str
) -> None:
    async with ScriptedEngine(one_event if phase == "mid-stream" else say_nothing) as engine:
        edge = await start_edge(engine.url, grace_s=0.2)
        if phase == "deciding":
            edge.stages.let_go.clear()
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            await eventually(lambda: edge.stages.asked if phase == "deciding" else engine.received)
            if phase == "mid-stream":
                await client.read_until(EVENT)
            stopping = asyncio.ensure_future(edge.stop())
            answer = await _last_word(client, phase)
            await stopping
    assert b"shutting_down" in answer
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.outcome, done.status) == ("shutdown", 200 if phase == "mid-stream" else 503)


async def _last_word(client: RawConnection, phase: str) -> bytes:
    if phase == "mid-stream":
        return await client.read_until(b"0\r\n\r\n")
    answer: RawResponse = await client.response()
    assert (answer.status, answer.header("retry-after")) == (503, "1")
    return answer.body
