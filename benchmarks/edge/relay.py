"""The least that a proxy does, around one of two clients: `python -m benchmarks.edge.relay own|aiohttp URL PORT_FILE`.

Everything but the client is the same, so the difference in CPU time is the client's.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import aiohttp
import uvloop

from pointsman_edge.deciding.policy import EngineLimits
from pointsman_edge.taking_in.request_headers import RequestIds
from pointsman_frontend.adapters.connection_bounds import Bounds
from pointsman_frontend.adapters.engine_client import Call, EngineClient, origin_of
from pointsman_frontend.adapters.gathered_writes import GatheredWrites
from pointsman_frontend.adapters.http_connection import bounded
from pointsman_frontend.adapters.http_turn import Headers, Turn, id_headers
from pointsman_frontend.domain.heads import ResponseHeaderRules, request_head
from pointsman_hosting.http_server import HttpServer

LIMITS: Final = EngineLimits(1.0, 300.0, 60.0)
JSON: Final = [(b"content-type", b"application/json")]

Forward = Callable[[Turn, str, bytes], Awaitable[None]]


class Relay:
    """An application of the frontend's connections that sends every POST on to one engine."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._ids = RequestIds()

    async def __call__(self, turn: Turn) -> None:
        """Serve one request."""
        body = turn.whole()
        if body is None:
            pieces: list[bytes] = []
            while piece := await turn.read():
                pieces.append(piece)
            body = b"".join(pieces)
        turn.ids = id_headers(self._ids.make_id())
        await self._forward(turn, turn.target.path, body)


def own(url: str, writes: GatheredWrites) -> Forward:
    """Through the edge's client."""
    engines, rules, ids = EngineClient(writes, idle_s=60.0, idle_connections=256), ResponseHeaderRules(), RequestIds()
    origin = origin_of(url)

    async def forward(turn: Turn, path: str, body: bytes) -> None:
        head = request_head(
            method=b"POST",
            target=path.encode(),
            host=origin.host_header,
            length=len(body),
            headers=JSON,
            request_id=ids.make_id(),
            traceparent=None,
        )
        call = Call("r", "w", url, head, body, None, movable=False)
        engine = await engines.send(call, LIMITS)
        try:
            await turn.start(engine.status, rules.pass_on(engine.headers)[0])
            while data := await engine.read():
                await turn.write(data)
            await turn.end()
        finally:
            engines.release_connection(engine)

    return forward


def with_aiohttp(url: str) -> Forward:
    """Through aiohttp, with everything turned off that a proxy doesn't need."""
    rules, ids = ResponseHeaderRules(), RequestIds()
    session = aiohttp.ClientSession(
        auto_decompress=False,
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("user-agent", "accept", "accept-encoding"),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=1.0, sock_read=300.0),
    )

    async def forward(turn: Turn, path: str, body: bytes) -> None:
        headers = {"content-type": "application/json", "x-request-id": ids.make_id()}
        async with session.post(url + path, data=body, headers=headers) as answer:
            raw: Headers = [(name.lower(), value) for name, value in answer.raw_headers]
            await turn.start(answer.status, rules.pass_on(raw)[0])
            async for data in answer.content.iter_any():
                await turn.write(data)
            await turn.end()

    return forward


async def _serve(kind: str, url: str, announce: Callable[[str], object]) -> None:
    writes = GatheredWrites()
    app = Relay(own(url, writes) if kind == "own" else with_aiohttp(url))
    bounds = Bounds(65536, 60.0, RequestIds().make_id, lambda _reason: None)
    server = HttpServer(app, "127.0.0.1", 0, protocol=bounded(bounds, writes))
    await server.start()
    announce(server.url.rpartition(":")[2])
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]).write_text))
