"""An engine's error is a failed attempt: another engine answers, and the client sees an error only if all have one."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseStarted
from pointsman_contracts.verdicts import MoveRequests
from pointsman_edge.sending.retry_budget import RetryBudget
from pointsman_testing import builders, eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.ports import free_port
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'
NO_MODEL = b'{"error":{"message":"The model `llama-8b` does not exist.","type":"NotFoundError","code":404}}'
WORDS = b'{"error":{"message":"CUDA out of memory","type":"InternalServerError"}}'


def answering(
    status: int, body: bytes = WORDS, more: str = "", kind: str = "application/json"
) -> Callable[[Received], Awaitable[None]]:
    """A script that answers every request with this error."""

    async def answer(request: Received) -> None:
        await request.answer(body, status=status, more=more, content_type=kind)

    return answer


MOVING = {
    500: "failed", 501: "failed", 505: "failed", 520: "failed", 599: "failed",
    429: "limited", 529: "limited", 401: "denied", 403: "denied",
}  # fmt: skip


@pytest.mark.parametrize("status", MOVING)
async def test_an_engines_error_is_not_the_clients_while_another_engine_answers(
    start_edge: StartEdge, status: int
) -> None:
    async with ScriptedEngine(answering(status)) as bad, ScriptedEngine() as good:
        edge = await start_edge(bad.url, good.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
        assert (answer.status, answer.body, len(bad.received)) == (200, ANSWER, 1)
    (failed,) = edge.events.of(AttemptFailed)
    assert (failed.worker, failed.outcome, failed.status) == ("worker-1", MOVING[status], status)
    assert failed.next_worker == "worker-2"
    (done,) = edge.events.of(ResponseCompleted)
    tried = [(each.worker, each.outcome, each.status, each.reason) for each in done.attempts]
    assert tried == [("worker-1", MOVING[status], status, f"answered {status}"), ("worker-2", "answered", 200, "")]


async def test_an_adapter_that_one_engine_lacks_is_served_by_another(start_edge: StartEdge) -> None:
    async with ScriptedEngine(answering(404, NO_MODEL)) as bad, ScriptedEngine() as good:
        edge = await start_edge(bad.url, good.url)
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
    assert [(each.outcome, each.status) for each in edge.events.of(AttemptFailed)] == [("missing", 404)]


@pytest.mark.parametrize(
    ("status", "words"), [(404, b'{"detail":"Not Found"}'), (405, b'{"detail":"Method Not Allowed"}')]
)
async def test_a_path_that_one_engine_lacks_is_served_by_another(
    start_edge: StartEdge, status: int, words: bytes
) -> None:
    script = answering(status, words)
    async with ScriptedEngine(script) as bad, ScriptedEngine() as good, ScriptedEngine(script) as alike:
        edge = await start_edge(bad.url, good.url)
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
        all_alike = await start_edge(bad.url, alike.url)
        answer = await raw_request(all_alike.url, post(CHAT, BODY))
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, "unsupported_by_engine")
    assert [(each.outcome, each.status) for each in edge.events.of(AttemptFailed)] == [("missing", status)]


async def test_a_404_of_something_else_is_the_clients(start_edge: StartEdge) -> None:
    words = b'{"error":{"message":"Response with id resp_1 not found."}}'
    async with ScriptedEngine(answering(404, words)) as engine, ScriptedEngine() as other:
        edge = await start_edge(engine.url, other.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
        assert (answer.status, answer.body, other.received) == (404, words, [])
    assert edge.events.of(AttemptFailed) == []


@pytest.mark.parametrize("status", [400, 402, 407, 408, 413, 418, 421, 422, 425, 451, 499])
async def test_what_is_usually_the_clients_own_error_is_asked_of_two_engines(
    start_edge: StartEdge, status: int
) -> None:
    """An engine started with a shorter context, without a parser of tools or behind another proxy refuses what its
    peers answer, and is the fastest of them."""
    script = answering(status)
    async with ScriptedEngine(script) as bad, ScriptedEngine() as good, ScriptedEngine(script) as alike:
        edge = await start_edge(bad.url, good.url)
        assert (await raw_request(edge.url, post(CHAT, BODY))).body == ANSWER
        (failed,) = edge.events.of(AttemptFailed)
        assert (failed.worker, failed.outcome, failed.status) == ("worker-1", "denied", status)
        edge = await start_edge(bad.url, alike.url, good.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
        assert (answer.status, answer.body) == (status, WORDS)
        assert [len(each.received) for each in (bad, good, alike)] == [2, 1, 1]
        (done,) = edge.events.of(ResponseCompleted)
        assert (done.worker, [each.outcome for each in done.attempts]) == ("worker-2", ["denied", "answered"])


NO_ANSWERS = {
    "{}": ("application/json", ""),
    '{"status":"queued"}': ("application/json", ""),
    '{"id":"x","object":"chat.completion","choices": [],"usage":{"completion_tokens":0}}': ("application/json", ""),
    '{"choices":null}': ("application/json", ""),
    '"ok"': ("application/json", ""),
    "[]": ("application/json", ""),
    "data: [DONE]\n\n": ("text/event-stream", ""),
    ": hello\n\ndata: [DONE]\n\n": ("text/event-stream", ""),
    '{"choices":[{"message":{"content":"unreadable"}}]}': ("application/json", "content-encoding: br\r\n"),
}


@pytest.mark.parametrize("body", NO_ANSWERS)
@pytest.mark.parametrize("status", [200, 202])
async def test_a_good_status_without_an_answer_is_not_the_clients_while_another_engine_answers(
    start_edge: StartEdge, body: str, status: int
) -> None:
    kind, more = NO_ANSWERS[body]
    async with ScriptedEngine(answering(status, body.encode(), more, kind)) as bad, ScriptedEngine() as good:
        edge = await start_edge(bad.url, good.url)
        assert (await raw_request(edge.url, post(CHAT, BODY))).body == ANSWER
        assert len(good.received) == 1
        (failed,) = edge.events.of(AttemptFailed)
        assert (failed.worker, failed.outcome) == ("worker-1", "failed")
        alone = await start_edge(bad.url)
        answer = await raw_request(alone.url, post(CHAT, BODY))
        assert (answer.status, answer.body) == (status, body.encode()), "it may be a form of the engine's own"


async def test_errors_of_clients_are_asked_of_a_second_engine_a_few_times(start_edge: StartEdge) -> None:
    async with ScriptedEngine(answering(400)) as engine, ScriptedEngine(answering(400)) as other:
        edge = await start_edge(engine.url, other.url)
        for _ in range(60):
            assert (await raw_request(edge.url, post(CHAT, BODY))).status == 400
        assert len(engine.received) == 60
        assert 20 <= len(other.received) < 50


@pytest.mark.parametrize("status", [500, 429, 529, 401, 403])
async def test_when_all_engines_say_the_same_the_client_gets_their_words(start_edge: StartEdge, status: int) -> None:
    script = answering(status, more="retry-after: 7\r\n")
    async with ScriptedEngine(script) as first, ScriptedEngine(script) as second:
        edge = await start_edge(first.url, second.url)
        answer = await raw_request(edge.url, post(CHAT, BODY))
        assert len(first.received) == len(second.received) == 1
    assert (answer.status, answer.body, answer.header("retry-after")) == (status, WORDS, "7")
    assert [each.next_worker for each in edge.events.of(AttemptFailed)] == ["worker-2", None]
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.status, len(done.attempts), done.worker) == (status, 2, "worker-2")


@pytest.mark.parametrize("status", [401, 403])
async def test_what_may_be_the_clients_error_asks_three_engines_at_most(start_edge: StartEdge, status: int) -> None:
    script = answering(status)
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine(script)) for _ in range(4)]
        edge = await start_edge(*(engine.url for engine in engines))
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == status
        assert [len(engine.received) for engine in engines] == [1, 1, 1, 0]


async def test_an_engine_that_schedulers_find_unwell_is_the_last_to_be_asked(start_edge: StartEdge) -> None:
    async with ScriptedEngine(answering(500)) as bad, ScriptedEngine() as unwell, ScriptedEngine() as good:
        edge = await start_edge(bad.url, unwell.url, good.url)
        view = WorkerView(worker="worker-2", url=unwell.url, verdict="ejected")
        edge.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(view,)))
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
        assert [len(each.received) for each in (bad, unwell, good)] == [1, 0, 1]


async def test_an_engines_error_says_more_than_a_refused_connection(start_edge: StartEdge) -> None:
    async with ScriptedEngine(answering(500)) as engine:
        edge = await start_edge(engine.url, f"http://127.0.0.1:{free_port()}")
        answer = await raw_request(edge.url, post(CHAT, BODY))
    assert (answer.status, answer.body) == (500, WORDS)
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.worker, [each.outcome for each in done.attempts]) == ("worker-1", ["failed", "refused"])


async def test_the_only_engines_error_is_passed_on_and_counted_against_it(start_edge: StartEdge) -> None:
    async with ScriptedEngine(answering(500)) as engine:
        edge = await start_edge(engine.url)
        for _ in range(2):
            answer = await raw_request(edge.url, post(CHAT, BODY))
            assert (answer.status, answer.body) == (500, WORDS)
        assert engine.connections == 1
    failed = edge.events.of(AttemptFailed)
    assert [(each.outcome, each.status, each.next_worker) for each in failed] == [("failed", 500, None)] * 2
    assert {each.outcome for each in edge.events.of(ResponseCompleted)} == {"engine_error"}


async def test_an_error_whose_body_never_comes_keeps_no_request_from_another_engine(start_edge: StartEdge) -> None:
    async def head_alone(request: Received) -> None:
        await request.write(b"HTTP/1.1 500 Bad\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n")
        await request.gone.wait()

    async with ScriptedEngine(head_alone) as bad, ScriptedEngine() as good:
        edge = await start_edge(bad.url, good.url)
        assert (await raw_request(edge.url, post(CHAT, BODY))).body == ANSWER
        await eventually(lambda: bad.received[0].gone.is_set())


@pytest.mark.parametrize("cut", [True, False])
async def test_a_request_is_started_twice_at_most(start_edge: StartEdge, cut: bool) -> None:
    async def swallow(request: Received) -> None:
        if cut:
            request.cut()
        await request.gone.wait()

    async with ScriptedEngine(swallow) as first, ScriptedEngine(swallow) as second, ScriptedEngine(swallow) as third:
        edge = await start_edge(first.url, second.url, third.url, config={"edge": {"first_byte_timeout": "100ms"}})
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == (502 if cut else 504)
        assert [len(each.received) for each in (first, second, third)] == [1, 1, 0]


async def test_a_request_that_may_break_engines_is_not_shown_to_all_of_them(start_edge: StartEdge) -> None:
    engines = [ScriptedEngine(answering(500)) for _ in range(5)]
    for engine in engines:
        await engine.start()
    edge = await start_edge(*(engine.url for engine in engines))
    assert (await raw_request(edge.url, post(CHAT, BODY))).status == 500
    assert sum(len(engine.received) for engine in engines) == 3
    for engine in engines:
        await engine.stop()


async def test_an_engine_that_failed_lately_is_the_last_to_be_asked_again(start_edge: StartEdge) -> None:
    async with ScriptedEngine(answering(500)) as one, ScriptedEngine(answering(503)) as two, ScriptedEngine() as good:
        edge = await start_edge(one.url, two.url, good.url)
        for _ in range(5):
            assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
        assert (len(one.received), len(two.received), len(good.received)) == (5, 1, 5)


async def test_when_the_named_engines_fail_the_stages_are_asked_for_others(start_edge: StartEdge) -> None:
    async with ScriptedEngine(answering(500)) as bad, ScriptedEngine() as good:
        edge = await start_edge(bad.url)
        views = tuple(WorkerView(worker=f"worker-{number}", url="http://x") for number in (1, 2))
        edge.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=views))
        other = ChosenEndpoint(worker="worker-2", url=good.url)
        first = ChosenEndpoint(worker="worker-1", url=bad.url)
        edge.stages.reply = lambda request: builders.decision(
            request.request_id, endpoints=(first,) if request.attempt == 1 else (first, other)
        )
        answer = await raw_request(edge.url, post(CHAT, BODY))
        assert (answer.status, len(bad.received)) == (200, 1)
    assert [request.attempt for request, _, _ in edge.stages.asked] == [1, 2]
    (done,) = edge.events.of(ResponseCompleted)
    assert [each.worker for each in done.attempts] == ["worker-1", "worker-2"]


async def test_a_request_whose_pool_has_no_other_engine_is_decided_once(start_edge: StartEdge) -> None:
    async with ScriptedEngine(answering(500)) as bad:
        edge = await start_edge(bad.url)
        view = WorkerView(worker="worker-1", url="http://x")
        edge.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(view,)))
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 500
    assert len(edge.stages.asked) == 1


async def test_a_stream_is_answered_by_another_engine_too(start_edge: StartEdge) -> None:
    async def stream(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(b"data: [DONE]\n\n")
        await request.chunk(b"")

    async with ScriptedEngine(answering(500)) as bad, ScriptedEngine(stream) as good:
        edge = await start_edge(bad.url, good.url)
        body = json.dumps({"model": "llama-8b", "stream": True, "messages": []}).encode()
        answers = await asyncio.gather(*(raw_request(edge.url, post(CHAT, body)) for _ in range(5)))
    assert {answer.status for answer in answers} == {200}


async def move(edge: EdgeUnderTest, *request_ids: str, avoid: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Have a scheduler say that `worker-1` makes no progress; returns the requests that left it."""
    query = MoveRequests(pool="llama-8b", worker="worker-1", request_ids=request_ids, avoid=avoid, reason="it hangs")
    return edge.move(query).request_ids


