"""A scheduler knows what an agent told, whatever the bus loses."""

import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from msgspec.structs import replace

from pointsman_contracts.kv import KvChange, WorkerKvEvents, WorkerKvQuery, WorkerKvState
from pointsman_contracts.message import Blob, read_fields
from pointsman_scheduler.domain.kv_following import KvFollower, Told

KEPT, PART = 4, 5


def packed(*blocks: int) -> Blob:
    return Blob(struct.pack(f"<{len(blocks)}Q", *blocks))


def unpacked(blocks: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(blocks) // 8}Q", blocks))


@dataclass
class Agent:
    """Tells and answers as an agent does, with little memory."""

    name: str = "a1"
    boot_id: str = "b1"
    held: dict[int, None] = field(default_factory=dict[int, None])
    told: list[WorkerKvEvents] = field(default_factory=list[WorkerKvEvents])
    snapshots: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def message(self, *changes: KvChange) -> WorkerKvEvents:
        return WorkerKvEvents(
            worker="w", pool="p", boot_id=self.boot_id, agent=self.name, at_ms=0, block_tokens=64,
            sequence=len(self.told) + bool(changes), changes=changes,
        )  # fmt: skip

    def tell(self, op: str, *blocks: int) -> WorkerKvEvents:
        for block in blocks:
            if op == "stored":
                self.held[block] = None
            else:
                self.held.pop(block, None)
        self.told.append(self.message(KvChange(op=op, blocks=packed(*blocks))))
        return self.told[-1]

    def answer(self, query: WorkerKvQuery) -> WorkerKvState:
        state = {"boot_id": self.boot_id, "agent": self.name}
        known = len(self.told)
        if query.as_of is None and query.agent == self.name and query.since > 0 and known - query.since <= KEPT:
            changes = tuple(change for message in self.told[query.since :] for change in message.changes)
            return read_fields(WorkerKvState, {**state, "sequence": known, "changes": changes})
        blocks, offset, as_of = list(self.held), 0, known
        if query.as_of in self.snapshots:
            blocks, offset, as_of = self.snapshots[query.as_of], query.offset, query.as_of
        self.snapshots[as_of] = blocks
        return WorkerKvState(
            boot_id=self.boot_id, agent=self.name, sequence=as_of, snapshot=True, total=len(blocks), offset=offset,
            held=packed(*blocks[offset : offset + PART]),
        )  # fmt: skip


class Following(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.agent = Agent()
        self.follower = KvFollower()
        self.noted: set[int] = set()
        self.now = 0.0
        self.answers: list[WorkerKvState] = []

    def note(self, told: Told) -> None:
        if told.everything is not None:
            self.noted = set(unpacked(told.everything))
        for change in told.changes:
            if change.op == "stored":
                self.noted |= set(unpacked(change.blocks))
            elif change.op == "removed":
                self.noted -= set(unpacked(change.blocks))
            else:
                self.noted = set()

    @rule(op=st.sampled_from(["stored", "stored", "removed"]), blocks=st.lists(st.integers(0, 30), max_size=6),
          lost=st.booleans())  # fmt: skip
    def change(self, op: str, blocks: list[int], lost: bool) -> None:
        message = self.agent.tell(op, *blocks)
        if not lost:
            self.note(self.follower.hear(message))

    @rule()
    def heartbeat(self) -> None:
        self.note(self.follower.hear(self.agent.message()))

    @rule(which=st.integers(0, 9))
    def an_old_message_comes_late_or_twice(self, which: int) -> None:
        if self.agent.told:
            self.note(self.follower.hear(self.agent.told[which % len(self.agent.told)]))

    @rule()
    def ask(self) -> None:
        self.now += 1.0
        query = self.follower.question(self.now)
        if query is not None:
            self.answers.append(self.agent.answer(query))

    @rule(lost=st.booleans())
    def an_answer_comes(self, lost: bool) -> None:
        if self.answers:
            answer = self.answers.pop(0)
            if not lost:
                self.note(self.follower.receive_answer(answer))

    @rule()
    def the_agent_restarts(self) -> None:
        self.agent = Agent(f"a{int(self.agent.name[1:]) + 1}", self.agent.boot_id)
        first = self.agent.tell("cleared")
        self.note(self.follower.hear(first))

    def teardown(self) -> None:
        """With a bus that loses nothing more, everything is known after a few questions."""
        self.note(self.follower.hear(self.agent.message()))
        for _ in range(12):
            self.now += 1.0
            if (query := self.follower.question(self.now)) is not None:
                self.note(self.follower.receive_answer(self.agent.answer(query)))
        if self.agent.told:
            assert not self.follower.is_behind
        assert self.noted == set(self.agent.held)


Following.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestFollowing = Following.TestCase


def test_messages_in_order_are_noted_at_once() -> None:
    agent, follower = Agent(), KvFollower()
    assert follower.hear(agent.tell("stored", 1, 2)).changes[0].op == "stored"
    assert follower.hear(agent.tell("removed", 1)).changes[0].op == "removed"
    assert (follower.is_behind, follower.gaps, follower.question(0.0)) == (False, 0, None)


def test_a_lost_message_is_seen_by_the_next_heartbeat_and_asked_for_once_a_second() -> None:
    agent, follower = Agent(), KvFollower()
    follower.hear(agent.tell("stored", 1))
    agent.tell("stored", 2)
    follower.hear(agent.message())
    assert (follower.is_behind, follower.gaps) == (True, 1)
    query = follower.question(10.0)
    assert query is not None
    assert (query.since, query.agent) == (1, "a1")
    assert follower.question(10.5) is None
    assert follower.question(11.0) is not None
    told = follower.receive_answer(agent.answer(query))
    assert [unpacked(change.blocks) for change in told.changes] == [[2]]
    assert not follower.is_behind


def test_events_that_came_meanwhile_follow_the_answer() -> None:
    agent, follower = Agent(), KvFollower()
    follower.hear(agent.tell("stored", 1))
    agent.tell("stored", 2)
    assert follower.hear(agent.tell("stored", 3)) == Told()
    query = follower.question(0.0)
    assert query is not None
    answer = agent.answer(query)
    follower.hear(agent.tell("stored", 4))
    assert [unpacked(c.blocks) for c in follower.receive_answer(answer).changes] == [[2], [3], [4]]


def test_a_new_life_of_the_engine_begins_anew() -> None:
    agent, follower = Agent(), KvFollower()
    follower.hear(agent.tell("stored", 1))
    agent.boot_id = "b2"
    assert follower.hear(agent.tell("stored", 2)) == Told()
    query = follower.question(0.0)
    assert query is not None
    assert query.since == 0


@pytest.mark.parametrize(
    ("changed", "noted"),
    [
        ({"sequence": 1}, True),
        ({"sequence": 3}, False),
        ({"sequence": 1, "changes": ()}, False),
    ],
    ids=["the first", "a later one", "a heartbeat"],
)
def test_only_the_first_changes_of_an_agent_need_nothing_before_them(changed: dict[str, object], noted: bool) -> None:
    follower = KvFollower()
    told = follower.hear(replace(Agent().tell("stored", 1), **changed))
    assert (told.changes != (), follower.is_behind, follower.gaps) == (noted, not noted, 0)


def two_parts() -> tuple[Agent, KvFollower, WorkerKvState]:
    """An agent that holds more than one answer takes, a follower that has the first part, and that part."""
    agent, follower = Agent(), KvFollower()
    agent.tell("stored", *range(PART))
    follower.hear(agent.tell("stored", *range(PART, PART + 3)))
    query = follower.question(0.0)
    assert query is not None
    first = agent.answer(query)
    assert follower.receive_answer(first) == Told()
    return agent, follower, first


def test_a_cache_that_comes_in_parts_is_noted_once_it_is_whole() -> None:
    agent, follower, first = two_parts()
    query = follower.question(0.0)
    assert query is not None, "the next part is asked for at once"
    assert (query.offset, query.as_of) == (PART, first.sequence)
    told = follower.receive_answer(agent.answer(query))
    assert told.everything is not None
    assert unpacked(told.everything) == list(range(PART + 3))
    assert not follower.is_behind


@pytest.mark.parametrize("changed", [{"sequence": 1}, {"sequence": 3}, {"offset": PART - 1}, {"offset": PART + 1}])
def test_a_part_of_another_moment_or_place_is_not_put_to_the_first(changed: dict[str, int]) -> None:
    agent, follower, _ = two_parts()
    query = follower.question(0.0)
    assert query is not None
    assert follower.receive_answer(replace(agent.answer(query), **changed)) == Told()
    again = follower.question(0.0)
    assert again is not None
    assert (again.offset, again.as_of) == (0, None), "once more from the start"


@pytest.mark.parametrize("other", [{"agent": "a0"}, {"boot_id": "b0"}])
def test_the_answer_of_another_agent_or_another_life_is_none(other: dict[str, str]) -> None:
    _, follower, first = two_parts()
    assert follower.receive_answer(replace(first, **other, total=1, held=packed(99))) == Told()
    assert follower.is_behind
    query = follower.question(0.0)
    assert query is not None
    assert query.offset == PART, "and what came before it stays"


def test_a_new_agent_finds_neither_parts_nor_messages_nor_questions_of_the_former() -> None:
    former, follower, first = two_parts()
    follower.hear(former.tell("stored", 77))
    assert follower.question(50.0) is not None
    new = Agent("a2")
    new.held = dict.fromkeys(range(90, 90 + PART + 1))
    new.tell("stored", 1)
    assert follower.hear(new.tell("stored", 2)) == Told()
    query = follower.question(50.1)
    assert query is not None, "it was never asked"
    assert (query.agent, query.offset, query.as_of) == ("a2", 0, None)
    assert first.sequence == 2
    told = follower.receive_answer(WorkerKvState(boot_id="b1", agent="a2", sequence=1, snapshot=True, total=0))
    assert [unpacked(change.blocks) for change in told.changes] == [[2]]


def test_an_answer_up_to_what_was_missed_first_leaves_what_was_missed_since() -> None:
    agent, follower = Agent(), KvFollower()
    follower.hear(agent.tell("stored", 1))
    agent.tell("stored", 2)
    follower.hear(agent.message())
    query = follower.question(0.0)
    assert query is not None
    answer = agent.answer(query)
    agent.tell("stored", 3)
    follower.hear(agent.message())
    assert [unpacked(change.blocks) for change in follower.receive_answer(answer).changes] == [[2]]
    assert follower.is_behind


def test_an_answer_that_was_overtaken_changes_nothing() -> None:
    agent, follower = Agent(), KvFollower()
    follower.hear(agent.tell("stored", 1))
    agent.tell("stored", 2)
    follower.hear(agent.tell("stored", 3))
    query = follower.question(0.0)
    assert query is not None
    late = agent.answer(query)
    agent.tell("removed", 2)
    follower.hear(agent.message())
    newer = agent.answer(query)
    assert len(follower.receive_answer(newer).changes) == 3
    assert follower.receive_answer(late) == Told()
    assert not follower.is_behind
