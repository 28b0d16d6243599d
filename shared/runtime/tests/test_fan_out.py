"""Messages between services of one process, and messages that leave it."""

import asyncio
from collections.abc import Callable

import pytest

from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.subjects import ANY, subject
from pointsman_runtime.bus.fan_out import FanOut
from pointsman_runtime.bus.mailbox import Delivery
from pointsman_testing import eventually
from pointsman_testing.memory_nats import MemoryNats


class Heard:
    """Keeps what it takes."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.messages: list[object] = []

    def take(self, delivery: Delivery) -> None:
        self.payloads.append(delivery.payload)
        self.messages.append(delivery.message)


class World:
    """Two processes on one server."""

    def __init__(self) -> None:
        nats = MemoryNats()
        here, there = nats.link(), nats.link()
        self.here, self.there = FanOut(here), FanOut(there)
        here.open()
        there.open()


async def a_turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.fixture
def world() -> World:
    return World()


async def test_a_message_reaches_every_service_of_the_process_and_every_other_process_once(world: World) -> None:
    first, second, other = Heard(), Heard(), Heard()
    world.here.attach("a.*", first.take)
    world.here.attach("a.b", second.take)
    world.there.attach("a.>", other.take)
    world.here.publish("a.b", b"x")
    await eventually(lambda: other.payloads)
    await a_turn()
    assert first.payloads == second.payloads == other.payloads == [b"x"]


async def test_equal_subscriptions_of_two_services_are_one_at_the_server(world: World) -> None:
    first, second = Heard(), Heard()
    ids = [world.here.attach("a", each.take) for each in (first, second)]
    world.there.publish("a", b"1")
    await eventually(lambda: first.payloads == second.payloads == [b"1"])
    world.here.unsubscribe(ids[0])
    world.there.publish("a", b"2")
    await eventually(lambda: second.payloads == [b"1", b"2"])
    assert first.payloads == [b"1"]


def in_a_queue_group(link: FanOut, take: Callable[[Delivery], None]) -> str:
    link.attach("a", take, "group")
    return "a"


def on_a_subject_of_its_own(link: FanOut, take: Callable[[Delivery], None]) -> str:
    link.attach("a", take, exclusive=True)
    return "a"


def at_its_inbox(link: FanOut, take: Callable[[Delivery], None]) -> str:
    link.answers("_INBOX.here.", take)
    return "_INBOX.here.1"


@pytest.mark.parametrize("how", [in_a_queue_group, on_a_subject_of_its_own, at_its_inbox])
async def test_a_message_that_only_this_process_needs_stays_in_it(
    world: World, how: Callable[[FanOut, Callable[[Delivery], None]], str]
) -> None:
    inside, outside = Heard(), Heard()
    to = how(world.here, inside.take)
    world.there.attach(to, outside.take, "group")
    world.here.publish(to, b"x")
    await a_turn()
    assert inside.payloads == [b"x"]
    assert outside.payloads == []


async def test_a_group_that_the_process_left_is_served_by_others(world: World) -> None:
    inside, outside = Heard(), Heard()
    world.there.attach("a", outside.take, "group")
    sid = world.here.attach("a", inside.take, "group")
    world.here.publish("a", b"1")
    world.here.stop_delivery(sid)
    world.here.publish("a", b"2")
    await eventually(lambda: outside.payloads)
    assert (inside.payloads, outside.payloads) == ([b"1"], [b"2"])


async def test_a_question_that_a_service_of_the_process_takes_stays_inside(world: World) -> None:
    inside, outside = Heard(), Heard()
    world.there.attach("ask", outside.take)
    world.here.attach("ask", inside.take)
    world.here.publish("ask", b"?", reply="somewhere")
    world.here.publish("ask", b"!")
    await eventually(lambda: outside.payloads)
    assert (inside.payloads, outside.payloads) == ([b"?", b"!"], [b"!"])


async def test_services_get_the_message_itself_and_raw_receivers_its_bytes(world: World) -> None:
    heard = Heard()
    raw: list[bytes] = []
    world.here.attach(subject(PoolSnapshot, ANY), heard.take)
    world.here.subscribe(subject(PoolSnapshot, ANY), lambda _s, _r, _h, payload: raw.append(payload))
    snapshot = PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1)
    assert not world.here.tell(subject(PoolSnapshot, "llama-8b"), snapshot)
    assert heard.messages == [snapshot]
    assert raw == [snapshot.encode()]
