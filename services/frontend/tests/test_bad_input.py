"""Requests that can't be served get an error that says why, reach no stage and no engine, and harm nothing."""

import asyncio
import gzip
import json

import pytest

from pointsman_contracts.journey import HeaderEdit
from pointsman_contracts.reply import Rejection
from pointsman_contracts.response import RequestRejected, ResponseCompleted
from pointsman_testing import eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import RawConnection, RawResponse, post, raw_connection, raw_request
from pointsman_testing.scripted_engine import ANSWER, ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'


def error_of(answer: RawResponse) -> dict[str, object]:
    """The error, whose shape is OpenAI's."""
    assert answer.header("content-type") == "application/json"
    assert answer.header("x-request-id")
    document = json.loads(answer.body)
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    return document["error"]


async def works(edge: EdgeUnderTest) -> None:
    """A good request is answered."""
    answer = await raw_request(edge.url, post(CHAT, BODY))
    assert (answer.status, answer.body) == (200, ANSWER)


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join((line, "host: edge", *headers)).encode("latin-1") + b"\r\n\r\n" + body


JSON = "content-type: application/json"

REFUSED = {
    "unknown path": (request("GET /v2/nothing HTTP/1.1"), 404, "unknown_path"),
    "unknown path with a body": (post("/v1/nothing", BODY), 404, "unknown_path"),
    "hidden slash": (post("/v1/chat%2Fcompletions", BODY), 400, "invalid_path"),
    "hidden slash with a query": (post("/v1/chat%2fcompletions?x=%2f", BODY), 400, "invalid_path"),
    "hidden backslash": (request("GET /v1%5cmodels HTTP/1.1"), 400, "invalid_path"),
    "chunks in HTTP/1.0": (
        request("POST /v1/chat/completions HTTP/1.0", "transfer-encoding: chunked") + b"0\r\n\r\n",
        400,
        "invalid_http",
    ),
    "root": (request("GET / HTTP/1.1"), 404, "unknown_path"),
    "path outside": (request("GET /../etc/passwd HTTP/1.1"), 404, "unknown_path"),
    "path that isn't UTF-8": (request("GET /%ff%fe HTTP/1.1"), 404, "unknown_path"),
    "wrong method": (request("GET /v1/chat/completions HTTP/1.1"), 405, "method_not_allowed"),
    "unknown model list method": (post("/v1/models", BODY), 405, "method_not_allowed"),
    "health method": (post("/ready", BODY), 405, "method_not_allowed"),
    "invented method": (request("FROB /v1/completions HTTP/1.1"), 400, "invalid_http"),
    "no content type": (
        request(f"POST {CHAT} HTTP/1.1", "content-length: 2", body=b"{}"), 415, "unsupported_content_type",
    ),
    "form": (
        request(f"POST {CHAT} HTTP/1.1", "content-type: multipart/form-data", "content-length: 2", body=b"{}"),
        415, "unsupported_content_type",
    ),
    "latin-1 JSON": (
        request(f"POST {CHAT} HTTP/1.1", f"{JSON}; charset=latin-1", "content-length: 2", body=b"{}"),
        415, "unsupported_content_type",
    ),
    "not gzip": (
        request(f"POST {CHAT} HTTP/1.1", JSON, "content-encoding: gzip", "content-length: 2", body=b"{}"),
        400, "invalid_encoding",
    ),
    "lzma": (
        request(f"POST {CHAT} HTTP/1.1", JSON, "content-encoding: xz", "content-length: 2", body=b"{}"),
        415, "unsupported_encoding",
    ),
    "gzip of 21 MiB": (
        post(CHAT, gzip.compress(b"x" * 21 * 2**20), "content-encoding: gzip"), 413, "body_too_large",
    ),
    "two content types": (
        request(f"POST {CHAT} HTTP/1.1", JSON, "content-type: text/plain", "content-length: 2", body=b"{}"),
        400, "invalid_header",
    ),
    "two credentials": (post(CHAT, BODY, "authorization: Bearer a", "authorization: Bearer b"), 400, "invalid_header"),
    "binary header": (post(CHAT, BODY, "x-binary: \xff\xfe"), 400, "invalid_header"),
    "control character in a header": (post(CHAT, BODY, "x-binary: a\x01b"), 400, "invalid_http"),
    "NUL in a header": (post(CHAT, BODY, "x-binary: a\x00b"), 400, "invalid_http"),
    "space in a header's name": (post(CHAT, BODY, "x binary: a"), 400, "invalid_http"),
    "long header": (post(CHAT, BODY, f"x-long: {'a' * 70_000}"), 431, "headers_too_large"),
    "many headers": (post(CHAT, BODY, *(f"x-{n}: a" for n in range(130))), 431, "headers_too_large"),
    "empty body": (post(CHAT, b""), 400, "empty_body"),
    "no body at all": (request(f"POST {CHAT} HTTP/1.1", JSON), 400, "empty_body"),
    "21 MiB": (post(CHAT, b"x" * 21 * 2**20), 413, "body_too_large"),
    "21 MiB, announced": (request(f"POST {CHAT} HTTP/1.1", JSON, "content-length: 22020096"), 413, "body_too_large"),
    "length that is no number": (request(f"POST {CHAT} HTTP/1.1", JSON, "content-length: -1"), 400, "invalid_http"),
    "length and chunks": (
        request(f"POST {CHAT} HTTP/1.1", JSON, "content-length: 2", "transfer-encoding: chunked", body=b"{}"),
        400, "invalid_http",
    ),
    "bad chunk": (
        request(f"POST {CHAT} HTTP/1.1", JSON, "transfer-encoding: chunked", body=b"zz\r\n{}\r\n0\r\n\r\n"),
        400, "invalid_http",
    ),
    "tunnel": (request("CONNECT engine:443 HTTP/1.1"), 400, "invalid_http"),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "invalid_http"),
    "unknown version": (request(f"POST {CHAT} HTTP/7.3"), 400, "invalid_http"),
}  # fmt: skip


async def test_a_compressed_body_reaches_the_engine_uncompressed(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post(CHAT, gzip.compress(BODY), "content-encoding: gzip"))
        assert (answer.status, answer.body) == (200, ANSWER)
        (received,) = engine.received
        assert (received.body, received.header("content-encoding")) == (BODY, None)


@pytest.mark.parametrize("name", REFUSED)
async def test_a_request_that_cant_be_taken_is_refused_with_words(start_edge: StartEdge, name: str) -> None:
    sent, status, code = REFUSED[name]
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, sent)
        error = error_of(answer)
        assert (answer.status, error["code"]) == (status, code)
        assert len(str(error["message"])) > 15
        assert error["type"] == "invalid_request_error"
        if status == 405:
            assert answer.header("allow")
        assert edge.stages.asked == []
        assert engine.received == []
        await works(edge)


@pytest.mark.requirement("S1-40")
async def test_a_body_over_the_limit_is_named_with_limit_and_size(start_edge: StartEdge) -> None:
    edge = await start_edge(config={"edge": {"max_body": "64 KiB"}})
    answer = await raw_request(edge.url, post(CHAT, b"x" * 65537))
    assert error_of(answer)["message"] == "The body has 65537 bytes; at most 65536 are accepted."
    (rejected,) = edge.events.of(RequestRejected)
    assert (rejected.stage, rejected.status, rejected.code) == ("edge", 413, "body_too_large")


async def test_a_body_of_exactly_the_limit_passes(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, config={"edge": {"max_body": "64 KiB"}})
        assert (await raw_request(edge.url, post(CHAT, b"x" * 65536))).status == 200


async def test_a_chunked_body_is_read_whole_and_bounded_too(start_edge: StartEdge) -> None:
    head = request(f"POST {CHAT} HTTP/1.1", JSON, "transfer-encoding: chunked")
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, config={"edge": {"max_body": "64 KiB"}})
        async with raw_connection(edge.url) as client:
            await client.send(head)
            for piece in (BODY[:10], BODY[10:]):
                await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await client.send(b"0\r\n\r\n")
            assert (await client.response()).status == 200
            assert engine.received[0].body == BODY
            assert engine.received[0].header("content-length") == str(len(BODY))
            await client.send(head)
            await client.send((b"4000\r\n" + b"x" * 0x4000 + b"\r\n") * 5)
            refused = await client.response()
    assert (refused.status, error_of(refused)["code"]) == (413, "body_too_large")


async def test_after_a_refusal_the_connection_serves_the_next_request(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, config={"edge": {"max_body": "64 KiB"}})
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, b"x" * 100_000))
            assert (await client.response()).status == 413
            await client.send(post(CHAT, BODY))
            assert (await client.response()).body == ANSWER


async def test_a_client_that_asks_before_sending_gets_100_or_an_error(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        async with raw_connection(edge.url) as client:
            await client.send(
                request(f"POST {CHAT} HTTP/1.1", JSON, f"content-length: {len(BODY)}", "expect: 100-continue")
            )
            assert await client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(BODY)
            assert (await client.response()).status == 200
            await client.send(
                request(f"POST {CHAT} HTTP/1.1", JSON, "content-length: 99999999", "expect: 100-continue")
            )
            assert (await client.response()).status == 413


async def test_a_client_that_leaves_within_its_body_reaches_no_engine_and_is_recorded(start_edge: StartEdge) -> None:
    edge = await start_edge()
    async with raw_connection(edge.url) as client:
        await client.send(post(CHAT, BODY)[:-5])
        await eventually(lambda: edge.metric("pointsman_edge_open_requests"))
        client.close()
        (done,) = await eventually(lambda: edge.events.of(ResponseCompleted))
        assert (done.outcome, done.status, done.pool) == ("client_gone", 499, "-")
        assert edge.stages.asked == []


async def test_a_head_that_never_ends_is_given_up_on(start_edge: StartEdge) -> None:
    edge = await start_edge(head_timeout_s=0.2)
    async with raw_connection(edge.url) as silent, raw_connection(edge.url) as slow:
        await slow.send(b"POST /v1/completions HTTP/1.1\r\nhost: ")
        dripping = asyncio.create_task(_drip(slow))
        answer = await slow.response()
        assert (answer.status, error_of(answer)["code"]) == (408, "request_timeout")
        await slow.closed()
        assert await silent.closed() == b""
        dripping.cancel()
        assert edge.metric("pointsman_edge_refused_connections_total") == 1


async def _drip(connection: RawConnection) -> None:
    while True:
        await connection.send(b"x")
        await asyncio.sleep(0.02)


async def test_a_second_request_of_a_connection_is_bounded_too(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, head_timeout_s=0.2)
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            assert (await client.response()).status == 200
            await client.send(b"POST /v1/comp")
            assert (await client.response()).status == 408


async def test_empty_lines_keep_no_connection_open(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, head_timeout_s=0.2)
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            assert (await client.response()).status == 200
            await client.send(b"\r\n\r\n")
            assert await client.closed() == b""


async def test_a_head_over_the_limit_is_refused_before_it_ends(start_edge: StartEdge) -> None:
    edge = await start_edge(max_head_bytes=4096)
    async with raw_connection(edge.url) as client:
        await client.send(b"POST /v1/completions HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(600)))
        answer = await client.response()
        assert (answer.status, error_of(answer)["code"]) == (431, "headers_too_large")
        await client.closed()


async def test_a_body_that_never_ends_is_given_up_on(start_edge: StartEdge) -> None:
    edge = await start_edge(body_timeout_s=0.2)
    async with raw_connection(edge.url) as client:
        await client.send(post(CHAT, BODY)[:-5])
        answer = await client.response()
        assert (answer.status, error_of(answer)["code"]) == (408, "request_timeout")
        (done,) = edge.events.of(ResponseCompleted)
        assert (done.outcome, done.status) == ("rejected", 408)


async def test_a_refused_body_is_swallowed_only_for_a_while(start_edge: StartEdge) -> None:
    edge = await start_edge(head_timeout_s=0.2)
    async with raw_connection(edge.url) as client:
        await client.send(request(f"POST {CHAT} HTTP/1.1", JSON, "content-length: 99999999"))
        assert (await client.response()).status == 413
        await client.closed()


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-DEF_1.2:3", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("a\tb", False), ("é", False)],
)
async def test_a_request_id_is_kept_when_it_is_usable(start_edge: StartEdge, given: str, kept: bool) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post(CHAT, BODY, f"x-request-id: {given}"))
    assert answer.status == 200
    assert (answer.header("x-request-id") == given) is kept
    assert engine.received[0].header("x-request-id") == answer.header("x-request-id")


async def test_two_open_requests_never_share_an_id(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        edge.stages.let_go.clear()
        both = [asyncio.create_task(raw_request(edge.url, post(CHAT, BODY, "x-request-id: same"))) for _ in range(2)]
        await eventually(lambda: len(edge.stages.asked) == 2)
        edge.stages.let_go.set()
        ids = {answer.header("x-request-id") for answer in await asyncio.gather(*both)}
    assert len(ids) == 2
    assert all(str(each).startswith("same") for each in ids)


async def test_a_rejection_reaches_the_client_as_the_stage_said_it(start_edge: StartEdge) -> None:
    edge = await start_edge()
    edge.stages.reply = lambda asked: Rejection(
        request_id=asked.request_id,
        stage="scheduler",
        status=429,
        type="rate_limit_error",
        code="saturated",
        message="The pool is saturated; try again in 3 s.",
        param="model",
        retry_after_s=2.2,
        dropped_reason="rejected-saturated",
        profile="standard",
        answer_headers=(HeaderEdit(name="x-ratelimit-remaining-requests", value="0"),),
    )
    answer = await raw_request(edge.url, post(CHAT, BODY))
    assert answer.status == 429
    assert error_of(answer) == {
        "message": "The pool is saturated; try again in 3 s.",
        "type": "rate_limit_error",
        "param": "model",
        "code": "saturated",
    }
    assert answer.header("retry-after") == "3"
    assert answer.header("x-pointsman-dropped-reason") == "rejected-saturated"
    assert answer.header("x-ratelimit-remaining-requests") == "0"
    (rejected,) = edge.events.of(RequestRejected)
    assert (rejected.stage, rejected.status, rejected.code, rejected.profile) == (
        "scheduler", 429, "saturated", "standard",
    )  # fmt: skip
    assert (rejected.dropped_reason, rejected.sequence) == ("rejected-saturated", 1)
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.outcome, done.status, done.reason) == ("rejected", 429, rejected.reason)


async def test_a_fault_of_the_edge_is_a_500_with_the_request_id_and_nothing_else(
    start_edge: StartEdge, caplog: pytest.LogCaptureFixture
) -> None:
    edge = await start_edge()
    edge.stages.failure = RuntimeError("SECRET-PROMPT")
    answer = await raw_request(edge.url, post(CHAT, BODY, "x-request-id: mine"))
    assert answer.status == 500
    assert error_of(answer)["message"] == "Internal error; request id mine."
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.outcome, done.status) == ("rejected", 500)
    assert "SECRET-PROMPT" not in answer.body.decode() + caplog.text + repr(edge.events.sent)
