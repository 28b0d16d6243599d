"""Bad input gets a 4xx in OpenAI's error shape, reaches no engine, kills nothing, and the next good request works."""

import asyncio
import json

import httpx
import pytest

from pointsman_testing.answered import answered
from pointsman_testing.stack import Stack

pytestmark = [pytest.mark.requirement("INPUT-1"), pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

GOOD = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


def chat(**changes: object) -> bytes:
    return json.dumps(GOOD | changes).encode()


def deep(levels: int) -> bytes:
    return b'{"model":"llama-3.1-8b","messages":' + b"[" * levels + b"]" * levels + b"}"


BODIES = {
    "nothing": (b"", 400),
    "not json": (b"hello", 400),
    "truncated": (chat()[:-5], 400),
    "an array": (b"[]", 400),
    "a number": (b"7", 400),
    "NaN": (b'{"model":"llama-3.1-8b","temperature":NaN,"messages":[{"role":"user","content":"x"}]}', 400),
    "infinity": (b'{"model":"llama-3.1-8b","temperature":-Infinity,"messages":[{"role":"user","content":"x"}]}', 400),
    "depth 10,000": (deep(10_000), 400),
    "a tool of depth 300": (chat()[:-1] + b',"tools":[{"function":' + b"[" * 300 + b"]" * 300 + b"}]}", 400),
    "NUL byte": (b'{"model":"llama-3.1-8b\x00","messages":[]}', 400),
    "lone surrogate": (b'{"model":"llama-3.1-8b","messages":[{"role":"user","content":"\\ud800"}]}', 400),
    "invalid utf-8": (b'{"model":"llama-3.1-8b","messages":[{"role":"user","content":"\xff\xfe"}]}', 400),
    "two documents": (chat() + chat(), 400),
    "model a number": (chat(model=7), 400),
    "model null": (chat(model=None), 400),
    "model empty": (chat(model=""), 400),
    "messages text": (chat(messages="x"), 400),
    "messages empty": (chat(messages=[]), 400),
    "messages of numbers": (chat(messages=[1]), 400),
    "a message without role": (chat(messages=[{"content": "x"}]), 400),
    "content a number": (chat(messages=[{"role": "user", "content": 5}]), 400),
    "stream text": (chat(stream="yes"), 400),
    "max_tokens text": (chat(max_tokens="many"), 400),
    "max_tokens negative": (chat(max_tokens=-1), 400),
    "temperature text": (chat(temperature="hot"), 400),
    "tools text": (chat(tools="hammer"), 400),
    "stop a number": (chat(stop=3), 400),
    "stop of numbers": (chat(stop=[1]), 400),
    "documents of numbers": (chat(documents=[1]), 400),
    "modalities of nulls": (chat(modalities=[None]), 400),
    "store text": (chat(store="x"), 400),
    "a message without content": (chat(messages=[{"role": "user"}]), 400),
    "an image that is a number": (
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": 5}]}]),
        400,
    ),
    "temperature negative": (chat(temperature=-1), 400),
    "top_p above 1": (chat(top_p=7), 400),
    "21 MiB": (chat(padding="x" * (21 * 2**20)), 413),
}


async def asked(
    http: httpx.AsyncClient, method: str, path: str, body: bytes, content_type: str = "application/json"
) -> httpx.Response:
    """The answer, once it isn't to come again."""

    async def once() -> tuple[int, httpx.Response]:
        answer = await http.request(method, path, content=body, headers={"content-type": content_type})
        return answer.status_code, answer

    return (await answered(once))[1]


async def served(stack: Stack) -> float:
    """Requests that the engines have finished or begun, by their own count."""
    return sum([await engine.metric("vllm:prompt_tokens_total") for engine in stack.engines])


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_is_wrong_is_refused_with_words(stack: Stack, name: str) -> None:
    body, status = BODIES[name]
    before = await served(stack)
    async with httpx.AsyncClient(base_url=stack.door, timeout=60) as http:
        answer = await asked(http, "POST", "/v1/chat/completions", body)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert len(error["message"]) > 15
        assert set(error) >= {"message", "type", "param", "code"}
        assert "x-request-id" in answer.headers
        assert await served(stack) == before
        assert (await asked(http, "POST", "/v1/chat/completions", chat())).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "content_type", "status"),
    [
        ("GET", "/v1/chat/completions", "application/json", 405),
        ("PUT", "/v1/completions", "application/json", 405),
        ("POST", "/v1/models", "application/json", 405),
        ("POST", "/v1/chat/completions", "text/plain", 415),
        ("POST", "/v1/chat/completions", "multipart/form-data; boundary=x", 415),
        ("POST", "/v1/nothing", "application/json", 404),
        ("GET", "/../etc/passwd", "application/json", 404),
    ],
)
async def test_a_wrong_method_path_or_content_type_is_refused(
    stack: Stack, method: str, path: str, content_type: str, status: int
) -> None:
    async with httpx.AsyncClient(base_url=stack.door, timeout=60) as http:
        answer = await asked(http, method, path, chat(), content_type)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: \xff\x00\x01\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 200_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: nine\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/9.9\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["binary header", "200 kB header", "bad length", "unknown version", "TLS hello"],
)
async def test_bytes_that_are_no_request_are_refused_or_closed(stack: Stack, head: bytes) -> None:
    reader, writer = await asyncio.open_connection(*stack.door_address)
    writer.write(head)
    answer = await asyncio.wait_for(reader.read(65536), 30)
    writer.close()
    assert answer == b"" or answer.split(b" ")[1][:1] == b"4"
    async with httpx.AsyncClient(base_url=stack.door, timeout=60) as http:
        assert (await asked(http, "POST", "/v1/chat/completions", chat())).status_code == 200


async def test_a_body_that_never_comes_is_given_up_on_by_closing(stack: Stack) -> None:
    before = await served(stack)
    reader, writer = await asyncio.open_connection(*stack.door_address)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: 1000\r\n\r\n{")
    writer.write_eof()
    assert (await asyncio.wait_for(reader.read(65536), 30)).partition(b"\r\n")[0] in (b"", b"HTTP/1.1 400 Bad Request")
    writer.close()
    assert await served(stack) == before
