"""Mailboxes: bounded, in order, fair to the rest of the loop, and empty after a drain."""

import asyncio
from collections.abc import Callable

import pytest

from pointsman_contracts.presence import OpenRequestsQuery
from pointsman_runtime.bus.mailbox import BATCH, Delivery, Fifo, LatestWins
from pointsman_runtime.telling.tallies import Tally
from pointsman_testing import eventually


def soon(work: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(work)


def deliver(mailbox: Fifo | LatestWins, payload: bytes, subject: str = "s") -> None:
    mailbox.take(Delivery(subject, "", b"", payload))


async def test_messages_are_handled_in_order_and_never_at_receipt() -> None:
    got: list[bytes] = []
    mailbox = Fifo(Tally("t"), lambda delivery: got.append(delivery.payload), soon)
    sent = [b"%d" % number for number in range(3 * BATCH)]
    for payload in sent:
        deliver(mailbox, payload)
    assert got == []
    await mailbox.drain()
    assert got == sent


async def test_an_object_of_the_same_process_is_handled_at_once_unless_others_wait() -> None:
    got: list[str] = []
    mailbox = Fifo(Tally("t"), lambda delivery: got.append(delivery.subject), soon)
    message = OpenRequestsQuery(request_ids=())
    mailbox.take(Delivery("first", "", b"", b"", message))
    assert got == ["first"]
    deliver(mailbox, b"", "second")
    mailbox.take(Delivery("third", "", b"", b"", message))
    assert got == ["first"]
    await mailbox.drain()
    assert got == ["first", "second", "third"]


async def test_messages_from_the_wire_are_handled_as_they_arrive_a_batch_in_each_turn_of_the_loop() -> None:
    got: list[bytes] = []
    mailbox = Fifo(Tally("t"), lambda delivery: got.append(delivery.payload), soon)
    sent = [b"%d" % number for number in range(3 * BATCH)]
    for payload in sent:
        mailbox.receive_from_wire(Delivery("s", "", b"", payload))
    assert got == sent[:BATCH]
    handled_before: list[int] = []
    asyncio.get_running_loop().call_soon(lambda: handled_before.append(len(got)))
    await mailbox.drain()
    assert (handled_before, got) == ([2 * BATCH], sent)
    await asyncio.sleep(0)
    mailbox.receive_from_wire(Delivery("s", "", b"", b"last"))
    assert got[-1] == b"last"


async def test_messages_from_the_wire_wait_while_as_many_coroutines_run_as_may() -> None:
    begun: list[bytes] = []
    gate = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        begun.append(delivery.payload)
        await gate.wait()

    mailbox = Fifo(Tally("t"), handle, soon, messages=1, concurrency=2)
    for payload in (b"a", b"b", b"c", b"d"):
        mailbox.receive_from_wire(Delivery("s", "", b"", payload))
    await eventually(lambda: begun == [b"a", b"b"])
    gate.set()
    await mailbox.drain()
    assert begun == [b"a", b"b", b"c"]
    assert mailbox.tally.dropped == 1


async def test_other_work_gets_its_turn_between_batches() -> None:
    handled_before: list[int] = []
    got: list[bytes] = []
    mailbox = Fifo(Tally("t"), lambda delivery: got.append(delivery.payload), soon)
    for _ in range(4 * BATCH):
        deliver(mailbox, b"")
    asyncio.get_running_loop().call_soon(lambda: handled_before.append(len(got)))
    await mailbox.drain()
    assert handled_before == [BATCH]


@pytest.mark.parametrize(("messages", "size"), [(3, 10**6), (10**6, 3)])
async def test_over_either_limit_the_newest_is_dropped(messages: int, size: int) -> None:
    got: list[bytes] = []
    mailbox = Fifo(Tally("t"), lambda delivery: got.append(delivery.payload), soon, messages=messages, size=size)
    for name in (b"a", b"b", b"c", b"d", b"e"):
        deliver(mailbox, name)
    await mailbox.drain()
    assert got == [b"a", b"b", b"c"]
    assert mailbox.tally.dropped == 2
    deliver(mailbox, b"f")
    await mailbox.drain()
    assert got[-1] == b"f"


async def test_no_more_coroutines_run_than_allowed() -> None:
    running = most = 0
    gate = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    mailbox = Fifo(Tally("t"), handle, soon, concurrency=3)
    for _ in range(10):
        deliver(mailbox, b"")
    await eventually(lambda: running == 3)
    gate.set()
    await mailbox.drain()
    assert (running, most) == (0, 3)


async def test_latest_wins_keeps_one_message_of_each_subject() -> None:
    got: list[tuple[str, bytes]] = []
    mailbox = LatestWins(Tally("t"), lambda delivery: got.append((delivery.subject, delivery.payload)), soon)
    for number in range(5):
        for subject in ("a", "b"):
            deliver(mailbox, b"%d" % number, subject)
    await mailbox.drain()
    assert got == [("a", b"4"), ("b", b"4")]
    assert mailbox.tally.dropped == 0


async def test_latest_wins_is_bounded_in_subjects() -> None:
    got: list[str] = []
    mailbox = LatestWins(Tally("t"), lambda delivery: got.append(delivery.subject), soon, subjects=2)
    for subject in ("a", "b", "c", "a"):
        deliver(mailbox, b"", subject)
    await mailbox.drain()
    assert got == ["a", "b"]
    assert mailbox.tally.dropped == 1
