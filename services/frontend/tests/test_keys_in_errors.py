"""Providers that repeat the gateway's key in an error within a stream: the client doesn't get it."""

import json

import pytest

from pointsman_contracts.journey import Target
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_contracts.response import ResponseCompleted, ResponseStarted
from pointsman_testing import eventually
from pointsman_testing.fake_stages import StartEdge
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import Received, ScriptedEngine

KEY = "sk-canary-1234567890"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
WORD = 'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}\n\n'
DELTA = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}'
SAID = f"event: content_block_delta\ndata: {DELTA}\n\n"
PIECE = 'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"Hello"}\n\n'
WORDS = f"Incorrect API key provided: {KEY}."


def error(**more: object) -> str:
    return json.dumps({"error": {"message": WORDS, "type": "invalid_request_error", **more}})


FAILED = json.dumps(
    {
        "type": "response.failed",
        "response": {"object": "response", "status": "failed", "output": [], "error": {"code": "x", "message": WORDS}},
    }
)
STREAMS = {
    "in the message": ("openai", CHAT, WORD, f"data: {error()}\n\n"),
    "in the code": ("openai", CHAT, WORD, f"data: {error(code=KEY)}\n\n"),
    "in further members": ("openai", CHAT, WORD, f"data: {error(metadata={'headers': {'authorization': KEY}})}\n\n"),
    "in an event named error": ("openai", CHAT, WORD, f"event: error\ndata: {error()}\n\n"),
    "of Anthropic": ("anthropic", MESSAGES, SAID, f'event: error\ndata: {{"type":"error",{error()[1:]}\n\n'),
    "of a response": ("openai", RESPONSES, PIECE, f"event: error\ndata: {error()}\n\n"),
    "of a response that failed": ("openai", RESPONSES, PIECE, f"event: response.failed\ndata: {FAILED}\n\n"),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_key_in_an_error_within_a_stream_stays_here(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TEST_PROVIDER_KEY", KEY)
    kind, path, word, failure = STREAMS[name]

    async def answer(request: Received) -> None:
        assert KEY in str(request.headers)
        await request.begin_stream()
        await request.chunk(word.encode())
        await eventually(lambda: edge.events.of(ResponseStarted))
        await request.chunk(failure.encode())
        await request.chunk(b"")

    async with ScriptedEngine(answer) as far:
        url = f"{far.url}/v1" if kind == "openai" else far.url
        provider = {"kind": kind, "base_url": url, "credential": "env:TEST_PROVIDER_KEY", "plaintext": True}
        edge = await start_edge(config={"providers": {"far": provider}, "models": {}})
        target = Target(model="m", provider="far")
        endpoint = ChosenEndpoint(worker="far", url="", target=target)
        edge.stages.changes = {"model": "large", "target": target, "endpoints": (endpoint,), "scheduler": ""}
        said = [{"role": "user", "content": "hi"}]
        body = {"model": "large", "stream": True, "messages": said, "input": "hi", "max_tokens": 9}
        response = await raw_request(edge.url, post(path, json.dumps(body).encode()))
        (done,) = edge.events.of(ResponseCompleted)
    assert b"Hello" in response.body
    assert b"***" in response.body
    assert KEY not in response.body.decode()
    assert KEY not in repr(done)
