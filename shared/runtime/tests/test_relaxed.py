"""Relaxed messages wait for each other, but not for ever; what isn't relaxed overtakes them."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.errors import BusDisconnected, PayloadTooLarge
from pointsman_runtime.bus.outbox import HASTY_S, MOST_RELAXED, RELAXED_S
from pointsman_testing import eventually
from pointsman_testing.nats_server import NatsServer

HEADERS = "NATS/1.0\r\na: b\r\n\r\n"


@pytest.fixture
async def connection(nats_server: NatsServer) -> AsyncIterator[Connection]:
    """It hears its own messages too."""
    made = Connection([nats_server.url], name="relaxed", echo=True)
    made.open()
    await eventually(lambda: made.connected)
    yield made
    await made.close()


async def test_relaxed_messages_arrive_by_themselves_and_in_order(connection: Connection) -> None:
    received: list[bytes] = []
    connection.subscribe("test.relaxed", lambda _subject, _reply, _headers, payload: received.append(payload))
    connection.publish_relaxed("test.relaxed", HEADERS, b"alone")
    await eventually(lambda: received == [b"alone"])
    connection.publish_relaxed("test.relaxed", HEADERS, b"1")
    connection.publish("test.relaxed", b"2")
    connection.publish_relaxed("test.relaxed", HEADERS, b"3")
    connection.publish("test.relaxed", b"4")
    await eventually(lambda: received == [b"alone", b"2", b"4", b"1", b"3"])


async def test_relaxed_messages_can_leave_at_once(connection: Connection) -> None:
    received: list[bytes] = []
    connection.subscribe("test.now", lambda _s, _r, _h, payload: received.append(payload))
    connection.publish_relaxed("test.now", HEADERS, b"1")
    done: list[str] = []
    connection.await_event(HEADERS, lambda: done.append("done"))
    # Nothing keeps events here, so that nothing is known of them.
    assert done == ["done"]
    assert connection._outbox._later is None  # pyright: ignore[reportPrivateUsage]
    await eventually(lambda: received == [b"1"])


async def test_hastened_relaxed_messages_wait_for_a_fifth_of_the_time_where_that_is_allowed(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    call_later = loop.call_later
    waits: list[float] = []

    def noted(delay: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        if delay in (RELAXED_S, HASTY_S):
            waits.append(delay)
        return call_later(delay, callback, *args)

    monkeypatch.setattr(loop, "call_later", noted)
    connection.hasten()  # nothing waits
    connection.publish_relaxed("test.hasty", HEADERS, b"1")
    connection.hasten()
    assert waits == [RELAXED_S]
    await connection.flush()
    connection.allow_haste(True)
    for payload in (b"2", b"3"):
        connection.publish_relaxed("test.hasty", HEADERS, payload)
        connection.hasten()
    assert waits == [RELAXED_S, RELAXED_S, HASTY_S]
    monkeypatch.undo()


async def test_a_flush_writes_what_is_relaxed_too(connection: Connection) -> None:
    received: list[bytes] = []
    connection.subscribe("test.flushed", lambda _subject, _reply, _headers, payload: received.append(payload))
    connection.publish_relaxed("test.flushed", HEADERS, b"relaxed")
    await connection.flush()
    # The server has it; what comes back was written before its answer to the flush, and is read with it.
    await asyncio.sleep(0)
    assert received == [b"relaxed"]


async def test_more_relaxed_messages_than_may_wait_arrive_all_the_same(connection: Connection) -> None:
    received: list[int] = []
    connection.subscribe("test.many", lambda _subject, _reply, _headers, payload: received.append(int(payload)))
    numbers = range(2 * MOST_RELAXED + 1)
    for number in numbers:
        connection.publish_relaxed("test.many", HEADERS, b"%d" % number)
    await eventually(lambda: received == list(numbers))


async def test_messages_at_once_arrive_with_their_headers_in_order(connection: Connection) -> None:
    received: list[tuple[str, str, bytes]] = []
    connection.subscribe(
        "test.all.*", lambda subject, _reply, headers, payload: received.append((subject, headers.decode(), payload))
    )
    messages = [
        ("test.all.1", HEADERS, b""),
        ("test.all.2", HEADERS.replace("a", "\u00e4"), b"2\r\n"),
        ("test.all.3", HEADERS, b"3"),
    ]
    connection.publish_all(messages)
    await eventually(lambda: received == messages)


async def test_messages_that_cant_be_sent_are_refused_at_once(nats_server: NatsServer) -> None:
    connection = Connection([nats_server.url], name="refused")
    with pytest.raises(BusDisconnected):
        connection.publish_relaxed("test.refused", HEADERS, b"")
    with pytest.raises(BusDisconnected):
        connection.publish_all([("test.refused", HEADERS, b"")])
    connection.open()
    await eventually(lambda: connection.connected)
    large = bytes(connection.max_payload)
    with pytest.raises(PayloadTooLarge):
        connection.publish_relaxed("test.refused", HEADERS, large)
    with pytest.raises(PayloadTooLarge):
        connection.publish_all([("test.refused", HEADERS, b""), ("test.refused", HEADERS, large)])
    await connection.close()
