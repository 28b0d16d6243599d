"""An engine that doesn't answer costs a try, a stream that breaks ends with words, and nothing is tried twice."""

import asyncio
import json
from collections import deque

import pytest

from pointsman_contracts.journey import HeaderEdit, Target
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_contracts.response import AttemptFailed, RequestRejected, ResponseCompleted, ResponseStarted
from pointsman_testing import eventually
from pointsman_testing.fake_stages import StartEdge
from pointsman_testing.ports import free_port
from pointsman_testing.raw_http import post, raw_connection, raw_request
from pointsman_testing.scripted_engine import ANSWER, Received, Script, ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


def nobody() -> str:
    """The URL of a port that refuses connections."""
    return f"http://127.0.0.1:{free_port()}"


async def refuse_with_503(request: Received) -> None:
    await request.answer(b'{"error":"busy"}', status=503)


async def refuse_with_502(request: Received) -> None:
    await request.answer(b"", status=502)


async def hang_up(request: Received) -> None:
    request.cut()


async def hang_up_after_the_head(request: Received) -> None:
    await request.begin_stream()
    request.cut()


async def talk_nonsense(request: Received) -> None:
    await request.write(b"220 smtp ready\r\n")


async def answer_with_no_status_of_http(request: Received) -> None:
    await request.answer(b"{}", status=999)


async def redirect(request: Received) -> None:
    await request.answer(b"{}", status=307, more="location: http://10.0.0.7/admin\r\n")


async def answer_with_status_zero(request: Received) -> None:
    await request.write(b"HTTP/1.1 000 Nothing\r\ncontent-length: 2\r\n\r\n{}")


async def send_endless_headers(request: Received) -> None:
    await request.write(b"HTTP/1.1 200 OK\r\n")
    while not request.gone.is_set():
        await request.write(b"x-more: " + b"y" * 1000 + b"\r\n")


async def say_nothing(request: Received) -> None:
    await request.gone.wait()


FAILING: dict[str, tuple[Script, str, int | None]] = {
    "503": (refuse_with_503, "failed", 503),
    "502": (refuse_with_502, "failed", 502),
    "307": (redirect, "failed", 307),
    "999": (answer_with_no_status_of_http, "failed", 999),
    "000": (answer_with_status_zero, "failed", None),
    "closed": (hang_up, "failed", None),
    "closed after the head": (hang_up_after_the_head, "failed", None),
    "nonsense": (talk_nonsense, "failed", None),
    "endless headers": (send_endless_headers, "failed", None),
    "silence": (say_nothing, "timeout", None),
}


@pytest.mark.parametrize("name", FAILING)
async def test_before_the_first_byte_the_next_engine_is_tried(start_edge: StartEdge, name: str) -> None:
    script, outcome, status = FAILING[name]
    async with ScriptedEngine(script) as bad, ScriptedEngine() as good:
        edge = await start_edge(bad.url, good.url, config={"edge": {"first_byte_timeout": "200ms"}})
        answer = await raw_request(edge.url, post(CHAT, BODY, "x-request-id: mine"))
    assert (answer.status, answer.body) == (200, ANSWER)
    (failed,) = edge.events.of(AttemptFailed)
    assert (failed.request_id, failed.pool, failed.worker) == ("mine", "llama-8b", "worker-1")
    assert (failed.outcome, failed.status, failed.next_worker) == (outcome, status, "worker-2")
    # An answer that isn't streamed begins as it ends.
    assert not edge.events.of(ResponseStarted)
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.outcome, done.worker) == ("ok", "worker-2")
    assert [(each.worker, each.outcome) for each in done.attempts] == [("worker-1", outcome), ("worker-2", "answered")]
    assert len(bad.received) == 1


