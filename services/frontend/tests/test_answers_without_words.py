"""An answer without a word: the model had nothing to say, or its engine is broken. A second engine tells."""

from collections.abc import Awaitable, Callable

import orjson
import pytest
from pydantic import JsonValue

from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseStarted
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import RawResponse, post, raw_request
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'
FOR_TWO = BODY.replace(b"{", b'{"n":2,', 1)


def answering(body: str) -> Callable[[Received], Awaitable[None]]:
    kind = "text/event-stream" if body.startswith("data:") else "application/json"

    async def answer(request: Received) -> None:
        await request.answer(body.encode(), content_type=kind)

    return answer


def question(*, stream: bool) -> bytes:
    """A body for every API."""
    said: JsonValue = [{"role": "user", "content": "hi"}]
    return orjson.dumps(
        {"model": "llama-8b", "max_tokens": 9, "messages": said, "input": "hi", "prompt": "hi", "stream": stream}
    )


def choices(*each: str) -> str:
    return f'{{"id":"x","object":"chat.completion","choices":[{",".join(each)}],"usage":{{"completion_tokens":1}}}}'


def events(*each: str) -> str:
    return "".join(f"data: {one}\n\n" for one in each)


WITHOUT_A_WORD = {
    choices('{"index":0,"message":{"role":"assistant","content":""},"finish_reason":"stop"}'): CHAT,
    choices(
        '{"index":0,"message":{"role":"assistant","content": null,"tool_calls":[]},"finish_reason":"length"}'
    ): CHAT,
    choices('{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}'): "/v1/completions",
    '{"type":"message","content":[],"stop_reason":"end_turn"}': "/v1/messages",
    '{"type":"message","content":[{"type":"text","text":""}],"stop_reason":"max_tokens"}': "/v1/messages",
    '{"object":"response","status":"completed","output":[{"type":"message","content":[]}]}': "/v1/responses",
    events(
        '{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
        '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
        '{"choices":[],"usage":{"completion_tokens":1}}',
        "[DONE]",
    ): CHAT,
    events('{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}', "[DONE]"): "/v1/completions",
    events(
        '{"type":"message_start","message":{"content":[]}}',
        '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
        '{"type":"content_block_stop","index":0}',
        '{"type":"message_delta","delta":{"stop_reason":"end_turn"}}',
        '{"type":"message_stop"}',
    ): "/v1/messages",
    events(
        '{"type":"response.created","response":{"object":"response","status":"in_progress","output":[]}}',
        '{"type":"response.output_item.added","item":{"type":"message","content":[]}}',
        '{"type":"response.output_text.done","text":""}',
        '{"type":"response.output_item.done","item":{"type":"message","content":[{"type":"output_text","text":""}]}}',
        '{"type":"response.completed","response":{"object":"response","status":"completed","output":[]}}',
    ): "/v1/responses",
}


async def asked_of_two(start_edge: StartEdge, path: str, body: str) -> tuple[AttemptFailed, RawResponse, EdgeUnderTest]:
    """The failed attempt where a second engine has a word; the client's answer where it has none either, and the edge
    of that."""
    script, asked = answering(body), question(stream=body.startswith("data:"))
    async with ScriptedEngine(script) as bad, ScriptedEngine() as good, ScriptedEngine(script) as alike:
        edge = await start_edge(bad.url, good.url)
        assert (await raw_request(edge.url, post(path, asked))).body == ANSWER
        (failed,) = edge.events.of(AttemptFailed)
        assert (failed.worker, failed.outcome) == ("worker-1", "empty")
        assert [started.worker for started in edge.events.of(ResponseStarted)] in ([], ["worker-2"])
        edge = await start_edge(bad.url, alike.url, good.url)
        answer = await raw_request(edge.url, post(path, asked))
        assert [len(each.received) for each in (bad, good, alike)] == [2, 1, 1]
    return failed, answer, edge


@pytest.mark.parametrize("body", WITHOUT_A_WORD)
async def test_an_answer_without_a_word_is_the_clients_once_a_second_engine_has_none_either(
    start_edge: StartEdge, body: str
) -> None:
    path = WITHOUT_A_WORD[body]
    failed, answer, edge = await asked_of_two(start_edge, path, body)
    assert failed.status == 200
    assert (answer.status, answer.body) == (200, body.encode())
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.worker, [each.outcome for each in done.attempts]) == ("worker-2", ["empty", "empty"])
    assert (done.outcome, done.status) == ("ok", 200)
    async with ScriptedEngine(answering(body)) as only:
        alone = await start_edge(only.url)
        asked = question(stream=body.startswith("data:"))
        assert (await raw_request(alone.url, post(path, asked))).body == body.encode()


NOISE = "!" * 16


def words(*each: str) -> str:
    parts = [f'{{"choices":[{{"index":0,"delta":{{"content":"{word}"}}}}]}}' for word in each]
    return events('{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}', *parts, END, "[DONE]")


END = '{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}'
WITH_NOISE = {
    choices(f'{{"message":{{"content":"{NOISE * 400}"}},"finish_reason":"length"}}'): CHAT,
    choices(f'{{"text": "{NOISE}","finish_reason":"length"}}'): "/v1/completions",
    f'{{"type":"message","content":[{{"type":"text","text":"{NOISE}"}}],"stop_reason":"max_tokens"}}': "/v1/messages",
    words(*NOISE, *NOISE): CHAT,
    words("!!!!", *NOISE): CHAT,
    events(*[f'{{"choices":[{{"index":0,"text":"{each}"}}]}}' for each in NOISE]): "/v1/completions",
    events(
        '{"type":"message_start","message":{"content":[]}}',
        '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
        *[f'{{"type":"content_block_delta","delta":{{"type":"text_delta","text":"{each}"}}}}' for each in NOISE],
    ): "/v1/messages",
    events(
        *[f'{{"type":"response.output_text.delta","delta":"{each}"}}' for each in NOISE],
    ): "/v1/responses",
}


