"""Each event is in the stream in the end, or is reported lost; none counts as stored that isn't."""

import random
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_contracts.event_loss import EventsLost
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.held_events import AGAIN_AFTER_S, ALONE_AFTER, ASK_EVERY_S, MOST_TOLD, HeldEvents, Message

pytestmark = pytest.mark.requirement("EVENTS-1")
SUBJECT = "pm.evt.response.completed.v1.p"
WAIT_S = 2.0


def event(number: int, source: str = "edge-1", subject: str = SUBJECT) -> Message:
    headers = message_headers.build("response.completed.v1", message_id=f"{subject}:{source}:{number}").decode()
    return subject, headers, msgspec.json.encode({"request_id": f"r-{number}", "at_ms": 1000 + number})


@dataclass
class Stream:
    """A stream that other publishers write to as well. It misses messages while it has no leader."""

    seen: dict[bytes, int] = field(default_factory=dict[bytes, int])
    last: int = 0
    leader: bool = True

    def offer(self, message: Message) -> int | None:
        """The message's number; None when it is missed."""
        if not self.leader:
            return None
        if message[2] not in self.seen:
            self.last += 1
            self.seen[message[2]] = self.last
        return self.seen[message[2]]


class World:
    """A publisher, a stream, and answers that come or don't."""

    def __init__(self, seed: int, most: int = 10_000) -> None:
        self.held = HeldEvents(most)
        self.stream = Stream()
        self.random = random.Random(seed)
        self.now = 0.0
        self.published = 0
        self.asked = 0
        self.awaited: set[int] = set()
        """Numbers of events whose end is awaited."""

    def await_event(self, number: int) -> None:
        """Await an event that is sent next."""
        self.awaited.add(number)
        message = event(number)

        def done() -> None:
            self.awaited.remove(number)
            assert message[2] in self.stream.seen

        self.held.await_message(message[1], done)

    def send(self, count: int, *, answers: bool = True, others: bool = False) -> None:
        messages = [event(self.published + number) for number in range(1, count + 1)]
        self.published += count
        first, asking = self.held.note_sent(messages, self.now)
        self.asked += len(asking)
        numbers: list[int | None] = []
        for message in messages:
            if others and self.stream.leader and self.random.random() < 0.5:
                self.stream.last += 1
            numbers.append(self.stream.offer(message))
        for position in asking:
            number = numbers[position]
            if number is not None and answers:
                self.held.confirm_event(f"{first + position}", number, self.now)
        self.again(answers=answers)

    def again(self, *, answers: bool = True) -> None:
        while due := self.held.due_again(self.now, WAIT_S):
            numbers = [(token, self.stream.offer(message)) for token, message in due]
            given = [(token, number) for token, number in numbers if number is not None and answers]
            for token, number in given:
                self.held.confirm_event(token, number, self.now)
            if len(given) < len(due):
                return

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += ASK_EVERY_S
            self.again()

    def missing(self) -> int:
        return self.published - len(self.stream.seen)


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "beside", "no leader", "leader", "no answers", "reconnect", "wait"]),
        st.integers(1, 40),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(0, 2**32))
def test_every_event_is_stored_in_the_end(steps: list[Step], seed: int) -> None:
    world = World(seed)
    for step, size in steps:
        match step:
            case "send" | "beside":
                if size % 2:
                    world.await_event(world.published + (size + 1) // 2)
                world.send(size, others=step == "beside")
            case "no answers":
                world.send(size, answers=False)
            case "no leader" | "leader":
                world.stream.leader = step == "leader"
            case "reconnect":
                world.held.note_interruption(world.now)
            case _:
                world.wait(size / 10)
        # It is held for as long as it isn't stored.
        assert len(world.held) >= world.missing()
    world.stream.leader = True
    world.wait(30.0)
    assert world.missing() == 0
    assert len(world.held) == 0
    assert world.awaited == set()
    assert world.held.take_losses() == ()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 50), st.integers(0, 2**32))
def test_events_over_the_bound_are_lost_oldest_first_and_told_exactly(sizes: list[int], most: int, seed: int) -> None:
    world = World(seed, most)
    world.stream.leader = False
    for size in sizes:
        world.send(size)
        world.wait(WAIT_S + 1.0)
    lost = max(0, world.published - most)
    assert world.held.lost == {"too_many": lost, "refused": 0, "too_large": 0}
    assert world.held.take_losses() == ()  # the stream takes no event that would tell it
    world.stream.leader = True
    world.wait(30.0)
    assert len(world.held) == 0
    assert world.missing() == lost
    told = world.held.take_losses()
    gone = [number for number in range(1, world.published + 1) if event(number)[2] not in world.stream.seen]
    assert [(each.source, each.count, each.first, each.last, each.from_ms, each.to_ms) for each in told] == (
        [("edge-1", lost, gone[0], gone[-1], 1000 + gone[0], 1000 + gone[-1])] if lost else []
    )
    # The oldest; one is on its way again whenever another is given up.
    assert not gone or gone[-1] <= lost + 1
    assert world.held.take_losses() == ()


