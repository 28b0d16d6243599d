"""Relaxed messages wait for each other, but not for ever; what isn't relaxed overtakes them."""

import asyncio
from collections.abc import Callable

import pytest

from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.outbox import HASTY_S, RELAXED_BYTES, RELAXED_S
from pointsman_testing import eventually
from pointsman_testing.nats_server import NatsServer


async def test_relaxed_messages_arrive_by_themselves_and_in_order(nats_server: NatsServer) -> None:
    connection = Connection([nats_server.url], name="relaxed", echo=True)
    received: list[bytes] = []
    connection.subscribe("test.relaxed", lambda _subject, _reply, _headers, payload: received.append(payload))
    connection.open()
    await eventually(lambda: connection.connected)
    connection.publish("test.relaxed", b"alone", relaxed=True)
    await eventually(lambda: received == [b"alone"])
    for payload, relaxed in ((b"1", True), (b"2", False), (b"3", True), (b"4", False)):
        connection.publish("test.relaxed", payload, relaxed=relaxed)
    await eventually(lambda: received == [b"alone", b"2", b"4", b"1", b"3"])
    await connection.close()


async def test_hastened_relaxed_messages_wait_for_a_fifth_of_the_time_where_that_is_allowed(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection([nats_server.url], name="hasty", echo=True)
    connection.open()
    await eventually(lambda: connection.connected)
    loop = asyncio.get_running_loop()
    call_later = loop.call_later
    waits: list[float] = []

    def noted(delay: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        if delay in (RELAXED_S, HASTY_S):
            waits.append(delay)
        return call_later(delay, callback, *args)

    monkeypatch.setattr(loop, "call_later", noted)
    connection.hasten()  # nothing waits
    connection.publish("test.hasty", b"1", relaxed=True)
    connection.hasten()
    assert waits == [RELAXED_S]
    await connection.flush()
    connection.allow_haste(True)
    for payload in (b"2", b"3"):
        connection.publish("test.hasty", payload, relaxed=True)
        connection.hasten()
    assert waits == [RELAXED_S, RELAXED_S, HASTY_S]
    monkeypatch.undo()
    await connection.close()


async def test_a_flush_writes_what_is_relaxed_too(nats_server: NatsServer) -> None:
    connection = Connection([nats_server.url], name="relaxed", echo=True)
    received: list[bytes] = []
    connection.subscribe("test.flushed", lambda _subject, _reply, _headers, payload: received.append(payload))
    connection.open()
    await eventually(lambda: connection.connected)
    connection.publish("test.flushed", b"relaxed", relaxed=True)
    await connection.flush()
    # The server has it; what comes back was written before its answer to the flush, and is read with it.
    await asyncio.sleep(0)
    assert received == [b"relaxed"]
    await connection.close()


async def test_more_relaxed_messages_than_may_wait_arrive_all_the_same(nats_server: NatsServer) -> None:
    connection = Connection([nats_server.url], name="relaxed", echo=True)
    received: list[int] = []
    connection.subscribe("test.many", lambda _subject, _reply, _headers, payload: received.append(len(payload)))
    connection.open()
    await eventually(lambda: connection.connected)
    for _ in range(8):
        connection.publish("test.many", bytes(RELAXED_BYTES // 4), relaxed=True)
    await eventually(lambda: len(received) == 8)
    await connection.close()
