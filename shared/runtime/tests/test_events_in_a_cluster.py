"""Each event is in the stream, whatever befalls the servers of a cluster; subscribers have it at once and once."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest

from pointsman_contracts.response import ResponseStarted
from pointsman_contracts.subjects import EVENT_SUBJECTS, OWED_SUBJECTS
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.event_keeper import EventKeeper
from pointsman_runtime.bus.held_events import HeldEvents
from pointsman_runtime.telling.process import Process
from pointsman_testing import eventually
from pointsman_testing.builders import unix_ms
from pointsman_testing.nats_cluster import ClusterClient, NatsCluster

pytestmark = [pytest.mark.requirement("EVENTS-1"), pytest.mark.timeout(300)]
STREAM = "PM_EVENTS"
EVERY_S = 0.01
SETTLED_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    made = NatsCluster()
    made.start()
    yield made
    made.close()


class Publisher:
    """Publishes an event every few milliseconds, on a connection to any server."""

    def __init__(self, cluster: NatsCluster, name: str) -> None:
        self.name = name
        self.held = HeldEvents(100_000)
        self.connection = Connection(cluster.urls, name=name)
        process = Process("frontend", name)
        self.connection.keep_events(EventKeeper(self.held, f"{process.inbox}.kept"))
        self.bus = Bus(self.connection, process)
        self.published = 0
        self._task: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        self.bus.open()
        await self.bus.wait_connected()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._publish())

    async def _publish(self) -> None:
        while True:
            self.published += 1
            self.bus.publish(
                ResponseStarted(
                    request_id=f"{self.name}-{self.published}", source=self.name, sequence=self.published,
                    at_ms=unix_ms(), pool="p", worker="w", ttft_ms=1.0,
                ),
                "p",
            )  # fmt: skip
            await asyncio.sleep(EVERY_S)

    async def more(self, count: int) -> None:
        """Wait until so many more are published."""
        target = self.published + count
        await eventually(lambda: self.published >= target, timeout=SETTLED_S)

    async def stop(self) -> bool:
        """Whether every event was confirmed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        return await self.connection.settle(SETTLED_S)


class Scene:
    """Two publishers and a subscriber."""

    def __init__(self, cluster: NatsCluster, client: ClusterClient) -> None:
        self.cluster = cluster
        self.client = client
        self.publishers = [Publisher(cluster, f"edge-{number}") for number in (1, 2)]
        self.subscriber = Bus(Connection(cluster.urls, name="subscriber"), Process("scheduler", "subscriber"))
        self.heard: Counter[str] = Counter()
        """How often the subscriber had each event, by request."""
        self.subscriber.listen(ResponseStarted, lambda event: self.heard.update([event.request_id]), "p")

    async def wait_until_heard(self) -> None:
        """Wait until the servers of both publishers have learnt of the subscription from the subscriber's."""
        reached: set[bytes] = set()
        self.subscriber.link.subscribe("probe", lambda _subject, _reply, _headers, payload: reached.add(bytes(payload)))

        def probed() -> bool:
            for each in self.publishers:
                each.bus.link.publish("probe", each.name.encode())
            return len(reached) == len(self.publishers)

        await eventually(probed)

    async def ids(self) -> Counter[str]:
        """How often each event is in the stream."""
        stored = await self.client.messages(STREAM, EVENT_SUBJECTS, headers_only=True)
        return Counter((message.headers or {})["Nats-Msg-Id"] for message in stored)

    @property
    def published(self) -> set[str]:
        return {
            f"pm.evt.response.started.v1.p:{each.name}:{number}"
            for each in self.publishers
            for number in range(1, each.published + 1)
        }


@asynccontextmanager
async def scene(cluster: NatsCluster) -> AsyncGenerator[Scene]:
    async with cluster.client() as client:
        await client.make_stream(
            STREAM, subjects=[EVENT_SUBJECTS, OWED_SUBJECTS], num_replicas=3, storage="file",
            subject_transform={"src": OWED_SUBJECTS, "dest": EVENT_SUBJECTS}, duplicate_window=60 * 10**9,
        )  # fmt: skip
        made = Scene(cluster, client)
        try:
            made.subscriber.open()
            await made.subscriber.wait_connected()
            for publisher in made.publishers:
                await publisher.connect()
            await made.wait_until_heard()
            for publisher in made.publishers:
                publisher.start()
            await made.publishers[0].more(100)
            yield made
            for publisher in made.publishers:
                assert await publisher.stop()
            stored = await made.ids()
        finally:
            for publisher in made.publishers:
                await publisher.bus.close()
            await made.subscriber.close()
            for server in cluster.servers:
                server.resume()
            await client.api(f"STREAM.DELETE.{STREAM}")
        assert set(stored) == made.published
        assert {each: count for each, count in stored.items() if count > 1} == {}
        assert set(made.heard.values()) == {1}
        for publisher in made.publishers:
            assert set(publisher.held.lost.values()) == {0}


async def test_a_leader_that_steps_down_misses_no_event(cluster: NatsCluster) -> None:
    async with scene(cluster) as running:
        for _ in range(5):
            before = await running.client.leader(STREAM)
            await running.client.step_down(STREAM)

            async def moved(before: int = before) -> bool:
                return await running.client.leader(STREAM) != before

            await eventually(moved)
            await running.publishers[0].more(50)
    # Where no connection is lost, a subscriber has them all, while the stream has none.
    assert len(running.heard) == len(running.published)


async def test_a_killed_leader_misses_no_event(cluster: NatsCluster) -> None:
    async with scene(cluster) as running:
        leader = cluster.servers[await running.client.leader(STREAM)]
        await asyncio.to_thread(leader.kill)
        await running.publishers[0].more(100)
        await running.client.leader(STREAM)
        await asyncio.to_thread(leader.start)
        await running.client.in_step(STREAM)


async def test_a_leader_that_stands_still_misses_no_event(cluster: NatsCluster) -> None:
    async with scene(cluster) as running:
        stopped = await running.client.leader(STREAM)
        cluster.servers[stopped].pause()

        async def another() -> bool:
            return await running.client.leader(STREAM) != stopped

        await eventually(another, timeout=SETTLED_S)
        await running.publishers[0].more(100)
        cluster.servers[stopped].resume()
        await running.client.in_step(STREAM)


@pytest.mark.parametrize("count", [2, 3])
async def test_without_a_quorum_events_wait(cluster: NatsCluster, count: int) -> None:
    async with scene(cluster) as running:
        for server in cluster.servers[:count]:
            await asyncio.to_thread(server.kill)
        await running.publishers[0].more(300)
        for server in cluster.servers[:count]:
            await asyncio.to_thread(server.start)
        await running.client.in_step(STREAM)


async def test_a_server_that_hands_over_its_clients_misses_no_event(cluster: NatsCluster) -> None:
    async with scene(cluster) as running:
        leader = cluster.servers[await running.client.leader(STREAM)]
        await asyncio.to_thread(leader.lame_duck)
        await asyncio.to_thread(leader.start)
        await running.client.in_step(STREAM)
