"""Like test_resumed_streams.py, of `/v1/messages` and `/v1/responses`, whose streams are continued as chats."""

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import anthropic
import openai
import pytest

from pointsman_apis.api import Api
from pointsman_apis.messages import MESSAGES
from pointsman_apis.responses import RESPONSES
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.response import ResponseCompleted
from pointsman_frontend.domain.resuming.as_chat import chat_of
from pointsman_frontend.domain.resuming.question import CantContinue
from pointsman_testing.answering_engine import AnsweringEngine
from pointsman_testing.continuing_engine import THINKING_END, Body
from pointsman_testing.cut_streams import CUTS, CutStream, resumed
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.read_answers import read_messages, read_responses
from pointsman_testing.scripted_engine import Received, Script, ScriptedEngine

FIRST: Final = AnsweringEngine()
OTHER: Final = AnsweringEngine(model="other-name", answer_id="2", together=2)
READERS: Final[Mapping[str, Callable[[bytes], dict[str, Any]]]] = {
    MESSAGES.name: read_messages,
    RESPONSES.name: read_responses,
}
THINKING: Final[Body] = {"chat_template_kwargs": {"enable_thinking": True}}
VARIANTS: Final[Mapping[str, tuple[Body, ...]]] = {
    MESSAGES.name: (
        {},
        {"system": "Be brief"},
        {"stop_sequences": ["STOP", "Zugz"]},
        {"stop_sequences": [" the"], "max_tokens": 200},
        {"max_tokens": 5},
        {"max_tokens": 200},
    ),
    RESPONSES.name: (
        {},
        {"instructions": "Be brief"},
        {"stop": ["STOP", "Zugz"]},
        {"stop": " the", "max_output_tokens": 200},
        {"max_output_tokens": 5},
        {"max_output_tokens": None},
    ),
}


def ask(api: Api, number: int, **more: Any) -> Body:
    body: Body = {"model": "m", "stream": True, "temperature": 0}
    if api is MESSAGES:
        body |= {"messages": [{"role": "user", "content": f"Tell {number}"}], "max_tokens": 60}
    else:
        body |= {"input": f"Tell {number}", "max_output_tokens": 60}
    return {name: value for name, value in (body | more).items() if value is not None}


