"""Readers that missed messages get them again."""

import struct

from pointsman_contracts.kv import WorkerKvEvents, WorkerKvQuery, WorkerKvState
from pointsman_worker_agent.domain import kv_feed
from pointsman_worker_agent.domain.engine_block import Delta
from pointsman_worker_agent.domain.kv_feed import KvFeed


def unpacked(blocks: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(blocks) // 8}Q", blocks))


class Engine:
    def __init__(self) -> None:
        self.held: list[int] = []
        self.feed = KvFeed(pool="p", worker="w", agent="a1", block_tokens=64, held=lambda: list(self.held))
        self.feed.begin_life("boot")
        self.told: list[WorkerKvEvents] = self.feed.take_due_messages(0)

    def change(self, *, stored: list[int] | None = None, removed: list[int] | None = None) -> None:
        for block in stored or []:
            self.held.append(block)
        for block in removed or []:
            self.held.remove(block)
        self.feed.add_changes(Delta(stored or [], removed or []))

    def tell(self) -> list[WorkerKvEvents]:
        messages = self.feed.take_due_messages(0)
        self.told += messages
        return messages

    def ask(self, since: int, agent: str = "a1", at: float = 100.0, **query: int) -> WorkerKvState:
        return self.feed.answer_query(WorkerKvQuery(since=since, agent=agent, **query), at)  # pyright: ignore[reportArgumentType]


def test_a_life_begins_with_an_empty_cache() -> None:
    first, *_ = Engine().told[0].changes
    assert (first.op, first.blocks) == ("cleared", b"")


def test_changes_travel_together_each_block_once_and_are_counted() -> None:
    engine = Engine()
    engine.change(stored=[1, 2])
    engine.change(stored=[3])
    engine.change(removed=[2])
    engine.change(stored=[4])
    (message,) = engine.tell()
    changes = [(change.op, unpacked(change.blocks)) for change in message.changes]
    assert changes == [("removed", [2]), ("stored", [1, 3, 4])]
    assert message.sequence == 2
    assert engine.feed.make_heartbeat(5).sequence == 2
    assert engine.tell() == []


def test_a_large_change_is_published_in_messages_that_fit_the_bus() -> None:
    engine = Engine()
    engine.change(stored=list(range(10_000)))
    messages = engine.tell()
    assert [message.sequence for message in messages] == [2, 3, 4]
    told = [block for message in messages for change in message.changes for block in unpacked(change.blocks)]
    assert told == list(range(10_000))
    assert max(len(message.encode()) for message in messages) < 64 * 1024


def test_a_reader_that_missed_a_few_messages_gets_just_those() -> None:
    engine = Engine()
    for block in range(5):
        engine.change(stored=[block])
        engine.tell()
    answer = engine.ask(since=3)
    assert (answer.snapshot, answer.sequence) == (False, 6)
    assert [unpacked(change.blocks) for change in answer.changes] == [[2], [3], [4]]
    assert engine.ask(since=6).changes == ()


def test_a_reader_that_missed_more_than_is_kept_or_knew_another_agent_gets_everything() -> None:
    engine = Engine()
    for block in range(kv_feed.KEPT + 5):
        engine.change(stored=[block])
        engine.tell()
    for answer in (engine.ask(since=3), engine.ask(since=kv_feed.KEPT, agent="a0"), engine.ask(since=0)):
        assert answer.snapshot
        assert unpacked(answer.held) == engine.held
        assert (answer.sequence, answer.total) == (engine.feed.sequence, len(engine.held))


def test_a_large_cache_is_handed_over_in_parts_of_one_moment() -> None:
    engine = Engine()
    count = kv_feed.PART_BLOCKS * 2 + 100
    engine.change(stored=list(range(count)))
    engine.tell()
    first = engine.ask(since=0)
    engine.change(removed=[0], stored=[count])
    engine.tell()
    parts = unpacked(first.held)
    while len(parts) < first.total:
        answer = engine.ask(since=0, offset=len(parts), as_of=first.sequence)
        assert (answer.offset, answer.sequence, answer.total) == (len(parts), first.sequence, count)
        parts += unpacked(answer.held)
    assert parts == list(range(count))


def test_a_part_of_a_snapshot_that_is_gone_begins_a_new_one() -> None:
    engine = Engine()
    engine.change(stored=[1, 2])
    engine.tell()
    answer = engine.ask(since=0, offset=1, as_of=77)
    assert (answer.snapshot, answer.offset, unpacked(answer.held)) == (True, 0, [1, 2])


def test_a_new_life_forgets_what_was_kept_and_tells_what_was_heard_before_its_name() -> None:
    engine = Engine()
    engine.change(stored=[1])
    engine.tell()
    engine.held = [9]
    engine.feed.begin_life("second boot")
    (message,) = engine.tell()
    assert message.boot_id == "second boot"
    assert [(change.op, unpacked(change.blocks)) for change in message.changes] == [("cleared", []), ("stored", [9])]
    assert engine.ask(since=1).snapshot


def test_a_part_of_the_former_lifes_cache_is_not_handed_out_as_the_new_ones() -> None:
    engine = Engine()
    engine.change(stored=list(range(kv_feed.PART_BLOCKS + 1)))
    engine.tell()
    first = engine.ask(since=0)
    engine.held = [9]
    engine.feed.begin_life("second boot")
    answer = engine.ask(since=0, offset=kv_feed.PART_BLOCKS, as_of=first.sequence)
    assert (answer.boot_id, answer.offset, unpacked(answer.held)) == ("second boot", 0, [9])


def test_a_snapshot_is_kept_while_it_is_asked_for_and_no_longer() -> None:
    engine = Engine()
    engine.change(stored=list(range(kv_feed.PART_BLOCKS * 2 + 1)))
    engine.tell()
    first = engine.ask(since=0)
    engine.held.clear()
    kept = kv_feed.SNAPSHOT_KEPT_S - 0.1
    at, offset = 100.0, kv_feed.PART_BLOCKS
    for _ in range(3):
        at += kept
        assert engine.ask(since=0, at=at, as_of=first.sequence, offset=offset).total == first.total
    at += kv_feed.SNAPSHOT_KEPT_S
    assert engine.ask(since=0, at=at, as_of=first.sequence, offset=offset).total == 0
