"""A relaxed message waits for others to be written with, but not for ever, and never out of order."""

from pointsman_runtime.connection import Connection
from pointsman_testing import eventually
from pointsman_testing.nats_server import NatsServer


async def test_relaxed_messages_arrive_by_themselves_and_in_order(nats_server: NatsServer) -> None:
    connection = Connection([nats_server.url], name="relaxed")
    received: list[bytes] = []
    connection.subscribe("test.relaxed", lambda _subject, _reply, _headers, payload: received.append(payload))
    connection.open()
    await eventually(lambda: connection.connected)
    connection.publish("test.relaxed", b"alone", relaxed=True)
    await eventually(lambda: received == [b"alone"])
    for payload, relaxed in ((b"1", True), (b"2", False), (b"3", True), (b"4", True)):
        connection.publish("test.relaxed", payload, relaxed=relaxed)
    await eventually(lambda: received == [b"alone", b"1", b"2", b"3", b"4"])
    await connection.close()