def variant(number: int) -> tuple[Api, Body]:
    api = (MESSAGES, RESPONSES)[number % 2]
    variants = VARIANTS[api.name]
    more = variants[number // 2 % len(variants)]
    return api, ask(api, number, **(THINKING | more if number % 3 == 1 else more))


def cut_stream(api: Api, body: Body, other: AnsweringEngine = OTHER) -> CutStream:
    return CutStream(api, body, setting="text", first=FIRST, others=(other,))


async def holds(number: int) -> None:
    dice = random.Random(number)
    api, body = variant(number)
    run = cut_stream(api, body)
    cuts = [dice.randrange(2**31) for _ in range(dice.choice((1, 1, 1, 2, 3)))]
    got = await run.cut(cuts, dice)
    read = READERS[api.name]
    assert read(got) == read(FIRST.stream(api.path, body)), (number, body, cuts)
    assert len(run.begun) <= 1 + len(run.failures)


def test_every_cut_stream_is_continued_as_if_it_had_not_been_cut() -> None:
    async def all_hold() -> None:
        for number in range(CUTS if CUTS >= 2000 else 60):
            await holds(number)

    asyncio.run(all_hold())


@pytest.mark.parametrize("api", [MESSAGES, RESPONSES], ids=lambda api: api.name)
@pytest.mark.parametrize("more", [{}, THINKING], ids=["text", "thoughts"])
async def test_a_cut_at_any_byte_of_a_stream_is_no_seam(api: Api, more: Body) -> None:
    body = ask(api, 4, **more)
    whole = FIRST.stream(api.path, body)
    read = READERS[api.name]
    for at in range(0, len(whole) + 1, 1 if CUTS >= 2000 else 97):
        got = await cut_stream(api, body).cut([at], random.Random(at))
        assert read(got) == read(whole), at


POOL: Final = "llama-8b"
CONFIG: Final[Body] = {
    "profiles": {"standard": {"resume": "text"}},
    "models": {POOL: {"pool": POOL, "thinking_end": THINKING_END}},
}


def serving(engine: AnsweringEngine, *, events: int | None = None) -> Script:
    """Answers as this engine does; with `events` it dies after so many of a stream."""

    async def script(request: Received) -> None:
        body = json.loads(request.body)
        if request.path == "/tokenize":
            if engine.cuts_texts:
                await request.answer(json.dumps({"tokens": engine.tokens(body)}).encode())
            else:
                await request.answer(b"{}", status=404)
            return
        await request.begin_stream()
        for event in itertools.islice(engine.events(request.path, body), events):
            await request.chunk(event)
        if events is None:
            await request.chunk(b"")
        else:
            request.cut()

    return script


async def edge_of(start_edge: StartEdge, kind: str, *engines: ScriptedEngine) -> EdgeUnderTest:
    edge = await start_edge(*(engine.url for engine in engines), config=CONFIG)
    views = tuple(WorkerView(worker=f"worker-{number}", url="http://x", engine=kind) for number in (1, 2))
    edge.hear(PoolSnapshot(pool=POOL, source="c", sequence=1, at_ms=1, workers=views))
    return edge


DYING: Final = AnsweringEngine(model=POOL)


async def test_the_official_client_of_messages_reads_one_answer_of_two_engines(start_edge: StartEdge) -> None:
    asked = ask(MESSAGES, 4, model=POOL, **THINKING)
    whole = read_messages(DYING.stream(MESSAGES.path, asked))
    async with ScriptedEngine(serving(DYING, events=7)) as first, ScriptedEngine(serving(OTHER)) as second:
        edge = await edge_of(start_edge, "vllm", first, second)
        async with anthropic.AsyncAnthropic(base_url=edge.url, api_key="unused", max_retries=0) as ai:
            stream_of: Any = ai.messages.stream
            own = {name: asked[name] for name in ("model", "messages", "max_tokens")}
            async with stream_of(**own, extra_body=THINKING | {"temperature": 0}) as stream:
                message = await stream.get_final_message()
        assert [request.path for request in second.received][-1] == "/v1/completions"
    told = [(block.type, getattr(block, block.type)) for block in message.content]
    assert told == [(block["type"], block["text"]) for block in whole["blocks"]]
    assert (message.id, message.stop_reason) == ("chatcmpl-1", whole["ends"][0]["delta"]["stop_reason"])
    assert message.usage.output_tokens == whole["ends"][0]["usage"]["output_tokens"]
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.outcome, [seam.form for seam in done.seams]) == ("ok", ["text"])
    assert done.usage is not None
    assert done.usage.completion_tokens == message.usage.output_tokens


@pytest.mark.parametrize(("kind", "cuts_texts"), [("vllm", True), ("vllm", False), ("sglang", False)])
async def test_the_official_client_of_responses_reads_one_answer_of_two_engines(
    start_edge: StartEdge, kind: str, cuts_texts: bool
) -> None:
    asked = ask(RESPONSES, 4, model=POOL)
    whole = read_responses(DYING.stream(RESPONSES.path, asked))
    other = AnsweringEngine(model="other-name", answer_id="2", cuts_texts=cuts_texts)
    async with ScriptedEngine(serving(DYING, events=8)) as first, ScriptedEngine(serving(other)) as second:
        edge = await edge_of(start_edge, kind, first, second)
        async with openai.AsyncOpenAI(base_url=f"{edge.url}/v1", api_key="unused", max_retries=0) as ai:
            create: Any = ai.responses.create
            events: list[Any] = [event async for event in await create(**asked)]
        paths = {request.path for request in second.received} - {"/tokenize"}
        assert paths == {"/v1/completions" if cuts_texts else "/v1/chat/completions"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    response = events[-1].response
    assert response.output_text == whole["items"][0]["content"][0]["text"]
    assert (response.id, response.model, response.status) == ("resp_1", POOL, whole["last"]["status"])
    if cuts_texts:
        assert response.usage.model_dump(exclude_none=True) == whole["last"]["usage"]
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.outcome, [seam.form for seam in done.seams]) == ("ok", ["text"])


