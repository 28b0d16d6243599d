"""Answers to requests over one inbox subscription.

`asyncio.wait_for` and a timer per request cost about 60 µs; here a request is an entry in a table and in a coarse
wheel, and the one timer is set to the first tick at which a request may be overdue: most have their answer long before.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import Final

from pointsman_contracts.message import Message
from pointsman_runtime.bus.mailbox import Delivery
from pointsman_runtime.telling.logs import Log

TICK_S: Final = 0.01
"""Resolution of deadlines."""
LOOK_S: Final = 1.0
"""The timer is set no further ahead: with no request waiting, it soon stops."""

_log = Log("replies")


class Waiter(ABC):
    """One request that waits. Subclasses define the effect of an answer and of the deadline."""

    __slots__ = ("due", "tick", "token")

    token: str
    """The reply subject of its request. `ReplyTable` sets this and the others."""
    tick: int
    """Where the wheel has it; 0 when it doesn't."""
    due: float
    """Loop time at which `overdue` is called; may be moved later at any time."""

    @abstractmethod
    def receive_reply(self, headers: bytes, payload: bytes) -> None:
        """An answer arrived; there may be more."""

    def told(self, message: Message) -> None:
        """An answer of a service in this process; there may be more."""
        self.receive_reply(b"", message.encode())

    @abstractmethod
    def overdue(self, now: float) -> None:
        """`due` has passed. The waiter is still in the table: close it, or set a later `due`."""


class ReplyTable:
    """Requests that wait for an answer, by their reply subject."""

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        """Answers arrive on `<inbox>.<token>`."""
        self.prefix = f"{inbox}."
        self._waiting: dict[str, Waiter] = {}
        self._wheel: dict[int, set[Waiter]] = {}
        """By the tick at which they are looked at next."""
        self._opened = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0
        self.late = 0
        """Answers that arrived after their request had ended."""

    def __len__(self) -> int:
        return len(self._waiting)

    def enter_waiter(self, waiter: Waiter, due: float) -> str:
        """Enter a waiter until loop time `due`; returns the reply subject to send along."""
        reply_to = self.enter_quick_waiter(waiter)
        self.extend_deadline(waiter, due)
        return reply_to

    def enter_quick_waiter(self, waiter: Waiter) -> str:
        """Enter a waiter that may have its answer at once; returns the reply subject to send along. `extend` it if it
        has to wait."""
        self._opened += 1
        token = waiter.token = f"{self.prefix}{self._opened}"
        waiter.tick = 0
        self._waiting[token] = waiter
        return token

    def extend_deadline(self, waiter: Waiter, due: float) -> None:
        """Move a waiter's deadline."""
        waiter.due = due
        # Under way to an earlier tick it goes on from there by itself.
        if waiter.tick == 0:
            self._enter(waiter)
        elif int(due / TICK_S) + 1 < waiter.tick:
            self._leave(waiter)
            self._enter(waiter)

    def close(self, waiter: Waiter) -> None:
        """Forget a waiter; answers that still come are counted as late."""
        self._waiting.pop(waiter.token, None)
        if waiter.tick:
            self._leave(waiter)

    def receive_reply(self, delivery: Delivery) -> None:
        """An answer as bytes."""
        waiter = self._waiting.get(delivery.subject)
        if waiter is None:
            self.late += 1
        else:
            waiter.receive_reply(delivery.headers, delivery.payload)

    def deliver_reply(self, reply_to: str, message: Message) -> bool:
        """Hand an answer of a service in this process to its waiter. False when `reply_to` is another process's."""
        waiter = self._waiting.get(reply_to)
        if waiter is not None:
            waiter.told(message)
            return True
        if not reply_to.startswith(self.prefix):
            return False
        self.late += 1
        return True

    def _enter(self, waiter: Waiter) -> None:
        now = asyncio.get_running_loop().time()
        tick = waiter.tick = max(int(waiter.due / TICK_S), int(now / TICK_S)) + 1
        bucket = self._wheel.get(tick)
        if bucket is None:
            self._wheel[tick] = {waiter}
        else:
            bucket.add(waiter)
        if self._timer is None or tick < self._timer_tick:
            self._wind(tick, now)

    def _leave(self, waiter: Waiter) -> None:
        bucket = self._wheel.get(waiter.tick)
        if bucket is not None:
            bucket.discard(waiter)
            if not bucket:
                del self._wheel[waiter.tick]
        waiter.tick = 0

    def _wind(self, tick: int, now: float) -> None:
        """Set the timer to a tick."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = tick
        # Loops round delays to milliseconds: one more, so that the tick has begun.
        delay_s = min(tick * TICK_S - now + 0.001, LOOK_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._turn)

    def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        tick = int(now / TICK_S)
        overdue: list[Waiter] = []
        self._timer = None
        for one in sorted(each for each in self._wheel if each <= tick):
            for waiter in self._wheel.pop(one):
                waiter.tick = 0
                if waiter.due <= now:
                    overdue.append(waiter)
                else:
                    self._enter(waiter)
        if self._wheel:
            self._wind(min(self._wheel), now)
        for waiter in overdue:
            try:
                waiter.overdue(now)
            except Exception as error:  # noqa: BLE001 - the others must be told all the same
                self.close(waiter)
                _log.error("overdue_failed", error)


class FutureWaiter(Waiter):
    """Waits for one answer and resolves a future with its headers and payload."""

    __slots__ = ("_table", "future")

    def __init__(self, table: ReplyTable) -> None:
        self._table = table
        self.future: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    def receive_reply(self, headers: bytes, payload: bytes) -> None:
        """Settle with the first answer."""
        self._table.close(self)
        if not self.future.done():
            self.future.set_result((headers, payload))

    def overdue(self, now: float) -> None:
        """Settle with TimeoutError."""
        del now
        self._table.close(self)
        if not self.future.done():
            self.future.set_exception(TimeoutError())