def test_the_only_publisher_asks_ten_times_a_second_at_most() -> None:
    world = World(1)
    for _ in range(ALONE_AFTER):
        world.send(3)
        world.now += 0.01
    before = world.asked
    for _ in range(1000):
        world.send(3)
        world.now += 0.01
    assert world.asked - before <= 10.0 / ASK_EVERY_S + 1
    assert world.held.repeated == 0


def test_events_without_a_later_one_are_asked_for_by_the_last_of_them() -> None:
    world = World(1)
    for _ in range(ALONE_AFTER + 1):
        world.send(1)
    world.send(2)
    assert len(world.held) == 2
    world.wait(2 * ASK_EVERY_S)
    assert len(world.held) == 0
    assert world.held.repeated == 0
    # One that the stream missed is noticed by that.
    world.send(2)
    world.send(2)
    world.stream.seen.popitem()
    world.stream.last -= 1
    world.wait(AGAIN_AFTER_S)
    assert world.missing() == 0


def test_messages_among_those_of_others_are_sent_again_only_where_nothing_proves_them() -> None:
    world = World(1)
    world.send(1)
    world.send(2, others=True)
    assert world.held.repeated == 0
    for _ in range(50):
        world.send(10, others=True)
    world.wait(10.0)
    assert 0 < world.held.repeated <= 50 * 8
    assert len(world.held) == world.missing() == 0


def test_an_event_that_the_stream_refuses_for_good_is_lost_and_holds_up_no_other() -> None:
    held = HeldEvents(100)
    held.note_sent([event(1), event(2)], 0.0)
    held.note_interruption(0.0)
    [(token, _)] = held.due_again(1.0, WAIT_S)
    held.note_refused(token, 1.0, for_good=True)
    [(token, again)] = held.due_again(2.0, WAIT_S)
    assert again == event(2)
    held.note_refused(token, 2.0, for_good=False)
    [(token, again)] = held.due_again(3.0, WAIT_S)
    assert again == event(2)
    held.confirm_event(token, 7, 3.0)
    assert len(held) == 0
    assert held.lost["refused"] == 1
    [told] = held.take_losses()
    assert (told.count, told.first) == (1, 1)


def test_what_waits_for_a_connection_comes_in_order_and_within_the_bound() -> None:
    held = HeldEvents(3)
    held.keep_unsent([event(number) for number in range(1, 6)], 0.0)
    assert held.unsent_count == 3
    assert held.take_unsent(2, 10**6, 1.0) == [event(3), event(4)]
    assert held.take_unsent(2, 10, 1.0) == []  # larger than this server takes
    assert held.lost == {"too_many": 2, "refused": 0, "too_large": 1}


def test_a_lost_report_of_losses_keeps_them_told() -> None:
    held = HeldEvents(1)
    held.keep_unsent([event(1), event(2)], 0.0)
    held.note_sent([event(3)], 1.0)
    held.confirm_event("0", 1, 1.0)
    told = held.take_losses()
    report = EventsLost(source="edge-1", sequence=1, at_ms=5, lost=told)
    subject = "pm.evt.event.lost.v1.frontend"
    headers = message_headers.build("event.lost.v1", message_id=f"{subject}:edge-1:1").decode()
    held.take_unsent(5, 10**6, 1.0)
    held.keep_unsent([(subject, headers, report.encode()), event(4)], 2.0)
    held.note_sent([event(5)], 3.0)
    held.confirm_event("1", 2, 3.0)
    again = {each.subject: each for each in held.take_losses()}
    assert again[SUBJECT] == told[0]
    assert again[subject].count == 1


def test_many_sources_are_told_in_several_reports() -> None:
    held = HeldEvents(1)
    held.keep_unsent([event(1, f"edge-{number}") for number in range(MOST_TOLD + 6)], 0.0)
    held.note_sent([event(1)], 1.0)
    held.confirm_event("0", 1, 1.0)
    assert [len(held.take_losses()) for _ in range(3)] == [MOST_TOLD, 5, 0]


def test_a_process_that_ends_tells_what_it_still_held() -> None:
    held = HeldEvents(100)
    held.keep_unsent([event(3)], 0.0)
    held.note_sent([event(1), event(2)], 0.0)
    [told] = held.lost_at_end()
    assert (told.count, told.first, told.last) == (3, 1, 3)


def test_as_many_messages_of_others_as_were_missed_prove_nothing() -> None:
    world = World(1)
    world.send(1)
    world.stream.leader = False
    world.send(2)
    world.stream.leader = True
    world.stream.last += 2
    world.send(1)
    world.wait(10.0)
    assert world.missing() == 0


def test_no_end_of_an_answer_is_given_for_a_report_that_is_lost() -> None:
    held = HeldEvents(1)
    done: list[int] = []
    for number in (1, 2):
        message = event(number)
        held.await_message(message[1], partial(done.append, number))
        held.keep_unsent([message], 0.0)
    assert held.lost["too_many"] == 1
    assert done == []
    [sent] = held.take_unsent(10, 1000, 0.0)
    held.note_sent([sent], 0.0)
    held.confirm_event("0", 1, 0.0)
    assert done == [2]