CALL: Final = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
TOOLS: Final = [{"name": "f", "input_schema": {"type": "object"}, "parameters": {}, "type": "function"}]


def chunk(delta: Body, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: %b\n\n" % json.dumps({"id": "9", "choices": [choice]}).encode()


@pytest.mark.parametrize("api", [MESSAGES, RESPONSES], ids=lambda api: api.name)
async def test_an_answer_with_tools_is_continued_as_a_chat_and_may_call_them(api: Api) -> None:
    tools = [{name: tool[name] for name in tool if api is RESPONSES or name != "type"} for tool in TOOLS]
    body = ask(api, 1, tools=tools)
    rest = chunk({"content": " and"}) + chunk({"tool_calls": [CALL]})
    rest += chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}) + chunk({}, "tool_calls")

    class Calling(AnsweringEngine):
        def stream(self, path: str, body: Body) -> bytes:
            assert path == "/v1/chat/completions"
            assert body["tools"][0]["function"]["name"] == "f"
            assert body["messages"][-1]["role"] == "assistant"
            return rest + b"data: [DONE]\n\n"

    run = cut_stream(api, body, Calling())
    got = await run.cut([len(FIRST.stream(api.path, body)) // 2], random.Random(1))
    events = [json.loads(line[6:]) for line in got.splitlines() if line.startswith(b"data: ")]
    if api is MESSAGES:
        begun = [each["content_block"]["type"] for each in events if each["type"] == "content_block_start"]
        assert begun == ["text", "tool_use"]
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
    else:
        output = events[-1]["response"]["output"]
        assert [item["type"] for item in output] == ["message", "function_call"]
        assert (output[1]["name"], output[1]["call_id"], output[1]["arguments"]) == ("f", "c1", "{}")
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize(
    ("api", "event"),
    [
        (MESSAGES, {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "f"}}),
        (RESPONSES, {"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}}),
    ],
    ids=["messages", "responses"],
)
async def test_a_call_under_way_is_not_continued(api: Api, event: Body) -> None:
    resuming = resumed(api, ask(api, 1), "text", "vllm")
    assert resuming is not None
    resuming.sent = lambda: json.dumps(ask(api, 1)).encode()
    for begun in itertools.islice(FIRST.events(api.path, ask(api, 1)), 2):
        resuming.kept.keep_events(begun)
    resuming.kept.keep_events(b"data: %b\n\n" % json.dumps(event).encode())
    with pytest.raises(CantContinue) as unable:
        resuming.break_off()
    assert unable.value.reason == "tools"


def test_a_conversation_becomes_the_chat_that_vllm_makes_of_it() -> None:
    """Both were compared with those of vLLM 0.32.0."""
    use: Body = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    result: Body = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": text} for text in "xy"],
    }
    messages: list[Body] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "So"}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "and"}]},
    ]
    items: list[Body] = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So"}]},
        {"type": "function_call", "call_id": "t1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "t1", "output": "x\ny"},
        {"role": "user", "content": "and"},
    ]
    call: Body = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    chat: list[Body] = [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "reasoning": "hm", "content": "So", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "x\ny"},
        {"role": "user", "content": "and"},
    ]
    system = [{"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "Be brief"}]
    assert chat_of(MESSAGES, ask(MESSAGES, 1, messages=messages, system=system))["messages"] == chat
    assert chat_of(RESPONSES, ask(RESPONSES, 1, input=items, instructions="Be brief"))["messages"] == chat