@pytest.mark.parametrize("body", WITH_NOISE)
async def test_an_answer_that_is_one_character_over_and_over_is_asked_of_a_second_engine(
    start_edge: StartEdge, body: str
) -> None:
    """As engines answer whose numbers overflow (vllm-project/vllm #14126, #13035, #53305)."""
    _, answer, _ = await asked_of_two(start_edge, WITH_NOISE[body], body)
    assert answer.body.startswith(body.encode())


WITH_A_REASON = [
    words("!"),
    words(*NOISE[1:]),
    words("!", "important"),
    words("Stop", *NOISE),
    choices('{"message":{"content":"!!!"},"finish_reason":"stop"}'),
    choices(f'{{"message":{{"content":"{NOISE} so"}},"finish_reason":"stop"}}'),
    choices(f'{{"message":{{"content":"{NOISE}","tool_calls":[{{}}]}},"finish_reason":"stop"}}'),
    choices('{"message":{"content":null,"tool_calls":[{"function":{"name":"f"}}]},"finish_reason":"tool_calls"}'),
    choices('{"message":{"content":null,"reasoning":"so"},"finish_reason":"length"}'),
    choices('{"message":{"content":"","refusal":"no"},"finish_reason":"stop"}'),
    choices('{"message":{"content":""},"finish_reason":"content_filter"}'),
    choices('{"message":{"content":""},"finish_reason":"stop","stop_reason":"END"}'),
    choices('{"message":{"content":""},"finish_reason":"stop"}', '{"message":{"content":"a"},"finish_reason":"stop"}'),
    events('{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
           '{"choices":[{"index":1,"delta":{"content":"a"}}]}', "[DONE]"),
]  # fmt: skip


@pytest.mark.parametrize("body", WITH_A_REASON)
async def test_an_answer_that_says_why_it_has_no_text_is_the_clients(start_edge: StartEdge, body: str) -> None:
    async with ScriptedEngine(answering(body)) as engine, ScriptedEngine() as other:
        edge = await start_edge(engine.url, other.url)
        answer = await raw_request(edge.url, post(CHAT, FOR_TWO))
    assert (answer.body, other.received) == (body.encode(), [])


@pytest.mark.parametrize("reason", [b"abort", b"cancelled"])
async def test_an_answer_that_its_engine_aborted_comes_from_another_engine_and_is_the_clients_where_none_is_left(
    start_edge: StartEdge, reason: bytes
) -> None:
    """As an engine does that is paused for new weights (vllm-project/vllm #28037, radixark/miles #2589)."""
    half = b'{"choices":[{"message":{"content":"half an ans"},"finish_reason": "%b"}]}' % reason
    said = (
        b'{"choices":[{"message":{"content":"\\"finish_reason\\":\\"%b\\" \\"%b"},"finish_reason":"stop"},'
        b'{"message":{"content":"%b"},"finish_reason":["%b"]}]}' % (reason, reason, reason, reason)
    )
    waiting = (
        b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"%b"}]}\n\ndata: [DONE]\n\n' % reason
    )
    for body, passes in ((half, False), (said, True), (waiting, False)):
        kind = "application/json" if body.startswith(b"{") else "text/event-stream"

        async def answer(request: Received, body: bytes = body, kind: str = kind) -> None:
            await request.answer(body, content_type=kind)

        async with ScriptedEngine(answer) as paused, ScriptedEngine() as good:
            edge = await start_edge(paused.url, good.url)
            response = await raw_request(edge.url, post(CHAT, FOR_TWO))
            assert response.body == (body if passes else ANSWER)
            alone = await start_edge(paused.url)
            response = await raw_request(alone.url, post(CHAT, FOR_TWO))
            assert (response.status, response.body) == (200, body)


@pytest.mark.parametrize("between", [b"", b"\n", b"\r\n\r\n"])
async def test_two_documents_in_one_answer_are_no_answer(start_edge: StartEdge, between: bytes) -> None:
    async def twice(request: Received) -> None:
        await request.answer(ANSWER + between + ANSWER)

    async with ScriptedEngine(twice) as engine, ScriptedEngine() as good:
        edge = await start_edge(engine.url, good.url)
        assert (await raw_request(edge.url, post(CHAT, BODY))).body == ANSWER
        alone = await start_edge(engine.url)
        response = await raw_request(alone.url, post(CHAT, BODY))
    assert (response.status, orjson.loads(response.body)["error"]["code"]) == (502, "invalid_answer")


async def test_a_text_that_looks_like_two_documents_is_an_answer(start_edge: StartEdge) -> None:
    text = ANSWER.replace(b'"Hello"', b'"if (a) {} {} while"')

    async def answer(request: Received) -> None:
        await request.answer(text)

    async with ScriptedEngine(answer) as engine, ScriptedEngine() as other:
        edge = await start_edge(engine.url, other.url)
        assert (await raw_request(edge.url, post(CHAT, BODY))).body == text
    assert other.received == []
