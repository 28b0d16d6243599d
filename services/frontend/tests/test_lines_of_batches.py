"""The answer to a batch's line is complete once the stream has the report that charges it: a batch that has an answer
doesn't send the line again, and one whose answer broke off does."""

import asyncio

import pytest

from pointsman_contracts.identity import Identity
from pointsman_contracts.reply import Answer
from pointsman_contracts.response import ResponseCompleted
from pointsman_frontend.adapters import http_turn
from pointsman_testing import eventually
from pointsman_testing.fake_stages import StartEdge
from pointsman_testing.raw_http import post, raw_connection, raw_request
from pointsman_testing.scripted_engine import Received, Script, ScriptedEngine

pytestmark = pytest.mark.requirement("BATCH-2")
CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'
LINE = Identity(tenant="acme", subject="ci", batch="batch_000000000001x")


def document(status: int, size: int) -> Script:
    async def answer(request: Received) -> None:
        body = b'{"choices":[{"message":{"content":"%b"},"finish_reason":"stop"}]}' % (b"x" * size)
        head = b"HTTP/1.1 %d OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        await request.write(head + body)

    return answer


ANSWERS: dict[str, Script] = {
    "an answer": document(200, 1),
    "a long answer": document(200, 3 * 2**20),
    "a refusal": document(400, 1),
    "an error": document(500, 1),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_line_has_its_answer_once_the_stream_has_its_report(start_edge: StartEdge, name: str) -> None:
    async with ScriptedEngine(ANSWERS[name]) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes = {"identity": LINE}
        for _ in range(2):
            asking = asyncio.create_task(raw_request(edge.url, post(CHAT, BODY)))
            (done,) = await eventually(lambda: edge.events.awaited)
            # The report is on its way, and the answer waits for it.
            await asyncio.sleep(0)
            assert not asking.done()
            edge.events.awaited.clear()
            done()
            answer = await asking
            assert answer.body
        assert len(edge.events.of(ResponseCompleted)) == 2


async def test_a_stages_answer_to_a_line_waits_for_its_report_too(start_edge: StartEdge) -> None:
    edge = await start_edge("http://127.0.0.1:9")
    edge.stages.reply = lambda asked: Answer(
        request_id=asked.request_id, stage="semantic-cache", status=200, body=b"{}", identity=LINE
    )
    async with raw_connection(edge.url) as client:
        for _ in range(2):
            await client.send(post(CHAT, BODY))
            (done,) = await eventually(lambda: edge.events.awaited)
            edge.events.awaited.clear()
            done()
            assert (await client.response()).status == 200


async def test_an_answer_whose_report_is_never_confirmed_breaks_off(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_turn, "HELD_S", 0.05)
    async with ScriptedEngine(ANSWERS["an answer"]) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes = {"identity": LINE}
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            assert await client.closed() == b""


async def test_other_requests_wait_for_no_report(start_edge: StartEdge) -> None:
    async with ScriptedEngine(ANSWERS["an answer"]) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes = {"identity": Identity(tenant="acme", subject="ci")}
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
        assert edge.events.awaited == []