async def test_a_request_leaves_an_engine_that_makes_no_progress_once(start_edge: StartEdge) -> None:
    async def swallow(request: Received) -> None:
        await request.gone.wait()

    async def slow(request: Received) -> None:
        await go_on.wait()
        await request.answer(ANSWER)

    go_on = asyncio.Event()
    async with ScriptedEngine(swallow) as hung, ScriptedEngine() as unwell, ScriptedEngine(slow) as good:
        edge = await start_edge(hung.url, unwell.url, good.url)
        asked = asyncio.create_task(raw_request(edge.url, post(CHAT, BODY, "x-request-id: mine")))
        other = asyncio.create_task(raw_request(edge.url, post(CHAT, BODY, "x-request-id: other")))
        await eventually(lambda: len(hung.received) == 2)
        assert await move(edge, "mine", "unknown", avoid=("worker-2",)) == ("mine",)
        await eventually(lambda: good.received)
        gone = next(each for each in hung.received if each.header("x-request-id") == "mine")
        await eventually(gone.gone.is_set)
        assert await move(edge, "mine") == ("mine",)
        go_on.set()
        assert (await asked).body == ANSWER
        assert (len(hung.received), len(unwell.received), len(good.received)) == (2, 0, 1)
        other.cancel()
    (failed,) = [each for each in edge.events.of(AttemptFailed) if each.request_id == "mine"]
    assert (failed.outcome, failed.status, failed.next_worker) == ("stalled", None, "worker-3")
    done = next(each for each in edge.events.of(ResponseCompleted) if each.request_id == "mine")
    assert [each.reason for each in done.attempts] == ["it hangs", ""]


async def test_a_move_that_a_scheduler_asks_for_needs_no_budget(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def swallow(request: Received) -> None:
        await request.gone.wait()

    def spent(budget: RetryBudget, now: float) -> bool:
        del budget, now
        return False

    monkeypatch.setattr(RetryBudget, "spend", spent)
    async with ScriptedEngine(swallow) as hung, ScriptedEngine() as good:
        edge = await start_edge(hung.url, good.url)
        asked = asyncio.create_task(raw_request(edge.url, post(CHAT, BODY, "x-request-id: mine")))
        await eventually(lambda: hung.received)
        assert await move(edge, "mine") == ("mine",)
        assert (await asked).body == ANSWER


async def test_a_request_stays_where_it_has_begun_or_no_other_engine_is_known(start_edge: StartEdge) -> None:
    async def stream(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(b"data: {}\n\n")
        await go_on.wait()
        await request.chunk(b"data: [DONE]\n\n")
        await request.chunk(b"")

    async def slow(request: Received) -> None:
        await go_on.wait()
        await request.answer(ANSWER)

    go_on = asyncio.Event()
    async with ScriptedEngine(stream) as streaming, ScriptedEngine(slow) as only, ScriptedEngine() as other:
        begun = await start_edge(streaming.url, other.url)
        alone = await start_edge(only.url)
        asked = [
            asyncio.create_task(raw_request(edge.url, post(CHAT, BODY, "x-request-id: mine")))
            for edge in (begun, alone)
        ]
        await eventually(lambda: begun.events.of(ResponseStarted) and only.received)
        assert [await move(edge, "mine") for edge in (begun, alone)] == [(), ()]
        go_on.set()
        assert [answer.status for answer in await asyncio.gather(*asked)] == [200, 200]
        assert other.received == []


@pytest.mark.parametrize("sent", [b": ping\n\n", b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'])
async def test_a_stream_of_which_nothing_but_comments_or_the_role_has_come_leaves_an_engine_that_makes_no_progress(
    start_edge: StartEdge, sent: bytes
) -> None:
    """As from a proxy that keeps its clients' connections while the engine behind it hangs."""
    word = b'data: {"choices":[{"index":0,"delta":{"content":"good"},"finish_reason":"stop"}]}\n\n'

    async def only_comments(request: Received) -> None:
        await request.begin_stream()
        while not request.gone.is_set():
            await request.chunk(sent)
            await asyncio.sleep(0.05)

    async def speak(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(word + b"data: [DONE]\n\n")
        await request.chunk(b"")

    async with ScriptedEngine(only_comments) as silent, ScriptedEngine(speak) as good:
        edge = await start_edge(silent.url, good.url)
        streamed = BODY[:-1] + b',"stream":true}'
        asked = asyncio.create_task(raw_request(edge.url, post(CHAT, streamed, "x-request-id: mine")))
        await eventually(lambda: silent.received)

        async def moved() -> bool:
            return await move(edge, "mine") == ("mine",)

        await eventually(moved)
        answer = await asked
        assert (answer.status, word in answer.body, good.received != []) == (200, True, True)
