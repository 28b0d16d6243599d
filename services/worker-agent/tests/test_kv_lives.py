"""An engine that restarts has an empty cache, whatever it published before."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import msgspec
import pytest

from pointsman_contracts.kv import WorkerKvEvents, WorkerKvQuery
from pointsman_testing import eventually
from pointsman_testing.buses import Buses
from pointsman_worker_agent.kv_speaker import CHANGES_EVERY_S, MOST_WAIT, KvSpeaker

pytestmark = pytest.mark.parametrize("buses", ["memory"], indirect=True)


@dataclass
class Agent:
    """A speaker whose engine the test restarts."""

    speaker: KvSpeaker
    told: list[WorkerKvEvents]
    life: list[str]
    begun: list[str]
    unusable: list[str] = field(default_factory=list[str])

    def publish(self, *events: object) -> None:
        self.speaker.receive_batch(0, msgspec.msgpack.encode([0.0, list(events), 0]))
        self.speaker.publish_changes()

    def store(self, first: int) -> None:
        """A block of 8 tokens as two of the engine's."""
        tokens = list(range(first, first + 8))
        self.publish(["BlockStored", [first, first + 1], None, tokens, 4, None])

    def held(self) -> int:
        """Blocks that a scheduler that asks now believes in."""
        return self.speaker.answer_query(WorkerKvQuery()).total

    def published(self) -> set[int]:
        """Blocks that a scheduler that heard everything believes in, in this life."""
        held: set[int] = set()
        for message in self.told:
            for change in message.changes:
                blocks = struct.unpack(f"<{len(change.blocks) // 8}Q", change.blocks)
                if message.boot_id != self.life[0] or change.op == "cleared":
                    held.clear()
                held = held - set(blocks) if change.op == "removed" else held | set(blocks)
        return held if self.told and self.told[-1].boot_id == self.life[0] else set()


async def made(buses: Buses, *, engine_tokens: int | None = 4, model: Callable[[], str] = lambda: "m") -> Agent:
    service, other = buses.make("worker-agent"), buses.make("scheduler")
    told: list[WorkerKvEvents] = []
    other.bus.listen(WorkerKvEvents, told.append, "p", "w")
    await buses.meet()
    life, begun, unusable = ["b1"], list[str](), list[str]()
    speaker = KvSpeaker(
        service.bus,
        pool="p",
        worker="w",
        block_tokens=8,
        boot_id=lambda: life[0],
        model=model,
        capacity=lambda: None,
        engine_block_tokens=lambda: engine_tokens,
        on_new_life=lambda: begun.append(life[0]),
        on_unusable=unusable.append,
        clock=count(1.0, 0.2).__next__,  # each flush is a beat later
    )
    return Agent(speaker, told, life, begun, unusable)


async def test_nothing_of_the_former_life_is_believed_before_the_first_event_of_the_new_one(buses: Buses) -> None:
    agent = await made(buses)
    agent.store(100)
    await eventually(lambda: len(agent.published()) == 1)
    agent.life[0] = "b2"
    agent.speaker.publish_changes()
    assert agent.held() == 0
    assert agent.begun == ["b2"]
    await eventually(lambda: agent.told and agent.told[-1].boot_id == "b2" and agent.published() == set())


async def test_events_of_the_new_life_that_came_before_its_name_stay(buses: Buses) -> None:
    agent = await made(buses)
    agent.store(100)
    agent.store(200)
    agent.speaker.broke(0)
    agent.speaker.note_lost_batches(0)
    agent.store(200)
    agent.store(300)
    assert agent.held() == 3, "so far it may be the network that failed"
    agent.life[0] = "b2"
    agent.speaker.publish_changes()
    assert agent.held() == 2
    await eventually(lambda: agent.told and agent.told[-1].boot_id == "b2" and len(agent.published()) == 2)


async def test_a_publisher_that_was_lost_and_comes_back_in_the_same_life_keeps_its_cache(buses: Buses) -> None:
    agent = await made(buses)
    agent.store(100)
    agent.speaker.broke(0)
    agent.store(200)
    assert agent.held() == 2
    assert agent.begun == []


@pytest.mark.requirement("SIGNAL-5")
async def test_blocks_that_do_not_fit_are_told_at_the_start_and_once(
    buses: Buses, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await made(buses, engine_tokens=16)
    for _ in range(5):
        agent.speaker.publish_changes()
    assert agent.unusable == ["the engine's have 16 tokens, and its agent's 8, which is no multiple"]
    agent.store(100)
    assert agent.unusable[-1] == "", "its events say that it has others"
    agent.publish(["BlockStored", [1], None, list(range(16)), 16, None])
    assert len(agent.unusable) == 3
    assert agent.speaker.blocks.unknown == 1
    assert [record.message for record in caplog.records].count("kv_block_size_unusable") == 2


async def test_batches_that_wait_for_a_models_name_are_bounded(buses: Buses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman_worker_agent.kv_speaker.MOST_WAITING", 3)
    name = [""]
    agent = await made(buses, model=lambda: name[0])
    for first in (100, 200, 300, 400, 500):
        agent.store(first)
    name[0] = "m"
    agent.speaker.publish_changes()
    assert agent.held() == 3


async def test_changes_wait_for_the_beat_unless_they_are_many(buses: Buses) -> None:
    agent = await made(buses)
    now = [100.0]
    agent.speaker._clock = lambda: now[0]  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    agent.store(10)
    await eventually(lambda: len(agent.told) == 1)
    agent.store(20)
    assert agent.speaker.sent == 1
    for first in range(1000, 1000 + 10 * MOST_WAIT, 10):
        agent.store(first)
    assert agent.speaker.sent == 2
    now[0] += 2 * CHANGES_EVERY_S
    agent.speaker.publish_changes()
    assert agent.speaker.sent == 3
    await eventually(lambda: len(agent.published()) == 2 + MOST_WAIT)
