"""Time until lost messages about a KV cache are noticed and replaced. Run: `python -m benchmarks.kv_gaps`.

The agent's speaker and a scheduler's listener on a real NATS server, 50 messages of changes a second. First one message
in twenty is lost on its way; then the agent is cut off for ten seconds; then for so long that it no longer keeps the
missed messages, and a snapshot replaces them. Seen and repaired are times from the loss; after a cut, from its end.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from urllib.parse import urlsplit

import msgspec
from prometheus_client import CollectorRegistry

from pointsman_contracts.kv import WorkerKvEvents, WorkerKvQuery
from pointsman_contracts.subjects import ANY, subject
from pointsman_contracts.worker import WorkerRegistration
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.telling.process import Process
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.kv_listener import KvListener
from pointsman_testing import eventually
from pointsman_testing.nats_server import new_nats_server
from pointsman_worker_agent.kv_speaker import FLUSH_S, KvSpeaker

POOL, WORKER, LIFE = "p", "w", "boot-1"
BLOCK = 16
CAPACITY = 4000
LOST_SHARE = 0.05
SEEN_BAR_MS = 1000.0
LONG_CUT_S = 30.0


class Cut:
    """A TCP relay before the NATS server that can be cut."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "127.0.0.1", address.port or 4222
        self._open: set[asyncio.StreamWriter] = set()
        self.whole = True

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.whole:
            writer.close()
            return
        there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        self._open |= {writer, there_writer}
        await asyncio.gather(self._carry(reader, there_writer), self._carry(there_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def cut(self) -> None:
        self.whole = False
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()


class Engine:
    """Stores and drops blocks at random, and reports them to the agent's speaker."""

    def __init__(self, speaker: KvSpeaker) -> None:
        self._speaker = speaker
        self._random = random.Random(7)
        self._held: list[int] = []
        self._names = count(1)

    def step(self) -> None:
        events: list[list[object]] = []
        if len(self._held) > CAPACITY:
            gone = [self._held.pop(self._random.randrange(len(self._held))) for _ in range(4)]
            events.append(["BlockRemoved", gone])
        names = [next(self._names) for _ in range(4)]
        self._held += names
        tokens = [self._random.randrange(2**17) for _ in range(4 * BLOCK)]
        events.append(["BlockStored", names, None, tokens, BLOCK, None])
        self._speaker.receive_batch(0, msgspec.msgpack.encode([0.0, events, 0]))


class Stand:
    """The test stand and its measurements."""

    def __init__(self, scheduler: Bus, agent: Bus) -> None:
        self.speaker = KvSpeaker(
            agent, pool=POOL, worker=WORKER, block_tokens=BLOCK, boot_id=lambda: LIFE, model=lambda: "m",
            capacity=lambda: None,
        )  # fmt: skip
        self.engine = Engine(self.speaker)
        self.pools = Pools("scheduler-1", 2**28)
        self.listener = KvListener(scheduler, self.pools, lambda _pool: BLOCK, CollectorRegistry())
        self.pools.of(POOL).register(
            WorkerRegistration(
                worker=WORKER, pool=POOL, url="http://w:1", boot_id=LIFE, agent="a1", version="1", registered_ms=0
            ),
            0.0,
        )
        self.lost_share = 0.0
        self.lost = 0
        self.answers = {"range": 0, "snapshot": 0}
        self.since: float | None = None
        """When the loss happened that isn't seen or made good yet."""
        self.seen: list[float] = []
        self.repaired: list[float] = []
        self._seen_one = False
        self._random = random.Random(11)
        scheduler.listen(WorkerKvEvents, self._hear, ANY, ANY)
        agent.link.subscribe(subject(WorkerKvQuery, POOL, WORKER), self._answer)
        self._link = agent.link

    @property
    def precise(self) -> bool:
        worker = self.pools.of(POOL).fleet.find(WORKER)
        return worker is not None and worker.kv_told == LIFE

    def look(self) -> None:
        now = time.perf_counter()
        if self.since is None:
            return
        if not self._seen_one and not self.precise:
            self._seen_one = True
            self.seen.append((now - self.since) * 1000)
        if self._seen_one and self.precise:
            self.repaired.append((now - self.since) * 1000)
            self.since, self._seen_one = None, False

    def agree(self) -> bool:
        pool = self.pools.of(POOL)
        worker = pool.fleet.find(WORKER)
        assert worker is not None
        known = set(pool.index.dump(worker.life, time.monotonic()).hashes.tolist())
        return known == set(self.speaker.blocks.held())

    def _hear(self, event: WorkerKvEvents) -> None:
        if self._random.random() < self.lost_share:
            self.lost += 1
            if event.changes and self.since is None and self.precise:
                self.since = time.perf_counter()
            return
        self.listener.heard(event)
        self.look()

    def _answer(self, _subject: str, reply: str, _headers: bytes, payload: bytes | memoryview) -> None:
        state = self.speaker.answer_query(WorkerKvQuery.decode(payload))
        self.answers["snapshot" if state.snapshot else "range"] += 1
        self._link.publish(reply, state.encode())


async def measure(seconds: float, cut_s: float, long_cut_s: float) -> bool:
    server = new_nats_server()
    await asyncio.to_thread(server.start)
    cut = Cut(server.url)
    relay = await asyncio.start_server(cut.connected, "127.0.0.1", 0)
    through = f"nats://127.0.0.1:{relay.sockets[0].getsockname()[1]}"
    try:
        async with _bus(server.url, "scheduler") as scheduler, _bus(through, "worker-agent") as agent:
            stand = Stand(scheduler, agent)
            tasks = [asyncio.create_task(work) for work in (stand.listener.run(), _live(stand))]
            await eventually(lambda: stand.precise, timeout=20)
            kept = [
                await _losses(stand, seconds),
                await _partition(stand, cut, agent, cut_s),
                await _partition(stand, cut, agent, long_cut_s),
            ]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    finally:
        cut.cut()
        relay.close()
        await asyncio.to_thread(server.close)
    return all(kept)


async def _losses(stand: Stand, seconds: float) -> bool:
    stand.lost_share = LOST_SHARE
    await asyncio.sleep(seconds)
    stand.lost_share = 0.0
    await eventually(lambda: stand.precise and stand.since is None, timeout=20)
    return await _show(stand, f"{LOST_SHARE:.0%} of messages lost for {seconds:g} s ({stand.lost} lost)")


async def _partition(stand: Stand, cut: Cut, agent: Bus, seconds: float) -> bool:
    stand.seen, stand.repaired, stand.answers = [], [], {"range": 0, "snapshot": 0}
    cut.cut()
    await asyncio.sleep(seconds)
    stand.since = ended = time.perf_counter()
    cut.whole = True
    while not agent.connected:  # noqa: ASYNC110 - its own event is not for others
        await asyncio.sleep(0.001)
    away = (time.perf_counter() - ended) * 1000
    await eventually(lambda: stand.since is None, timeout=30)
    return await _show(stand, f"agent cut off for {seconds:g} s; connected again {away:.0f} ms after", away)


async def _show(stand: Stand, what: str, away_ms: float = 0.0) -> bool:
    """Figures; the bar doesn't count how long the agent looked for the server."""
    agrees = await eventually(stand.agree, timeout=20)
    late = max(stand.seen) - away_ms > SEEN_BAR_MS
    print(what)
    for name, found in (("seen after", stand.seen), ("repaired after", stand.repaired)):
        ordered = sorted(found)
        print(
            f"  {name:15} median {ordered[len(ordered) // 2]:6.0f} ms   worst {ordered[-1]:6.0f} ms   of {len(ordered)}"
        )
    print(
        f"  answers: {stand.answers['range']} ranges, {stand.answers['snapshot']} snapshots; the index agrees: {agrees}"
    )
    print(f"  bar: seen within {SEEN_BAR_MS:g} ms   {'MISSED' if late else 'kept'}")
    return bool(agrees) and not late


async def _live(stand: Stand) -> None:
    """The engine and the agent's loop."""
    while True:
        stand.engine.step()
        stand.speaker.publish_changes()
        stand.look()
        await asyncio.sleep(FLUSH_S)


@asynccontextmanager
async def _bus(url: str, service: str) -> AsyncGenerator[Bus]:
    bus = Bus(Connection([url], name=service), Process(service, f"{service}-1"))
    bus.open()
    await bus.wait_connected()
    try:
        yield bus
    finally:
        await bus.close()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--cut", type=float, default=10.0)
    options.add_argument("--long-cut", type=float, default=LONG_CUT_S)
    chosen = options.parse_args()
    return 0 if asyncio.run(measure(chosen.seconds, chosen.cut, chosen.long_cut)) else 1


if __name__ == "__main__":
    sys.exit(main())
