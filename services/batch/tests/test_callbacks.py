"""Receivers of callbacks that hang, send without end, redirect, or go away hold nothing up."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pointsman_batch.adapters import callbacks
from pointsman_batch.adapters.callbacks import Callbacks
from pointsman_contracts.work import WorkResult

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]
RESULT = WorkResult(id="a", sequence=7, status=200, body={}, at_ms=1)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(callbacks, "_WAIT_S", 0.001)


@asynccontextmanager
async def receiver(script: Script) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """A receiver's URL, and the heads of the requests that came."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        try:
            await script(writer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/results", heads
    finally:
        server.close()


async def send(url: str) -> str:
    sending = Callbacks()
    try:
        async with asyncio.timeout(20):
            return await sending.send_result(url, "nightly", RESULT, private=True)
    finally:
        await sending.close()


async def hang(writer: asyncio.StreamWriter) -> None:
    await writer.wait_closed()


async def send_without_end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while not writer.transport.is_closing():
        writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        await writer.drain()


async def redirect(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 307 Elsewhere\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n")
    await writer.drain()


async def break_off(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize(
    ("script", "outcome", "tries"),
    [
        (hang, "unreachable", callbacks.TRIES),
        (send_without_end, "accepted", 1),
        (redirect, "refused", 1),
        (break_off, "unreachable", callbacks.TRIES),
    ],
    ids=["hangs", "sends without end", "redirects", "breaks off"],
)
async def test_a_receiver_that_misbehaves_is_given_up_in_time(script: Script, outcome: str, tries: int) -> None:
    async with receiver(script) as (url, heads):
        assert await send(url) == outcome
        assert len(heads) == tries
        assert {b"idempotency-key: nightly/7" in head.lower() for head in heads} == {True}
