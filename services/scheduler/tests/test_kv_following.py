"""A scheduler knows what an agent told, whatever the bus loses."""

import struct
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from pointsman_contracts.kv import KvChange, WorkerKvEvents, WorkerKvQuery, WorkerKvState
from pointsman_scheduler.domain.kv_following import KvFollower, Told

KEPT, PART = 4, 5


def packed(*blocks: int) -> bytes:
    return struct.pack(f"<{len(blocks)}Q", *blocks)


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
            return WorkerKvState.model_validate({**state, "sequence": known, "changes": changes})
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
                self.note(self.follower.answered(answer))

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
                self.note(self.follower.answered(self.agent.answer(query)))
        if self.agent.told:
            assert not self.follower.behind
        assert self.noted == set(self.agent.held)


Following.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestFollowing = Following.TestCase


def test_messages_in_order_are_noted_at_once() -> None:
    agent, follower = Agent(), KvFollower()
    assert follower.hear(agent.tell("stored", 1, 2)).changes[0].op == "stored"
    assert follower.hear(agent.tell("removed", 1)).changes[0].op == "removed"
    assert (follower.behind, follower.gaps, follower.question(0.0)) == (False, 0, None)


def test_a_lost_message_is_seen_by_the_next_heartbeat_and_asked_for_once_a_second() -> None:
    agent, follower = Agent(), KvFollower()
    follower.hear(agent.tell("stored", 1))
    agent.tell("stored", 2)
    follower.hear(agent.message())
    assert (follower.behind, follower.gaps) == (True, 1)
    query = follower.question(10.0)
    assert query is not None
    assert (query.since, query.agent) == (1, "a1")
    assert follower.question(10.5) is None
    assert follower.question(11.0) is not None
    told = follower.answered(agent.answer(query))
    assert [unpacked(change.blocks) for change in told.changes] == [[2]]
    assert not follower.behind


def test_what_came_meanwhile_follows_the_answer() -> None:
    agent, follower = Agent(), KvFollower()
    follower.hear(agent.tell("stored", 1))
    agent.tell("stored", 2)
    assert follower.hear(agent.tell("stored", 3)) == Told()
    query = follower.question(0.0)
    assert query is not None
    answer = agent.answer(query)
    follower.hear(agent.tell("stored", 4))
    assert [unpacked(c.blocks) for c in follower.answered(answer).changes] == [[2], [3], [4]]


def test_a_new_life_of_the_engine_begins_anew() -> None:
    agent, follower = Agent(), KvFollower()
    follower.hear(agent.tell("stored", 1))
    agent.boot_id = "b2"
    assert follower.hear(agent.tell("stored", 2)) == Told()
    query = follower.question(0.0)
    assert query is not None
    assert query.since == 0
