"""Processors in the frontend see head, segments and end of the answers of their profile."""

from typing import Final

import pytest

from pointsman_contracts.response import ResponseCompleted
from pointsman_edge import answer_plugins
from pointsman_frontend.adapters import answer_relay
from pointsman_plugins import Params
from pointsman_plugins.responding import AnswerEnd, AnswerFollower, AnswerHead, ResponseProcessor
from pointsman_testing import eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import Received, ScriptedEngine

pytestmark = pytest.mark.asyncio

CHAT: Final = "/v1/chat/completions"
BODY: Final = b'{"model":"llama-8b","messages":[]}'
EVENTS: Final = (
    b'data: {"choices":[{"index":0,"delta":{"content":"left"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
    b"data: [DONE]\n\n",
)
seen: list[str] = []


class SeenParams(Params):
    fails_in: str = ""


class Seen(ResponseProcessor[SeenParams]):
    """Notes what it sees, and fails where it is told to."""

    type_name = "seen"

    def begin_answer(self, head: AnswerHead) -> AnswerFollower | None:
        seen.append(f"{self.name} head {head.status} {head.worker} {head.stream} {head.headers.get('content-type')}")
        if self.params.fails_in == "head":
            raise RuntimeError("head")
        head.set_header("x-seen", self.name)
        return SeenFollower(self.name, self.params.fails_in)


class SeenFollower(AnswerFollower):
    def __init__(self, name: str, fails_in: str) -> None:
        self._name = name
        self._fails_in = fails_in
        self._data = b""

    def take_segment(self, data: bytes) -> None:
        if self._fails_in == "segment":
            raise RuntimeError("segment")
        self._data += data

    def end_answer(self, end: AnswerEnd) -> None:
        tokens = None if end.usage is None else end.usage.completion_tokens
        seen.append(f"{self._name} end {end.outcome} {end.status} {tokens} {len(self._data)}")
        if self._fails_in == "end":
            raise RuntimeError("end")


@pytest.fixture(autouse=True)
def _types(monkeypatch: pytest.MonkeyPatch) -> None:
    seen.clear()
    monkeypatch.setattr(answer_plugins, "BUILTIN", (*answer_plugins.BUILTIN, Seen))


async def answer_a_stream(request: Received) -> None:
    await request.begin_stream()
    for event in EVENTS:
        await request.chunk(event)
    await request.chunk(b"")


def with_processors(*own: object, shared: tuple[object, ...] = ()) -> dict[str, object]:
    return {
        "profiles": {"standard": {"processors": {"response": list(own)}}},
        "processors": {"response": list(shared)},
    }


async def completed(edge: EdgeUnderTest, count: int = 1) -> ResponseCompleted:
    await eventually(lambda: len(edge.events.of(ResponseCompleted)) == count)
    return edge.events.of(ResponseCompleted)[-1]


@pytest.mark.requirement("OBSERVE-2", "CHAIN-2")
async def test_processors_see_a_stream_in_their_order_and_set_headers(start_edge: StartEdge) -> None:
    size = sum(map(len, EVENTS))
    async with ScriptedEngine(answer_a_stream) as engine:
        edge = await start_edge(
            engine.url, config=with_processors({"use": "seen", "name": "own"}, shared=({"use": "seen", "name": "all"},))
        )
        answer = await raw_request(edge.url, post(CHAT, BODY))
        assert answer.status == 200
        assert answer.header("x-seen") == "all"
        await completed(edge)
    kind = "text/event-stream; charset=utf-8"
    assert seen == [
        f"own head 200 worker-1 True {kind}", f"all head 200 worker-1 True {kind}",
        f"own end ok 200 2 {size}", f"all end ok 200 2 {size}",
    ]  # fmt: skip


@pytest.mark.requirement("OBSERVE-2")
async def test_processors_see_documents_and_errors(start_edge: StartEdge) -> None:
    async def refuse(request: Received) -> None:
        await request.answer(b'{"error":{"message":"no"}}', status=400)

    async with ScriptedEngine(refuse) as engine:
        edge = await start_edge(engine.url, config=with_processors("seen"))
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 400
        await completed(edge)
    assert [each.rpartition(" ")[0] for each in seen][1:] == ["seen end ok 400 None"]


@pytest.mark.requirement("OBSERVE-2")
@pytest.mark.parametrize("where", ["head", "segment", "end"])
async def test_a_processor_that_fails_changes_no_answer_and_is_counted(start_edge: StartEdge, where: str) -> None:
    async with ScriptedEngine(answer_a_stream) as engine:
        edge = await start_edge(
            engine.url, config=with_processors({"use": "seen", "name": "bad", "fails_in": where}, "seen")
        )
        answer = await raw_request(edge.url, post(CHAT, BODY))
        assert answer.body.endswith(EVENTS[-1])
        event = await completed(edge)
    assert (event.status, event.outcome) == (200, "ok")
    assert edge.metric("pointsman_edge_response_processor_failures_total") == 1
    assert [each for each in seen if each.startswith("seen end ok 200")]


@pytest.mark.requirement("OBSERVE-2")
async def test_answers_of_a_configuration_without_processors_are_followed_by_none(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_relay, "follow_answer", None)  # not callable: a call would fail the request
    async with ScriptedEngine(answer_a_stream) as engine:
        edge = await start_edge(engine.url)
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200


async def test_an_unknown_processor_is_refused_with_its_place(start_edge: StartEdge) -> None:
    with pytest.raises(
        ValueError, match=r"profiles\.standard\.processors\.response\.0\.use.*'sen'.*did you mean 'seen'"
    ):
        await start_edge("http://127.0.0.1:1", config=with_processors("sen"))
