"""Hearing a publisher of KV events that may be late, lose batches, or begin anew."""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator

import pytest
import zmq
import zmq.asyncio

from pointsman_testing import eventually
from pointsman_worker_agent.adapters.kv_subscriber import KvSubscriber
from pointsman_worker_agent.domain.kv_endpoints import KvEndpoints

END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """Publishes as vLLM does: PUB with numbered batches, ROUTER that replays the last ones."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        *,
        buffer: int = 100,
        live: str = "",
        replay: str = "",
        names_topic: bool = True,
    ) -> None:
        self.number = 0
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer)
        self.asked: list[int] = []
        self.before_number = [b"kv@w"] if names_topic else []
        """The frame before the number of a batch that is sent again: recent vLLM names the topic there."""
        self.pub = context.socket(zmq.XPUB)  # as PUB, and tells of subscribers
        self.router = context.socket(zmq.ROUTER)
        self.live = self.bind(self.pub, live)
        self.replay = self.bind(self.router, replay)
        self.task = asyncio.create_task(self.serve())

    def bind(self, endpoint_of: zmq.asyncio.Socket, endpoint: str) -> str:
        endpoint_of.setsockopt(zmq.LINGER, 0)
        if endpoint:
            endpoint_of.bind(endpoint)
            return endpoint
        return f"tcp://127.0.0.1:{endpoint_of.bind_to_random_port('tcp://127.0.0.1')}"

    async def subscribed(self) -> None:
        """Wait for a subscriber."""
        async with asyncio.timeout(30):
            while (await self.pub.recv())[:1] != b"\x01":
                pass

    async def publish(self, payload: bytes, *, lose: bool = False) -> None:
        if not lose:
            await self.pub.send_multipart([b"kv@w", self.number.to_bytes(8, "big"), payload])  # pyright: ignore[reportUnknownMemberType]
        self.buffer.append((self.number, payload))
        self.number += 1

    async def serve(self) -> None:
        while True:
            client, empty, start = await self.router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            for number, payload in list(self.buffer):
                if number >= first:
                    frames = [client, empty, *self.before_number, number.to_bytes(8, "big"), payload]
                    await self.router.send_multipart(frames)  # pyright: ignore[reportUnknownMemberType]
            await self.router.send_multipart([client, empty, *self.before_number, END, b""])  # pyright: ignore[reportUnknownMemberType]

    def close(self) -> None:
        self.task.cancel()
        self.pub.close(linger=0)
        self.router.close(linger=0)


class Heard:
    """The subscriber's results."""

    def __init__(self, context: zmq.asyncio.Context, publisher: Publisher, *, replay: bool = True) -> None:
        self.told: list[bytes | str] = []
        self.breaks = 0
        endpoints = KvEndpoints(publisher.live, publisher.replay if replay else None)
        self.subscriber = KvSubscriber(
            context,
            endpoints,
            take=self.told.append,
            lost=lambda: self.told.append("lost"),
            reset=lambda: self.told.append("reset"),
            broke=self._count_break,
        )
        self.task = asyncio.create_task(self.subscriber.run())

    def _count_break(self) -> None:
        self.breaks += 1

    async def wait(self, *expected: bytes | str) -> None:
        try:
            await eventually(lambda: self.told[-len(expected) :] == list(expected))
        finally:
            assert self.told[-len(expected) :] == list(expected)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def _is_free(endpoint: str) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(endpoint.rpartition(":")[2])))
        except OSError:
            return False
        return True


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


async def test_batches_are_taken_in_order(context: zmq.asyncio.Context) -> None:
    publisher = Publisher(context)
    heard = Heard(context, publisher)
    await publisher.subscribed()
    for payload in (b"a", b"b", b"c"):
        await publisher.publish(payload)
    await heard.wait(b"a", b"b", b"c")
    assert (heard.subscriber.heard, heard.subscriber.sequence.missed, heard.subscriber.connected) == (3, 0, True)
    await heard.close()
    publisher.close()


async def test_a_late_subscriber_gets_the_earlier_events(context: zmq.asyncio.Context) -> None:
    publisher = Publisher(context)
    await publisher.publish(b"a")
    await publisher.publish(b"b")
    heard = Heard(context, publisher)
    await publisher.subscribed()
    await heard.wait(b"a", b"b")
    await publisher.publish(b"c")
    await heard.wait(b"a", b"b", b"c")
    assert publisher.asked == [0]
    await heard.close()
    publisher.close()


