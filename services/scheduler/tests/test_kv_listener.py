"""The KV events of agents reach the prefix index of their pool."""

import asyncio
import struct
from collections.abc import AsyncIterator

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.kv import KvChange, WorkerKvEvents, WorkerKvQuery, WorkerKvState
from pointsman_contracts.message import Blob
from pointsman_contracts.subjects import ANY, subject
from pointsman_contracts.worker import WorkerRegistration
from pointsman_journey.journeys import Journeys
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.kv_listener import KvListener
from pointsman_testing import eventually
from pointsman_testing.buses import Buses
from pointsman_testing.memory_nats import MemoryNats


class Stand:
    """A scheduler that listens and an agent that tells, on a bus in memory."""

    def __init__(self, scheduler: Journeys, agent: Journeys) -> None:
        self.agent = agent
        self.pools = Pools("scheduler-1", 2**24)
        self.registry = CollectorRegistry()
        self.listener = KvListener(scheduler.bus, self.pools, lambda _pool: 64, self.registry)
        scheduler.bus.listen(WorkerKvEvents, self.listener.heard, ANY, ANY)
        self.held: list[int] = []
        self.sequence = 0
        self.asked: list[WorkerKvQuery] = []
        agent.bus.link.subscribe(subject(WorkerKvQuery, "p", "w"), self.answer)

    def answer(self, _subject: str, reply: str, _headers: bytes, payload: bytes | memoryview) -> None:
        self.asked.append(WorkerKvQuery.decode(payload))
        state = WorkerKvState(
            boot_id="b1", agent="a1", sequence=self.sequence, snapshot=True, total=len(self.held),
            held=Blob(struct.pack(f"<{len(self.held)}Q", *self.held)),
        )  # fmt: skip
        self.agent.bus.link.publish(reply, state.encode())

    def register(self, boot_id: str = "b1") -> None:
        self.pools.of("p").register(
            WorkerRegistration(
                worker="w", pool="p", url="http://w:1", boot_id=boot_id, agent="a1", version="1", registered_ms=0
            ),
            0.0,
        )

    def tell(self, op: str, *blocks: int, lost: bool = False, block_tokens: int = 64) -> None:
        self.sequence += 1
        self.held = [*self.held, *blocks] if op == "stored" else [b for b in self.held if b not in blocks]
        change = KvChange(op=op, blocks=Blob(struct.pack(f"<{len(blocks)}Q", *blocks)))
        if not lost:
            self.publish((change,), block_tokens)

    def publish(self, changes: tuple[KvChange, ...] = (), block_tokens: int = 64) -> None:
        event = WorkerKvEvents(
            worker="w", pool="p", boot_id="b1", agent="a1", sequence=self.sequence, at_ms=0,
            block_tokens=block_tokens, changes=changes,
        )  # fmt: skip
        self.agent.bus.publish(event, "p", "w")

    def matched(self, *blocks: int) -> int:
        pool = self.pools.of("p")
        worker = pool.fleet.find("w")
        assert worker is not None
        pool.index.lay_out([worker.life])
        return int(pool.index.match(np.array(blocks, dtype=np.uint64))[0])

    def told_of(self) -> str:
        """The life of which nothing is missing."""
        worker = self.pools.of("p").fleet.find("w")
        assert worker is not None
        return worker.kv_told

    def figure(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    nats = MemoryNats()
    buses = Buses(nats.link)
    stand = Stand(buses.make("scheduler"), buses.make("worker-agent"))
    await buses.meet()
    asking = asyncio.create_task(stand.listener.run())
    yield stand
    asking.cancel()
    await asyncio.wait([asking])
    await buses.close()


async def test_stored_and_removed_blocks_reach_the_index(stand: Stand) -> None:
    stand.register()
    stand.tell("stored", 1, 2, 3)
    await eventually(lambda: stand.matched(1, 2, 3) == 3)
    stand.tell("removed", 2)
    await eventually(lambda: stand.matched(1, 2, 3) == 1)
    assert stand.asked == []


@pytest.mark.requirement("S1-37")
async def test_a_lost_message_is_asked_for_and_repaired(stand: Stand) -> None:
    stand.register()
    stand.tell("stored", 1)
    await eventually(lambda: stand.matched(1) == 1)
    stand.tell("stored", 2, lost=True)
    stand.publish()
    await eventually(lambda: stand.matched(1, 2) == 2)
    assert stand.asked[0].since == 1
    assert stand.figure("pointsman_scheduler_kv_gaps_total", pool="p") == 1
    assert stand.figure("pointsman_scheduler_kv_behind") == 0


async def test_events_from_before_the_workers_registration_are_asked_for(stand: Stand) -> None:
    stand.tell("stored", 1, 2)
    stand.register()
    stand.publish()
    await eventually(lambda: stand.matched(1, 2) == 2)


async def test_words_about_another_life_of_the_engine_do_not_count(stand: Stand) -> None:
    stand.register("b2")
    stand.tell("stored", 1)
    stand.register("b1")
    stand.tell("stored", 2)
    await eventually(lambda: stand.matched(1, 2) == 2)


async def test_blocks_of_another_size_are_not_taken_and_counted(stand: Stand) -> None:
    stand.register()
    stand.tell("stored", 1, block_tokens=16)
    await eventually(lambda: stand.figure("pointsman_scheduler_kv_other_block_size_total", pool="p") == 1)
    assert stand.matched(1) == 0


async def test_a_worker_that_left_long_ago_and_came_back_with_blocks_of_another_size_is_logged_again(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pointsman_scheduler.kv_listener.TURN_S", 0.01)
    pool = stand.pools.of("p")
    stand.register()
    for _ in range(3):
        stand.tell("stored", 1, block_tokens=16)
    await eventually(lambda: stand.figure("pointsman_scheduler_kv_other_block_size_total", pool="p") == 3)
    assert caplog.text.count("kv_block_size_differs") == 1

    def told_again() -> bool:
        if pool.fleet.find("w") is None:
            stand.register()
            stand.tell("stored", 1, block_tokens=16)
        else:
            pool.remove("w", 0.0)
            pool.sweep(3600.0)
        return caplog.text.count("kv_block_size_differs") == 2

    await eventually(told_again)


async def test_a_cache_is_known_precisely_once_nothing_is_missing(stand: Stand) -> None:
    stand.register()
    assert stand.told_of() == ""
    stand.tell("stored", 1)
    await eventually(lambda: stand.told_of() == "b1")
    stand.tell("stored", 2, lost=True)
    stand.publish()
    await eventually(lambda: stand.matched(1, 2) == 2)
    assert stand.told_of() == "b1"
