"""Answers with other choices than their requests asked for: too few, too many, wrongly numbered, or without an end."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import orjson
import pytest

from pointsman_contracts.journey import Target
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_contracts.response import AttemptFailed, ResponseCompleted
from pointsman_testing.fake_stages import StartEdge
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import Received, ScriptedEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Script = Callable[[Received], Awaitable[None]]


def body(path: str, n: int | None, *, stream: bool = False, **more: Any) -> bytes:
    said: dict[str, Any] = (
        {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    )
    return orjson.dumps({"model": "llama-8b", "n": n, "stream": stream, **said, **more})


def choice(index: object, reason: str | None = "stop", text: str = "word") -> dict[str, Any]:
    return {"index": index, "message": {"role": "assistant", "content": text}, "text": text, "finish_reason": reason}


def whole(*choices: dict[str, Any]) -> bytes:
    usage = {"prompt_tokens": 3, "completion_tokens": 2 * len(choices)}
    return orjson.dumps({"id": "x", "object": "chat.completion", "choices": choices, "usage": usage})


def chunk(index: object, text: str = "", reason: str | None = None) -> bytes:
    said = {"index": index, "delta": {"content": text} if text else {}, "text": text, "finish_reason": reason}
    return b"data: " + orjson.dumps({"id": "x", "choices": [said]}) + b"\n\n"


USAGE = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"


def sends(pieces: Iterable[bytes], *, stream: bool) -> Script:
    async def answer(request: Received) -> None:
        if request.method == "GET":
            await request.answer(b"{}")
        elif not stream:
            await request.answer(b"".join(pieces))
        else:
            await request.begin_stream()
            for piece in pieces:
                await request.chunk(piece)
                await asyncio.sleep(0)
            await request.chunk(b"")

    return answer


GOOD = [choice(1, text="b"), choice(0, "length", "a")]
WRONG = {
    "one of two": (2, whole(choice(0))),
    "three of two": (2, whole(choice(0), choice(1), choice(2))),
    "two of one": (1, whole(choice(0), choice(1))),
    "the same index twice": (2, whole(choice(0), choice(0))),
    "an index out of range": (2, whole(choice(0), choice(2))),
    "an index that is no number": (2, whole(choice(0), choice("1"))),
    "one without an end": (2, whole(choice(0), choice(1, None))),
    "one that is null": (2, whole(choice(0)).replace(b'"choices":[', b'"choices":[null,')),
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", WRONG)
async def test_a_whole_answer_with_wrong_choices_comes_from_another_engine_and_is_an_error_without_one(
    start_edge: StartEdge, path: str, name: str
) -> None:
    n, answer = WRONG[name]
    right = whole(*GOOD) if n == 2 else whole(choice(0))
    async with (
        ScriptedEngine(sends([answer], stream=False)) as bad,
        ScriptedEngine(sends([right], stream=False)) as good,
    ):
        edge = await start_edge(bad.url, good.url)
        edge.stages.changes = {"answers": n}
        response = await raw_request(edge.url, post(path, body(path, n)))
        assert (response.status, response.body) == (200, right)
        (failed,) = edge.events.of(AttemptFailed)
        assert (failed.worker, failed.outcome, failed.status) == ("worker-1", "failed", 200)

        alone = await start_edge(bad.url)
        alone.stages.changes = {"answers": n}
        response = await raw_request(alone.url, post(path, body(path, n)))
        assert response.status == 502
        error = orjson.loads(response.body)["error"]
        assert (error["code"], error["type"]) == ("engine_failed", "server_error")
        assert "choice" in error["message"]


ENDS = (chunk(0, reason="stop"), chunk(1, reason="length"))
WRONG_STREAMS = {
    "a missing choice": (2, [chunk(0, "a"), chunk(0, "b"), chunk(0, reason="stop"), USAGE, DONE]),
    "a choice that never ends": (2, [chunk(0, "a"), chunk(1, "b"), chunk(0, reason="stop"), USAGE, DONE]),
    "the end of the wrong one": (2, [chunk(0, "a"), chunk(1, "b"), ENDS[0], ENDS[0], DONE]),
    "the same index twice": (2, [chunk(0, "a"), chunk(0, "b"), ENDS[0], ENDS[0], DONE]),
    "an index out of range": (2, [chunk(0, "a"), chunk(1, "b"), chunk(2, "c"), *ENDS, DONE]),
    "an index that is no number": (2, [chunk(0, "a"), chunk("1", "b"), *ENDS, DONE]),
    "no mark and a missing choice": (2, [chunk(0, "a"), ENDS[0]]),
    "two of one": (1, [chunk(0, "a"), chunk(1, "b"), *ENDS, USAGE, DONE]),
    "two of one, spaced": (1, [each.replace(b'":', b'": ') for each in (chunk(0, "a"), chunk(1, "b"), *ENDS, DONE)]),
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", WRONG_STREAMS)
async def test_a_stream_with_wrong_choices_ends_with_an_error_and_without_its_mark(
    start_edge: StartEdge, path: str, name: str
) -> None:
    n, pieces = WRONG_STREAMS[name]
    for cut in (pieces, [b"".join(pieces)]):
        async with ScriptedEngine(sends(cut, stream=True)) as engine:
            edge = await start_edge(engine.url)
            edge.stages.changes = {"answers": n}
            response = await raw_request(edge.url, post(path, body(path, n, stream=True)))
        assert DONE not in response.body
        assert b'"code":"engine_cut_off"' in response.body
        assert b'"c"' not in response.body
        (done,) = edge.events.of(ResponseCompleted)
        assert (done.outcome, done.attempts[-1].outcome) == ("cut_off", "cut_off")


RIGHT = {
    "two": (2, [chunk(1, "b"), chunk(0, "a"), *ENDS, USAGE, DONE]),
    "ends twice": (2, [chunk(1, "b"), chunk(0, "a"), *ENDS, ENDS[0], DONE]),
    "without a mark": (2, [chunk(1, "b"), chunk(0, "a"), *ENDS]),
    "one with two tool calls": (
        1,
        [
            chunk(0, "a"),
            b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"c","type":"function",'
            b'"function":{"name":"f","arguments":"{}"}}]},"finish_reason":null}]}\n\n',
            b'data: {"choices":[{"finish_reason":null,"delta":{"tool_calls":[{"index":1,"text":1,"function":'
            b'{"arguments":"{}"}}]},"index":0}]}\n\n',
            ENDS[0],
            DONE,
        ],
    ),
}


@pytest.mark.parametrize("name", RIGHT)
async def test_a_stream_with_the_choices_that_were_asked_for_passes_byte_for_byte(
    start_edge: StartEdge, name: str
) -> None:
    n, pieces = RIGHT[name]
    async with ScriptedEngine(sends(pieces, stream=True)) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes = {"answers": n}
        response = await raw_request(edge.url, post(CHAT, body(CHAT, n, stream=True)))
    assert response.body.removesuffix(DONE) == b"".join(pieces).removesuffix(DONE)
    assert response.body.endswith(DONE)


@pytest.mark.parametrize(
    ("answers", "more"),
    [
        (4, {"n": 2, "best_of": 4}),
        (1, {"n": 2}),  # an edge that decides alone counts none
        (2, {"prompt": ["a", "b"], "n": 1}),
        (1, {"prompt_embeds": ["a", "b"], "n": 1}),
        (2, {"prompt": [[1, 2], [3]], "n": None}),
    ],
)
async def test_the_request_says_how_many_choices_its_answer_has(
    start_edge: StartEdge, answers: int, more: dict[str, Any]
) -> None:
    stream = [chunk(0, "a"), chunk(1, "b"), *ENDS, DONE]
    for streamed, pieces in ((False, [whole(*GOOD)]), (True, stream)):
        async with ScriptedEngine(sends(pieces, stream=streamed)) as engine:
            edge = await start_edge(engine.url)
            edge.stages.changes = {"answers": answers}
            asked = body(COMPLETIONS, stream=streamed, **more)
            response = await raw_request(edge.url, post(COMPLETIONS, asked))
        assert (response.status, response.body) == (200, b"".join(pieces))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", ["two of one", "the same index twice", "an index out of range"])
async def test_a_providers_wrong_choices_are_its_failure(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, name: str, streamed: bool
) -> None:
    monkeypatch.setenv("TEST_PROVIDER_KEY", "key-of-the-test")
    n, pieces = WRONG_STREAMS[name] if streamed else (WRONG[name][0], [WRONG[name][1]])
    right = whole(*GOOD) if n == 2 else whole(choice(0))
    async with (
        ScriptedEngine(sends(pieces, stream=streamed)) as bad,
        ScriptedEngine(sends([right], stream=False)) as good,
    ):
        providers = {
            name: {"kind": "openai", "base_url": f"{each.url}/v1", "credential": "env:TEST_PROVIDER_KEY"}
            for name, each in (("bad", bad), ("good", good))
        }
        edge = await start_edge(config={"providers": providers, "models": {}})
        target = Target(model="m", provider="bad")
        edge.stages.changes = {
            "model": "llama-8b",
            "target": target,
            "answers": n,
            "endpoints": (ChosenEndpoint(worker="bad", url="", target=target),),
            "alternatives": (Target(model="m", provider="good"),),
            "scheduler": "",
        }
        response = await raw_request(edge.url, post(CHAT, body(CHAT, n, stream=streamed)))
        (done,) = edge.events.of(ResponseCompleted)
    outcomes = [each.outcome for each in done.attempts]
    if streamed and len(outcomes) == 1:
        # The client has the first event by then.
        assert DONE not in response.body
        assert b'"code":"engine_cut_off"' in response.body
        assert outcomes == ["cut_off"]
    else:
        assert len(orjson.loads(response.body)["choices"]) == n
        assert outcomes == ["failed", "answered"]
