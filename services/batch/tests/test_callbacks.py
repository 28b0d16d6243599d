"""Receivers of callbacks that hang, send without end, redirect, or go away hold nothing up."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from pointsman_batch.adapters import callbacks
from pointsman_batch.adapters.callbacks import Callbacks
from pointsman_batch.domain.signing import signing_headers
from pointsman_contracts.work import WorkResult
from pointsman_core.config.work_queue import WorkQueue

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]
PRIVATE = WorkQueue(private=True)
RESULT = WorkResult(id="a", sequence=7, status=200, body={}, at_ms=1)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(callbacks, "_WAIT_S", 0.001)


@asynccontextmanager
async def receiver(script: Script) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """A receiver's URL, and the heads of the requests that came."""
    heads: list[bytes] = []
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        serving.add(task)
        task.add_done_callback(serving.discard)
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
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def send(url: str, queue: WorkQueue = PRIVATE) -> str:
    sending = Callbacks()
    try:
        async with asyncio.timeout(20):
            return await sending.send_result(url, "nightly", queue, RESULT)
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


def test_a_signature_is_that_of_the_specification() -> None:
    """The example in Standard Webhooks' libraries."""
    found = signing_headers(
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert found["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert (found["webhook-id"], found["webhook-timestamp"]) == ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330")


async def test_each_try_is_signed_with_each_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLD_SECRET", "old")
    monkeypatch.setenv("NEW_SECRET", "whsec_bmV3")  # `new`
    queue = WorkQueue(private=True, secrets=("env:NEW_SECRET", "env:OLD_SECRET"))
    async with receiver(break_off) as (url, heads):
        assert await send(url, queue) == "unreachable"
    assert len(heads) == callbacks.TRIES
    for head in heads:
        sent = dict(line.split(": ", 1) for line in head.decode().lower().splitlines()[1:] if line)
        cased = dict(line.split(": ", 1) for line in head.decode().splitlines()[1:] if line)
        signed = f"nightly/7.{sent['webhook-timestamp']}.".encode() + RESULT.encode()
        assert cased["webhook-signature"].split() == [
            f"v1,{base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()}"
            for secret in (b"new", b"old")
        ]


async def test_no_callback_leaves_unsigned_where_a_secret_is_missing() -> None:
    async with receiver(hang) as (url, heads):
        assert await send(url, WorkQueue(private=True, secrets=("env:POINTSMAN_NO_SUCH_SECRET",))) == "unsigned"
        assert heads == []
