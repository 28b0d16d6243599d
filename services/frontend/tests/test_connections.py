"""The requests of a connection are the ones that its client framed, whatever their bodies and offers look like."""

import asyncio
import itertools
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from pointsman_frontend.adapters.connection_bounds import Bounds
from pointsman_frontend.adapters.gathered_writes import GatheredWrites
from pointsman_frontend.adapters.http_connection import App, bounded
from pointsman_frontend.adapters.http_turn import Turn
from pointsman_testing import eventually
from pointsman_testing.fake_stages import StartEdge
from pointsman_testing.raw_http import post, raw_connection, raw_request
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
H2C = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAEAAEAAAAIAAAABAAMAAABk")


def text(body: bytes, *headers: str) -> bytes:
    """A POST that is refused by its head, before its body is read."""
    lines = (f"POST {CHAT} HTTP/1.1", "host: edge", "content-type: text/plain", f"content-length: {len(body)}")
    return "\r\n".join((*lines, *headers)).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("offer", [(), H2C])
async def test_text_in_a_refused_body_moves_no_later_request(start_edge: StartEdge, offer: Sequence[str]) -> None:
    hidden = post(CHAT, BODY, "x-user: admin", "x-request-id: hidden")
    carrier = post(CHAT, hidden, "x-request-id: carrier")
    bait = b"\r\nupgrade:" + b"A" * (len(carrier) - len(hidden) - len("\r\nupgrade:"))
    refused = text(b"x" * 300_000 + bait, *offer)
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, trusted_proxies=["127.0.0.1/32"])
        async with raw_connection(edge.url) as client:
            await client.send(refused[: -len(bait)])
            assert (await client.response()).status == 415
            await client.send(bait)
            await client.send(carrier)
            await client.response()
            await client.send(post(CHAT, BODY, "x-request-id: last"))
            await client.response()
    assert [asked.request_id for asked, _, _ in edge.stages.asked] == ["carrier", "last"]
    assert [request.body for request in engine.received] == [hidden, BODY]


@pytest.mark.parametrize(
    "offer", [H2C, ("Connection: UpGrade", "UpGrade: h2c"), ("connection: upgrade", "upgrade: websocket")]
)
@pytest.mark.parametrize("cut", [0, 40, -1])
async def test_an_offer_to_upgrade_is_served_as_if_it_were_not_there(
    start_edge: StartEdge, caplog: pytest.LogCaptureFixture, offer: Sequence[str], cut: int
) -> None:
    request = post(CHAT, BODY, *offer)
    at = cut if cut >= 0 else request.index(b"\r\n\r\n") + 4
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        async with raw_connection(edge.url) as client:
            for _ in range(2):
                await client.send(request[:at])
                await client.send(request[at:])
                assert (await client.response()).body == ANSWER
    assert [each.body for each in engine.received] == [BODY, BODY]
    assert engine.received[0].header("upgrade") is None
    assert engine.received[0].header("http2-settings") is None
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_websocket_handshake_is_answered_like_any_other_get(
    start_edge: StartEdge, caplog: pytest.LogCaptureFixture
) -> None:
    edge = await start_edge()
    key = "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13"
    head = f"GET {CHAT} HTTP/1.1\r\nhost: edge\r\nConnection: UpGrade\r\nUpGrade: WebSocket\r\n{key}\r\n\r\n"
    answer = await raw_request(edge.url, head.encode())
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (405, "method_not_allowed")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


CHUNKED = (
    f"POST {CHAT} HTTP/1.1\r\nhost: edge\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    f"{len(BODY):x}\r\n{BODY.decode()}\r\n0\r\n"
).encode()


async def test_trailers_of_a_client_are_no_headers(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, trusted_proxies=["127.0.0.1/32"])
        async with raw_connection(edge.url) as client:
            for _ in range(2):
                await client.send(CHUNKED + b"x-user: admin\r\nx-request-id: late\r\n\r\n")
                answer = await client.response()
                assert (answer.body, answer.header("x-request-id") == "late") == (ANSWER, False)
    assert ["x-user" in asked.headers for asked, _, _ in edge.stages.asked] == [False, False]
    assert engine.received[0].body == BODY


@pytest.mark.parametrize("line", [b"x-more: " + b"y" * 1000 + b"\r\n", b"y" * 1000])
async def test_trailers_of_a_client_end(start_edge: StartEdge, line: bytes) -> None:
    edge = await start_edge()
    async with raw_connection(edge.url) as client:
        await client.send(CHUNKED + b"x-first: " + line * 200)
        answer = await client.response()
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (431, "headers_too_large")
        await client.closed()
    assert edge.stages.asked == []


async def test_a_stream_for_http_1_0_has_no_chunks_and_ends_with_its_connection(start_edge: StartEdge) -> None:
    async def stream(request: Received) -> None:
        await request.begin_stream()
        for event in (EVENT, EVENT, b"data: [DONE]\n\n", b""):
            await request.chunk(event)

    old = post(CHAT, BODY).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    async with ScriptedEngine(stream) as engine:
        edge = await start_edge(engine.url)
        async with raw_connection(edge.url) as client:
            await client.send(old)
            answer = await client.response()
            assert [answer.header(name) for name in ("transfer-encoding", "connection")] == [None, "close"]
            assert await client.closed() == EVENT + EVENT + b"data: [DONE]\n\n"
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            assert (await client.response()).header("transfer-encoding") == "chunked"


