"""The reply table: every waiter is answered or told, none stays."""

import asyncio
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_runtime.bus.mailbox import Delivery
from pointsman_runtime.bus.replies import LOOK_S, TICK_S, FutureWaiter, ReplyTable, Waiter
from pointsman_testing import eventually


class Counting(Waiter):
    def __init__(self, table: ReplyTable, extend_by: float = 0.0) -> None:
        super().__init__()
        self.table = table
        self.extend_by = extend_by
        self.overdue_at: list[float] = []
        self.replies = 0

    def receive_reply(self, headers: bytes, payload: bytes) -> None:
        self.replies += 1

    def overdue(self, now: float) -> None:
        self.overdue_at.append(now)
        if self.extend_by and len(self.overdue_at) == 1:
            self.table.extend_deadline(self, now + self.extend_by)
        else:
            self.table.close(self)


class Timers:
    """How many timers of reply tables wait, and how many have fired."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fired = 0
        self._set: list[asyncio.TimerHandle] = []
        self._loop = asyncio.get_running_loop()
        self._call_later = self._loop.call_later
        monkeypatch.setattr(self._loop, "call_later", self._counted)

    @property
    def waiting(self) -> int:
        return sum(not timer.cancelled() for timer in self._set)

    def _counted(self, delay: float, callback: Callable[..., None], *args: object) -> asyncio.TimerHandle:
        if not isinstance(getattr(callback, "__self__", None), ReplyTable):
            return self._call_later(delay, callback, *args)

        def run() -> None:
            self._set.remove(timer)
            self.fired += 1
            callback(*args)

        timer = self._call_later(delay, run)
        self._set.append(timer)
        return timer


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    return Timers(monkeypatch)


def loop_time() -> float:
    return asyncio.get_running_loop().time()


async def test_a_waiter_times_out_once_and_not_before_its_deadline() -> None:
    table = ReplyTable("_INBOX.t")
    waiter = Counting(table)
    due = loop_time() + 0.03
    table.enter_waiter(waiter, due)
    await eventually(lambda: waiter.overdue_at)
    assert waiter.overdue_at[0] >= due
    assert len(table) == 0


async def test_a_waiter_may_extend_its_wait() -> None:
    table = ReplyTable("_INBOX.t")
    waiter = Counting(table, extend_by=0.03)
    table.enter_waiter(waiter, loop_time() + 0.01)
    await eventually(lambda: len(waiter.overdue_at) == 2)
    assert waiter.overdue_at[1] - waiter.overdue_at[0] >= 0.03


async def test_a_waiter_whose_deadline_moves_to_and_fro_times_out_once(timers: Timers) -> None:
    table = ReplyTable("_INBOX.t")
    waiter = Counting(table)
    started = loop_time()
    table.enter_waiter(waiter, started + 0.05)
    for due in (0.02, 0.09, 0.03, 0.06, 0.04):
        table.extend_deadline(waiter, started + due)
    await eventually(lambda: waiter.overdue_at)
    assert waiter.overdue_at[0] >= started + 0.04
    await eventually(lambda: not timers.waiting)
    assert len(waiter.overdue_at) == 1


async def test_one_waiter_may_get_several_replies() -> None:
    table = ReplyTable("_INBOX.t")
    waiter = Counting(table)
    inbox = table.enter_waiter(waiter, loop_time() + 10)
    table.receive_reply(Delivery(inbox, "", b"", b"parked"))
    table.receive_reply(Delivery(inbox, "", b"", b"decision"))
    assert waiter.replies == 2
    table.close(waiter)
    table.receive_reply(Delivery(inbox, "", b"", b"again"))
    assert (waiter.replies, table.late) == (2, 1)


async def test_a_reply_without_a_waiter_is_counted() -> None:
    table = ReplyTable("_INBOX.t")
    for subject in ("_INBOX.t.1", "_INBOX.t.x", "_INBOX.t.", "_INBOX.t.²"):
        table.receive_reply(Delivery(subject, "", b"", b""))
    assert table.late == 4


async def test_the_wheel_rests_without_waiters_and_turns_again(timers: Timers) -> None:
    table = ReplyTable("_INBOX.t")
    for _ in range(3):
        waiter = FutureWaiter(table)
        table.enter_waiter(waiter, loop_time() + TICK_S)
        await asyncio.wait([waiter.future])
        assert isinstance(waiter.future.exception(), TimeoutError)
        await eventually(lambda: not timers.waiting)


async def test_settled_waiters_leave_the_wheel_long_before_their_deadline(timers: Timers) -> None:
    table = ReplyTable("_INBOX.t")
    for _ in range(1000):
        waiter = FutureWaiter(table)
        table.receive_reply(Delivery(table.enter_waiter(waiter, loop_time() + 600), "", b"", b""))
        await waiter.future
    assert len(table) == 0
    await eventually(lambda: not timers.waiting)


async def test_the_wheel_hardly_turns_for_what_is_answered_in_time(timers: Timers) -> None:
    table = ReplyTable("_INBOX.t")
    started = loop_time()
    while loop_time() < started + 0.3:
        waiter = FutureWaiter(table)
        table.receive_reply(Delivery(table.enter_waiter(waiter, loop_time() + 600), "", b"", b""))
        await asyncio.sleep(0)  # a turn of the loop
    assert timers.fired <= 1 + (loop_time() - started) / LOOK_S


@given(st.lists(st.floats(0, 0.05), min_size=1, max_size=30))
def test_all_waiters_time_out_in_time_whatever_their_deadlines(waits: list[float]) -> None:
    async def run() -> None:
        table = ReplyTable("_INBOX.t")
        started = loop_time()
        waiters = [Counting(table) for _ in waits]
        for waiter, wait in zip(waiters, waits, strict=True):
            table.enter_waiter(waiter, started + wait)
        await eventually(lambda: all(waiter.overdue_at for waiter in waiters))
        for waiter, wait in zip(waiters, waits, strict=True):
            assert waiter.overdue_at[0] >= started + wait
            assert len(waiter.overdue_at) == 1

    asyncio.run(run())


async def test_a_settled_waiter_goes_with_what_it_got_instead_of_staying_until_its_time() -> None:
    table = ReplyTable("_INBOX.me")
    waiter = FutureWaiter(table)
    table.enter_waiter(waiter, loop_time() + 60)
    waiter.receive_reply(b"", b"an answer")
    gone = weakref.ref(waiter.future)
    del waiter
    assert gone() is None