@pytest.mark.parametrize("names_topic", [True, False])
async def test_a_gap_is_asked_for_and_nothing_is_taken_twice(context: zmq.asyncio.Context, names_topic: bool) -> None:
    publisher = Publisher(context, names_topic=names_topic)
    heard = Heard(context, publisher)
    await publisher.subscribed()
    await publisher.publish(b"a")
    await heard.wait(b"a")
    await publisher.publish(b"b", lose=True)
    await publisher.publish(b"c", lose=True)
    await publisher.publish(b"d")
    await publisher.publish(b"e")
    await heard.wait(b"a", b"b", b"c", b"d", b"e")
    assert publisher.asked[-1] == 1
    assert heard.subscriber.sequence.missed == 0
    await heard.close()
    publisher.close()


async def test_events_that_the_engine_no_longer_keeps_are_lost_and_counted(context: zmq.asyncio.Context) -> None:
    publisher = Publisher(context, buffer=2)
    heard = Heard(context, publisher)
    await publisher.subscribed()
    await publisher.publish(b"a")
    await heard.wait(b"a")
    for payload in (b"b", b"c", b"d"):
        await publisher.publish(payload, lose=True)
    await publisher.publish(b"e")
    await heard.wait(b"a", "lost", b"d", b"e")
    assert heard.subscriber.sequence.missed == 2
    await heard.close()
    publisher.close()


async def test_without_a_replay_endpoint_a_gap_is_a_loss(context: zmq.asyncio.Context) -> None:
    publisher = Publisher(context)
    heard = Heard(context, publisher, replay=False)
    await publisher.subscribed()
    await publisher.publish(b"a")
    await publisher.publish(b"b", lose=True)
    await publisher.publish(b"c")
    await heard.wait(b"a", "lost", b"c")
    assert publisher.asked == []
    await heard.close()
    publisher.close()


async def test_a_publisher_that_only_replays_is_missing(
    context: zmq.asyncio.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def note(event: str, **_: object) -> None:
        said.append(event)

    monkeypatch.setattr("pointsman_worker_agent.adapters.kv_subscriber._log.error", note)
    monkeypatch.setattr("pointsman_worker_agent.adapters.kv_subscriber.MISSING_AFTER_S", 0.3)
    publisher = Publisher(context)
    publisher.pub.close(linger=0)
    await eventually(lambda: _is_free(publisher.live))
    publisher.buffer.append((0, b"a"))
    heard = Heard(context, publisher)
    await heard.wait(b"a")
    await eventually(lambda: said == ["kv_publisher_missing"])
    assert not heard.subscriber.connected
    await heard.close()
    publisher.close()


async def test_an_engine_that_begins_anew_voids_its_earlier_events(context: zmq.asyncio.Context) -> None:
    publisher = Publisher(context)
    heard = Heard(context, publisher)
    await publisher.subscribed()
    await publisher.publish(b"a")
    await publisher.publish(b"b")
    await heard.wait(b"a", b"b")
    publisher.number = 0
    publisher.buffer.clear()
    await publisher.publish(b"new a", lose=True)
    await publisher.publish(b"new b")
    await heard.wait(b"a", b"b", "reset", b"new a", b"new b")
    await heard.close()
    publisher.close()


async def test_a_publisher_that_comes_back_at_its_address_is_heard_again(context: zmq.asyncio.Context) -> None:
    publisher = Publisher(context)
    heard = Heard(context, publisher)
    await publisher.subscribed()
    await publisher.publish(b"a")
    await heard.wait(b"a")
    publisher.close()
    await eventually(lambda: _is_free(publisher.live) and _is_free(publisher.replay))  # zmq closes in its own time
    again = Publisher(context, live=publisher.live, replay=publisher.replay)
    await again.subscribed()
    await again.publish(b"new a")
    await heard.wait(b"a", "reset", b"new a")
    assert heard.breaks >= 1
    await heard.close()
    again.close()


async def test_a_new_life_of_which_no_batch_came_is_asked_for_from_its_beginning(context: zmq.asyncio.Context) -> None:
    publisher = Publisher(context)
    heard = Heard(context, publisher)
    await publisher.subscribed()
    await publisher.publish(b"a")
    await heard.wait(b"a")
    publisher.close()
    await eventually(lambda: _is_free(publisher.live) and _is_free(publisher.replay))
    await eventually(lambda: heard.breaks)
    heard.subscriber.begin_life()
    again = Publisher(context, live=publisher.live, replay=publisher.replay)
    await again.subscribed()
    await again.publish(b"new a", lose=True)
    await again.publish(b"new b", lose=True)
    await again.publish(b"new c")  # its number is above the last one of the former life
    await heard.wait(b"a", b"new a", b"new b", b"new c")
    await heard.close()
    again.close()


def test_each_rank_has_the_port_after_the_one_before() -> None:
    second = KvEndpoints("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5757", "kv").of_rank(2)
    assert second == KvEndpoints("tcp://127.0.0.1:5559", "tcp://127.0.0.1:5759", "kv")
    assert KvEndpoints("ipc:///tmp/kv").of_rank(0) == KvEndpoints("ipc:///tmp/kv")
