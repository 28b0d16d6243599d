"""One process reads many engines."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest

from pointsman_engines.client import LARGEST, EngineClient, PageUnread, engine_session
from pointsman_testing import eventually
from pointsman_testing.fake_engine import FakeEngine

HUNG = 110


@asynccontextmanager
async def hung_engine(open_connections: list[int]) -> AsyncGenerator[str]:
    """Takes connections and never answers."""
    ending = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        open_connections[0] += 1
        await ending.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0, backlog=HUNG)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        ending.set()
        server.close()
        await server.wait_closed()


async def test_an_answer_without_an_end_is_no_answer() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"#" * 2**20)
                await writer.drain()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, engine_session() as session:
        with pytest.raises(PageUnread, match=f"/metrics answers more than {LARGEST} bytes"):
            await EngineClient(url, session=session).metrics(timeout=60)


async def test_engines_that_hang_leave_the_others_their_connections() -> None:
    connections = [0]
    async with hung_engine(connections) as hung, FakeEngine() as engine, engine_session() as session:
        reading = [asyncio.ensure_future(EngineClient(hung, session=session).metrics(timeout=60)) for _ in range(HUNG)]
        await eventually(lambda: connections[0] == HUNG)
        assert await EngineClient(engine.url, session=session).metrics(timeout=60)
        for each in reading:
            each.cancel()
        await asyncio.wait(reading)