async def test_a_document_for_http_1_0_has_its_length(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
            answer = await client.response()
            assert (answer.body, answer.header("content-length")) == (ANSWER, str(len(ANSWER)))
            assert await client.closed() == b""


@dataclass(frozen=True)
class Framed:
    """One request of a client."""

    body: bytes
    chunked: bool
    offer: tuple[str, ...]
    """Header lines."""
    early: bool
    """It is answered before its body is read."""

    def bytes(self, number: int) -> bytes:
        """As it is sent."""
        framing = "transfer-encoding: chunked" if self.chunked else f"content-length: {len(self.body)}"
        lines = (f"POST /{number} HTTP/1.1", "host: edge", *self.offer, framing, f"x-early: {self.early}")
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        if not self.chunked:
            return head + self.body
        middle = len(self.body) // 2
        pieces = (self.body[:middle], self.body[middle:])
        return (
            head
            + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
            + b"0\r\nx-late: 1\r\n\r\n"
        )


BAIT = st.lists(
    st.sampled_from(
        [
            b"\r\nupgrade:", b"\r\nUpGrade: h2c", b"\r\nconnection: upgrade", b"\r\n\r\n", b"\r\n", b"AAAA",
            b"0\r\n\r\n",
            b"POST /hidden HTTP/1.1\r\nhost: edge\r\ncontent-length: 0\r\n\r\n", b"GET /hidden HTTP/1.1\r\n\r\n",
        ]
    ),
    max_size=6,
).map(b"".join)  # fmt: skip
OFFERS = st.sampled_from(
    [
        (), H2C, ("Connection: UpGrade", "UPGRADE: websocket"), ("upgrade: h2c",), ("connection: upgrade",),
        ("x-note: upgrade: h2c", "x-empty:"),
    ]
)  # fmt: skip


@settings(max_examples=60)
@given(
    requests=st.lists(st.builds(Framed, BAIT, st.booleans(), OFFERS, st.booleans()), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 1500), max_size=12),
)
def test_requests_arrive_as_framed_whatever_their_bodies_offers_and_cuts(
    requests: list[Framed], cuts: list[int]
) -> None:
    sent = b"".join(each.bytes(number) for number, each in enumerate(requests))
    places = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    served = asyncio.run(_served([sent[start:end] for start, end in itertools.pairwise(places)], len(requests)))
    assert [path for path, _, _ in served] == [f"/{number}" for number in range(len(requests))]
    for each, (_, headers, body) in zip(requests, served, strict=True):
        assert body == (b"" if each.early else each.body)
        given_names = [line.partition(":")[0].lower() for line in each.offer]
        expected = [name for name in given_names if name != "upgrade" or len(each.offer) == 1]
        assert headers[1 : 1 + len(expected)] == expected
        assert "x-late" not in headers


async def test_a_body_is_handed_over_once_and_not_held_while_its_connection_is_idle() -> None:
    turns: list[Turn] = []
    bodies: list[bytes | None] = []

    async def app(turn: Turn) -> None:
        turns.append(turn)
        bodies.append(turn.whole())
        await turn.answer(200, [], b"")

    protocol = _connection(app, [])
    protocol.data_received(post(CHAT, BODY))
    await eventually(lambda: bool(bodies))
    assert (bodies, turns[0].whole()) == ([BODY], b"")
    protocol.connection_lost(None)


Served = tuple[str, list[str], bytes]
"""Path, names of the headers, body as far as it was read."""


async def _served(pieces: list[bytes], count: int) -> list[Served]:
    served: list[Served] = []

    async def app(turn: Turn) -> None:
        body = b""
        if (b"x-early", b"True") not in turn.headers:
            while piece := await turn.read():
                body += piece
        served.append((turn.target.path, [name.decode() for name, _ in turn.headers], body))
        await turn.answer(200, [], b"")

    refused: list[str] = []
    protocol = _connection(app, refused)
    for piece in pieces:
        protocol.data_received(piece)
        for _ in range(6):
            await asyncio.sleep(0)  # the application's turn
    for _ in range(20 * count):
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    assert refused == []
    return served


def _connection(app: App, refused: list[str]) -> asyncio.Protocol:
    bounds = Bounds(65536, 10, lambda: "id", refused.append)
    config = uvicorn.Config(
        app, http=bounded(bounds, GatheredWrites()), ws="none", lifespan="off", log_config=None, proxy_headers=False
    )
    config.load()
    # As uvicorn makes them; its type is that of any protocol.
    protocol = config.http_protocol_class(config=config, server_state=ServerState(), app_state={})  # type: ignore[call-arg]
    protocol.connection_made(_Nowhere())
    return protocol


class _Nowhere(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass
