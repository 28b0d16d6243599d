"""A background request leaves its engine when a scheduler asks for it, and its client gets one answer: over sockets."""

import asyncio

from pointsman_apis.chat import CHAT
from pointsman_contracts.response import AttemptFailed, ResponseCompleted
from pointsman_contracts.verdicts import MoveRequests
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import Received, ScriptedEngine

DOCUMENT = b'{"id":"1","choices":[{"index":0,"message":{"content":"whole"}}]}'
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"Tell me"}]}'


class SlowOnce:
    """The first request gets no answer."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.request_id = ""

    async def __call__(self, request: Received) -> None:
        if self.came.is_set():
            await request.answer(DOCUMENT)
        else:
            self.request_id = request.header("x-request-id") or ""
            self.came.set()
            await request.gone.wait()


def stop(edge: EdgeUnderTest, request_id: str) -> tuple[str, ...]:
    query = MoveRequests(pool="llama-8b", worker="worker-1", request_ids=(request_id,), gives_way=True)
    return edge.move(query).request_ids


async def test_a_request_that_gives_way_is_decided_again_and_answered_once(start_edge: StartEdge) -> None:
    script = SlowOnce()
    async with ScriptedEngine(script) as engine:
        edge = await start_edge(engine.url)
        answering = asyncio.create_task(raw_request(edge.url, post(CHAT.path, BODY)))
        await script.came.wait()
        assert stop(edge, "another") == ()
        (stopped,) = stop(edge, script.request_id)
        answer = await answering
        assert (answer.status, answer.body) == (200, DOCUMENT)
    (done,) = edge.events.of(ResponseCompleted)
    assert [(each.worker, each.outcome) for each in done.attempts] == [
        ("worker-1", "preempted"),
        ("worker-1", "answered"),
    ]
    (lost,) = edge.events.of(AttemptFailed)
    assert (lost.request_id, lost.outcome) == (stopped, "preempted")


async def test_a_request_that_gives_way_and_finds_no_capacity_is_refused(start_edge: StartEdge) -> None:
    script = SlowOnce()
    async with ScriptedEngine(script) as engine:
        edge = await start_edge(engine.url)
        answering = asyncio.create_task(raw_request(edge.url, post(CHAT.path, BODY)))
        await script.came.wait()
        edge.stages.urls = ()
        assert stop(edge, script.request_id)
        answer = await answering
        assert answer.status == 429
        assert b"no_capacity_left" in answer.body