async def test_an_answer_of_two_lengths_is_no_answer_and_the_operator_reads_why(start_edge: StartEdge) -> None:
    """One of them would end it elsewhere than a proxy before the engine thinks (RFC 9112, 6.3)."""

    async def answer(request: Received) -> None:
        await request.answer(ANSWER, more="transfer-encoding: chunked\r\n")

    async with ScriptedEngine(answer) as engine:
        edge = await start_edge(engine.url)
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 502
    (done,) = edge.events.of(ResponseCompleted)
    assert [attempt.reason for attempt in done.attempts] == [
        "sent invalid HTTP: Transfer-Encoding can't be present with Content-Length"
    ]


async def test_the_next_engine_is_not_told_to_pull_from_what_may_be_itself(start_edge: StartEdge) -> None:
    """A pull from itself fails in NIXL (NIXL_ERR_INVALID_PARAM)."""
    async with ScriptedEngine(refuse_with_503) as first, ScriptedEngine() as second:
        edge = await start_edge(first.url, second.url)
        address = second.url.partition("//")[2]
        edge.stages.changes = {"headers": (HeaderEdit(name="x-kv-cache-source-host-port", value=address),)}
        answer = await raw_request(edge.url, post(CHAT, BODY))
    assert answer.status == 200
    assert first.received[0].header("x-kv-cache-source-host-port") == address
    assert second.received[0].header("x-kv-cache-source-host-port") is None


