"""A recorder reads each message of a stream once and in order, or reports that it can't."""

import asyncio
import json
from collections.abc import AsyncIterator

import nats
import pytest

from pointsman_recorder.adapters.confirmations import Confirmations, NotWritten
from pointsman_recorder.adapters.pull import BATCH, Missed, Pull, place_of
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.link import Link
from pointsman_testing import NatsServer, eventually
from pointsman_testing.memory_nats import MemoryNats

ASK = "$JS.API.CONSUMER.MSG.NEXT.S.c"


class Server:
    """Gives the messages that a test has it give."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.asked: list[int] = []
        self._to = ""
        link.subscribe(ASK, self._ask)

    def _ask(self, subject: str, reply: str, headers: bytes, payload: bytes) -> None:
        del subject, headers
        self._to = reply
        self.asked.append(json.loads(payload)["batch"])

    def give(self, first: int, last: int, domain: str = "") -> None:
        for number in range(first, last + 1):
            to = f"$JS.ACK.{domain}S.c.1.{1000 + number}.{number}.1700000000000000000.{last - number}"
            self._link.publish(self._to, f"{number}".encode(), to + (".token" if domain else ""))

    def intrude(self) -> None:
        self._link.publish(self._to, b"2", "some.subject")

    def say(self, status: str) -> None:
        self._link.publish(self._to, b"", "", f"NATS/1.0 {status}\r\n\r\n".encode())


@pytest.fixture
async def server_and_pull() -> AsyncIterator[tuple[Server, Pull]]:
    nats = MemoryNats()
    theirs, ours = nats.link(), nats.link()
    for link in (theirs, ours):
        link.open()
    await eventually(lambda: theirs.connected and ours.connected)
    server, pull = Server(theirs), Pull(ours, "_INBOX.feed")
    yield server, pull
    pull.close()
    await ours.close()
    await theirs.close()


@pytest.mark.parametrize("domain", ["", "hub.ACCHASH."], ids=["plain", "in a domain"])
async def test_messages_come_in_order_with_their_places(server_and_pull: tuple[Server, Pull], domain: str) -> None:
    server, pull = server_and_pull
    pull.open("S", "c", 0)
    reading = asyncio.ensure_future(pull.next_messages())
    await eventually(lambda: server.asked == [BATCH])
    server.give(1, 3, domain)
    taken = await reading
    assert [(payload, place_of((subject, reply, headers, payload))) for subject, reply, headers, payload in taken] == [
        (b"1", (1001, 1, 1_700_000_000_000_000_000, 2)),
        (b"2", (1002, 2, 1_700_000_000_000_000_000, 1)),
        (b"3", (1003, 3, 1_700_000_000_000_000_000, 0)),
    ]
    assert taken[-1][1].startswith(f"$JS.ACK.{domain}S.c.1.1003.3.".encode())


async def test_a_full_batch_waits_for_no_more_and_room_is_filled_again(server_and_pull: tuple[Server, Pull]) -> None:
    server, pull = server_and_pull
    pull.open("S", "c", 5)
    reading = asyncio.ensure_future(pull.next_messages())
    await eventually(lambda: server.asked == [BATCH])
    server.give(6, 5 + BATCH)
    assert len(await reading) == BATCH
    reading = asyncio.ensure_future(pull.next_messages())
    await eventually(lambda: server.asked == [BATCH, BATCH])
    server.give(6 + BATCH, 6 + BATCH)
    assert [place_of(each).sequence for each in await reading] == [1006 + BATCH]


async def test_messages_that_are_expected_wait_for_no_others(
    server_and_pull: tuple[Server, Pull], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman_recorder.adapters.pull.GATHER_S", 60.0)
    server, pull = server_and_pull
    pull.open("S", "c", 0)
    for first, last in ((1, 3), (4, 4)):
        pull.expect_messages(last - first + 1)
        reading = asyncio.ensure_future(pull.next_messages())
        await eventually(lambda: server.asked)
        server.give(first, last)
        async with asyncio.timeout(30):
            assert len(await reading) == last - first + 1


async def test_a_message_of_another_sender_is_reported(server_and_pull: tuple[Server, Pull]) -> None:
    server, pull = server_and_pull
    pull.open("S", "c", 0)
    reading = asyncio.ensure_future(pull.next_messages())
    await eventually(lambda: server.asked)
    server.give(1, 1)
    server.intrude()
    with pytest.raises(Missed, match="another sender"):
        await reading


async def test_a_message_that_was_lost_on_its_way_is_reported(server_and_pull: tuple[Server, Pull]) -> None:
    server, pull = server_and_pull
    pull.open("S", "c", 0)
    reading = asyncio.ensure_future(pull.next_messages())
    await eventually(lambda: server.asked)
    server.give(1, 2)
    server.give(4, 5)
    with pytest.raises(Missed, match="up to 5, not all"):
        await reading


async def test_a_consumer_that_is_gone_is_reported_and_one_opened_anew_reads_on(
    server_and_pull: tuple[Server, Pull],
) -> None:
    server, pull = server_and_pull
    pull.open("S", "c", 0)
    reading = asyncio.ensure_future(pull.next_messages())
    await eventually(lambda: server.asked)
    server.say("409 Consumer Deleted")
    with pytest.raises(Missed, match="409"):
        await reading
    pull.close()
    pull.open("S", "c", 0)
    reading = asyncio.ensure_future(pull.next_messages())
    await eventually(lambda: len(server.asked) == 2)
    server.give(1, 1)
    assert len(await reading) == 1


async def test_a_request_that_ended_or_was_forgotten_is_made_again(server_and_pull: tuple[Server, Pull]) -> None:
    server, pull = server_and_pull
    pull.open("S", "c", 0)
    for number in range(2):
        reading = asyncio.ensure_future(pull.next_messages())
        await eventually(lambda: len(server.asked) == number + 1)  # noqa: B023 - awaited in the same turn
        if number:
            pull.renew_request()
        else:
            server.say("408 Request Timeout")
        assert await reading == []
    reading = asyncio.ensure_future(pull.next_messages())
    await eventually(lambda: server.asked == [BATCH] * 3)
    server.give(1, 1)
    assert len(await reading) == 1


async def test_a_server_that_says_nothing_is_not_a_stream_without_messages(
    server_and_pull: tuple[Server, Pull], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server with the consumer may die while the connection is to another one: then the request has no answer."""
    monkeypatch.setattr("pointsman_recorder.adapters.pull.SILENT_S", 0.2)
    server, pull = server_and_pull
    pull.open("S", "c", 0)
    reading = asyncio.ensure_future(pull.next_messages())
    await eventually(lambda: server.asked)
    with pytest.raises(Missed, match="silent"):
        await reading