async def test_an_engine_that_isnt_there_is_refused_and_the_next_one_answers(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as good:
        edge = await start_edge(nobody(), good.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
    assert answer.status == 200
    (failed,) = edge.events.of(AttemptFailed)
    assert (failed.outcome, failed.status, failed.boot_id) == ("refused", None, "")


@pytest.mark.parametrize(
    "url", ["http://bücher.example:8000", "http://127.0.0.1:9/bücher", "http://a..b:8000", f"http://{'a' * 70}.b:8000"]
)
async def test_a_url_that_leads_nowhere_is_refused_and_the_next_engine_answers(start_edge: StartEdge, url: str) -> None:
    async with ScriptedEngine() as good:
        edge = await start_edge(url, good.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
    assert answer.status == 200
    (failed,) = edge.events.of(AttemptFailed)
    assert (failed.outcome, failed.worker) == ("refused", "worker-1")


async def test_a_failed_attempt_names_the_life_of_the_worker(start_edge: StartEdge) -> None:
    edge = await start_edge(nobody())
    view = WorkerView(worker="worker-1", url="http://x", boot_id="boot-7")
    edge.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(view,)))
    await raw_request(edge.url, post(CHAT, BODY))
    assert edge.events.of(AttemptFailed)[0].boot_id == "boot-7"


async def test_an_answer_of_1xx_comes_before_the_real_one(start_edge: StartEdge) -> None:
    async def early_hints(request: Received) -> None:
        await request.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        await request.answer(ANSWER)

    async with ScriptedEngine(early_hints) as engine:
        edge = await start_edge(engine.url)
        for _ in range(2):
            answer = await raw_request(edge.url, post(CHAT, BODY))
            assert (answer.status, answer.body) == (200, ANSWER)
            assert answer.header("link") is None
    assert engine.connections == 1


ENDS: dict[str, tuple[Script, int, str, str]] = {
    "503": (refuse_with_503, 503, "engine_unavailable", "engine_error"),
    "502": (refuse_with_502, 502, "engine_failed", "engine_error"),
    "307": (redirect, 502, "engine_failed", "engine_error"),
    "999": (answer_with_no_status_of_http, 502, "engine_failed", "engine_error"),
    "closed": (hang_up, 502, "engine_failed", "engine_error"),
    "silence": (say_nothing, 504, "engine_timeout", "timeout"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_when_no_engine_answers_the_status_says_how(start_edge: StartEdge, name: str) -> None:
    script, status, code, outcome = ENDS[name]
    async with ScriptedEngine(script) as first, ScriptedEngine(script) as second:
        edge = await start_edge(first.url, second.url, config={"edge": {"first_byte_timeout": "100ms"}})
        answer = await raw_request(edge.url, post(CHAT, BODY))
        assert len(first.received) == len(second.received) == 1
    assert answer.status == status
    assert json.loads(answer.body)["error"]["code"] == code
    assert (answer.header("retry-after") is not None) is (status == 503)
    assert [each.next_worker for each in edge.events.of(AttemptFailed)] == ["worker-2", None]
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.status, done.outcome, len(done.attempts)) == (status, outcome, 2)
    assert edge.events.of(RequestRejected) == []


async def test_an_engine_is_never_tried_twice_for_one_request(start_edge: StartEdge) -> None:
    async with ScriptedEngine(refuse_with_503) as engine:
        edge = await start_edge(engine.url, engine.url, engine.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
    assert answer.status == 503
    assert len(engine.received) == 1


async def test_a_fallback_to_another_model_gets_that_models_name(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as good:
        edge = await start_edge()
        edge.stages.changes = {
            "endpoints": (
                ChosenEndpoint(worker="w1", url=nobody()),
                ChosenEndpoint(worker="w2", url=good.url, target=Target(model="other", pool="p2")),
            )
        }
        await raw_request(edge.url, post(CHAT, BODY))
    assert json.loads(good.received[0].body)["model"] == "other"


async def test_a_connection_that_the_engine_had_closed_for_being_idle_costs_no_attempt(start_edge: StartEdge) -> None:
    async def close_when_used_again(request: Received) -> None:
        if len(engine.received) == 2:
            request.cut()
        else:
            await request.answer(ANSWER)

    async with ScriptedEngine(close_when_used_again) as engine:
        edge = await start_edge(engine.url)
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
        assert [request.connection for request in engine.received] == [1, 1, 2]
    assert edge.events.of(AttemptFailed) == []


async def test_connections_to_engines_are_used_again(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        for _ in range(5):
            await raw_request(edge.url, post(CHAT, BODY))
        assert engine.connections == 1


async def test_an_engine_that_closes_after_each_answer_is_connected_to_anew(start_edge: StartEdge) -> None:
    async def once(request: Received) -> None:
        await request.answer(ANSWER, more="connection: close\r\n")
        request.writer.close()

    async with ScriptedEngine(once) as engine:
        edge = await start_edge(engine.url)
        for _ in range(3):
            assert (await raw_request(edge.url, post(CHAT, BODY))).body == ANSWER
        assert engine.connections == 3
    assert edge.events.of(AttemptFailed) == []


async def test_an_answer_that_ends_with_its_connection_is_whole(start_edge: StartEdge) -> None:
    async def old_fashioned(request: Received) -> None:
        await request.write(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + ANSWER)
        request.writer.close()

    async with ScriptedEngine(old_fashioned) as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
    assert (answer.status, answer.body, answer.complete) == (200, ANSWER, True)


async def test_an_engine_that_says_more_than_asked_loses_its_connection(start_edge: StartEdge) -> None:
    async def twice(request: Received) -> None:
        await request.answer(ANSWER)
        await request.answer(b'{"for":"somebody else"}')
        await request.gone.wait()

    async with ScriptedEngine(twice) as engine:
        edge = await start_edge(engine.url)
        for _ in range(3):
            assert (await raw_request(edge.url, post(CHAT, BODY))).body == ANSWER
        for request in engine.received:
            await asyncio.wait_for(request.gone.wait(), 30)


CUTS = {
    "between events": [EVENT, EVENT],
    "within an event": [EVENT, EVENT, EVENT[:20]],
    "within the end of an event": [EVENT, EVENT, EVENT[:-1]],
}


@pytest.mark.parametrize("name", CUTS)
async def test_a_stream_that_is_cut_off_ends_with_an_error_event(start_edge: StartEdge, name: str) -> None:
    async def cut(request: Received) -> None:
        await request.begin_stream()
        for chunk in CUTS[name]:
            await request.chunk(chunk)
        await eventually(lambda: edge.events.of(ResponseStarted))
        request.cut()

    async with ScriptedEngine(cut) as engine, ScriptedEngine() as other:
        edge = await start_edge(engine.url, other.url)
        answer = await raw_request(edge.url, post(CHAT, BODY, "x-request-id: mine"))
        assert other.received == []
    assert (answer.status, answer.complete) == (200, True)
    assert answer.body.startswith(EVENT + EVENT + b'data: {"error":')
    assert answer.body.endswith(b"\n\n")
    last = json.loads(answer.body[len(EVENT) * 2 + 6 :])
    assert last["error"]["code"] == "engine_cut_off"
    assert last["error"]["type"] == "server_error"
    assert "mine" in last["error"]["message"]
    assert b"[DONE]" not in answer.body
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.status, done.outcome) == (200, "cut_off")
    assert [each.outcome for each in done.attempts] == ["cut_off"]


@pytest.mark.parametrize("line", [b"x-more: " + b"y" * 1000 + b"\r\n", b"y" * 1000])
async def test_trailers_without_end_cut_the_answer_off(start_edge: StartEdge, line: bytes) -> None:
    async def trail(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(EVENT)
        await request.write(b"0\r\nx-first: ")
        for _ in range(200):
            await request.write(line)
        await request.gone.wait()

    async with ScriptedEngine(trail) as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
    assert answer.body.startswith(EVENT + b'data: {"error":')
    assert edge.events.of(ResponseCompleted)[0].attempts[0].outcome == "cut_off"


async def test_trailers_are_no_headers(start_edge: StartEdge) -> None:
    async def trail(request: Received) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        chunk = b"%x\r\n%b\r\n" % (len(ANSWER), ANSWER)
        await request.write(head + chunk + b"0\r\nx-late: 1\r\ncontent-type: text/html\r\n\r\n")

    async with ScriptedEngine(trail) as engine:
        edge = await start_edge(engine.url)
        for _ in range(2):
            answer = await raw_request(edge.url, post(CHAT, BODY))
            assert (answer.status, answer.body) == (200, ANSWER)
            assert [answer.header("x-late"), answer.header("content-type")] == [None, "application/json"]
    assert engine.connections == 1


async def test_lines_of_a_head_may_end_with_a_line_feed_alone(start_edge: StartEdge) -> None:
    async def end_lines_shortly(request: Received) -> None:
        head = b"HTTP/1.1 200 OK\ncontent-type: application/json\ncontent-length: %d\n\n" % len(ANSWER)
        await request.write(head + ANSWER)

    async with ScriptedEngine(end_lines_shortly) as engine:
        edge = await start_edge(engine.url)
        for _ in range(2):
            answer = await raw_request(edge.url, post(CHAT, BODY))
            assert (answer.status, answer.body, answer.header("content-type")) == (200, ANSWER, "application/json")
    assert engine.connections == 1


async def test_a_stream_that_falls_silent_is_cut_off(start_edge: StartEdge) -> None:
    async def pause_for_ever(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(EVENT)
        await request.gone.wait()

    async with ScriptedEngine(pause_for_ever) as engine:
        edge = await start_edge(engine.url, config={"edge": {"stream_idle_timeout": "200ms"}})
        answer = await raw_request(edge.url, post(CHAT, BODY))
        await eventually(lambda: engine.received[0].gone.is_set())
    assert answer.body.startswith(EVENT + b'data: {"error":')
    assert edge.events.of(ResponseCompleted)[0].outcome == "cut_off"


async def test_a_document_that_is_cut_off_is_a_502(start_edge: StartEdge) -> None:
    async def cut(request: Received) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        request.cut()

    async with ScriptedEngine(cut) as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
    assert answer.status == 502
    assert json.loads(answer.body)["error"]["code"] == "engine_cut_off"
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.status, done.outcome) == (502, "cut_off")


async def test_a_document_that_is_cut_off_comes_from_another_engine_once(start_edge: StartEdge) -> None:
    async def cut(request: Received) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        request.cut()

    async with ScriptedEngine(cut) as bad, ScriptedEngine() as good:
        edge = await start_edge(bad.url, good.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
        assert (answer.status, len(bad.received), len(good.received)) == (200, 1, 1)
    (done,) = edge.events.of(ResponseCompleted)
    assert [(each.worker, each.outcome) for each in done.attempts] == [("worker-1", "failed"), ("worker-2", "answered")]
    async with ScriptedEngine(cut) as first, ScriptedEngine(cut) as second, ScriptedEngine() as third:
        edge = await start_edge(first.url, second.url, third.url)
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 502
        assert len(third.received) == 0


async def test_a_large_document_that_is_cut_off_ends_the_connection_unfinished(start_edge: StartEdge) -> None:
    async def cut(request: Received) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4000000\r\n\r\n"
        await request.write(head + b"x" * 2_000_000)
        request.cut()

    async with ScriptedEngine(cut) as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
    assert answer.status == 200
    assert not answer.complete
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.status, done.outcome) == (200, "cut_off")


def snapshot(**states: str) -> PoolSnapshot:
    views = tuple(
        WorkerView(worker=name.replace("_", "-"), url="http://x", state=state) for name, state in states.items()
    )
    return PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=views)


@pytest.mark.parametrize("state", ["unreachable", "silent", "draining"])
async def test_a_signal_about_an_engine_ends_no_request_that_waits_for_it(start_edge: StartEdge, state: str) -> None:
    go_on = asyncio.Event()

    async def slow(request: Received) -> None:
        await go_on.wait()
        await request.answer(ANSWER)

    async with ScriptedEngine(slow) as busy, ScriptedEngine() as other:
        edge = await start_edge(busy.url, other.url)
        asked = asyncio.create_task(raw_request(edge.url, post(CHAT, BODY)))
        await eventually(lambda: busy.received)
        edge.hear(snapshot(worker_1=state, worker_2="serving"))
        go_on.set()
        assert (await asked).body == ANSWER
        assert other.received == []
    assert edge.events.of(AttemptFailed) == []


async def test_lost_signals_of_all_engines_end_nothing(start_edge: StartEdge) -> None:
    go_on = asyncio.Event()

    async def slow(request: Received) -> None:
        await go_on.wait()
        await request.answer(ANSWER)

    async with ScriptedEngine(slow) as engine, ScriptedEngine() as other:
        edge = await start_edge(engine.url, other.url)
        asked = asyncio.create_task(raw_request(edge.url, post(CHAT, BODY)))
        await eventually(lambda: engine.received)
        edge.hear(snapshot(worker_1="silent", worker_2="silent"))
        go_on.set()
        assert (await asked).status == 200
        assert other.received == []


async def test_a_silent_agent_ends_no_stream(start_edge: StartEdge) -> None:
    go_on = asyncio.Event()

    async def stream(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(EVENT)
        await go_on.wait()
        await request.chunk(b"data: [DONE]\n\n")
        await request.chunk(b"")

    async with ScriptedEngine(stream) as engine:
        edge = await start_edge(engine.url)
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            await client.read_until(EVENT)
            edge.hear(snapshot(worker_1="silent", worker_2="serving"))
            edge.hear(snapshot(worker_1="unreachable", worker_2="serving"))
            go_on.set()
            assert b"[DONE]" in await client.read_until(b"0\r\n\r\n")
    assert edge.events.of(ResponseCompleted)[0].outcome == "ok"


async def test_a_slow_reader_slows_the_engine_down_instead_of_filling_memory(start_edge: StartEdge) -> None:
    sent = 0

    async def flood(request: Received) -> None:
        nonlocal sent
        await request.begin_stream()
        for _ in range(2000):
            await request.chunk(b"data: " + b"x" * 50_000 + b"\n\n")
            sent += 50_000
        await request.chunk(b"")

    async with ScriptedEngine(flood) as engine:
        edge = await start_edge(engine.url, config={"edge": {"stream_idle_timeout": "300ms"}})
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            await client.read_until(b"\r\n\r\n")
            looks: deque[int] = deque(maxlen=10)

            def stands_still() -> bool:
                looks.append(sent)
                return len(looks) == 10 and len(set(looks)) == 1

            await eventually(stands_still)
            assert sent < 60_000_000
            assert edge.events.of(ResponseCompleted) == []
        (done,) = await eventually(lambda: edge.events.of(ResponseCompleted))
    assert done.outcome == "client_gone"