async def test_a_server_that_lives_has_all_the_time_until_its_next_message(
    server_and_pull: tuple[Server, Pull], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman_recorder.adapters.pull.SILENT_S", 20.0)
    server, pull = server_and_pull
    pull.open("S", "c", 0)
    reading = asyncio.ensure_future(pull.next_messages())
    await eventually(lambda: server.asked)
    for _ in range(3):
        server.say("100 Idle Heartbeat")
        await asyncio.sleep(0)
    assert not reading.done()
    server.give(1, 1)
    assert len(await reading) == 1


async def test_messages_that_went_to_a_lost_connection_are_missed_without_a_later_one(nats_server: NatsServer) -> None:
    """The ledger gets no later message while the recorder waits until it has read the last one there."""
    client = await nats.connect(nats_server.url)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    js = client.jetstream()  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    await js.add_stream(name="MISSED", subjects=["missed"])  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    consumer = await js.pull_subscribe("missed", "c", "MISSED")  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    connection = Connection([nats_server.url], name="recorder")
    connection.open()
    await eventually(lambda: connection.connected)
    pull = Pull(connection, "missed-by-pull")
    pull.open("MISSED", "c", 0)
    for _ in range(2):
        await js.publish("missed", b"x")
    await consumer.fetch(2)  # what the server sent to the connection that was
    with pytest.raises(Missed, match="up to 2, not all"):
        async with asyncio.timeout(60):
            await pull.next_messages()
    pull.close()
    await connection.close()
    await js.delete_stream("MISSED")
    await client.close()


@pytest.fixture
async def stream_and_link() -> AsyncIterator[tuple[Link, Link]]:
    nats = MemoryNats()
    theirs, ours = nats.link(), nats.link()
    for link in (theirs, ours):
        link.open()
    await eventually(lambda: theirs.connected and ours.connected)
    yield theirs, ours
    await ours.close()
    await theirs.close()


async def test_records_are_written_once_each_is_confirmed(stream_and_link: tuple[Link, Link]) -> None:
    stream, link = stream_and_link
    waiting = Confirmations(link, "_INBOX.r", 60.0)
    for _ in range(2):
        to = waiting.begin_batch(2)
        written = asyncio.ensure_future(waiting.wait_for_all())
        stream.publish(to, b'{"stream":"S","seq":1}')
        await asyncio.sleep(0)
        assert not written.done()
        stream.publish(to, b'{"stream":"S","seq":2,"duplicate":true}')
        await written


@pytest.mark.parametrize("answer", [b"", b'{"error":{"code":503,"description":"no room"},"stream":"S","seq":0}'])
async def test_a_record_that_the_stream_refuses_is_reported(stream_and_link: tuple[Link, Link], answer: bytes) -> None:
    stream, link = stream_and_link
    waiting = Confirmations(link, "_INBOX.r", 60.0)
    stream.publish(waiting.begin_batch(2), answer)
    with pytest.raises(NotWritten, match="refused"):
        await waiting.wait_for_all()


async def test_a_late_confirmation_of_an_earlier_batch_confirms_nothing(stream_and_link: tuple[Link, Link]) -> None:
    stream, link = stream_and_link
    waiting = Confirmations(link, "_INBOX.r", 0.01)
    for _ in range(2):
        earlier = waiting.begin_batch(1)
        with pytest.raises(NotWritten, match="1 messages weren't confirmed"):
            await waiting.wait_for_all()
        waiting.begin_batch(1)
        stream.publish(earlier, b'{"stream":"S","seq":1}')
        with pytest.raises(NotWritten, match="1 messages weren't confirmed"):
            await waiting.wait_for_all()
