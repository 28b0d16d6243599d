"""Answers to requests over one inbox subscription.

`asyncio.wait_for` and a timer per request cost about 60 µs; here a request is an entry in a table, and a
coarse wheel that only runs while somebody waits finds what is overdue.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import Final

from pointsman_runtime.logs import Log

TICK_S: Final = 0.01
"""Resolution of deadlines."""
HORIZON_TICKS: Final = 100
"""A later deadline is looked at again after this many ticks, so that settled entries leave the wheel soon."""

_log = Log("replies")


class Waiter(ABC):
    """One request that waits. Subclasses say what an answer and the deadline mean."""

    __slots__ = ("due", "tick", "token")

    def __init__(self) -> None:
        self.token = 0
        self.tick = 0
        """The tick at which the wheel looks at it next; 0 when the wheel doesn't have it."""
        self.due = 0.0
        """Loop time at which `overdue` is called; may be moved later at any time."""

    @abstractmethod
    def replied(self, headers: bytes, payload: bytes) -> None:
        """An answer arrived; there may be more."""

    @abstractmethod
    def overdue(self, now: float) -> None:
        """`due` has passed. The waiter is still in the table: close it, or set a later `due`."""


class ReplyTable:
    """Everybody who waits for an answer, by the last token of the reply subject."""

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        """Answers arrive on `<inbox>.<token>`."""
        self._prefix = len(inbox) + 1
        self._waiting: dict[int, Waiter] = {}
        self._wheel: dict[int, list[int]] = {}
        """Tokens by tick. It holds no waiter: one that has settled, with the answer that it got, is gone at once."""
        self._last_token = 0
        self._last_tick = 0
        self._timer: asyncio.TimerHandle | None = None
        """Turns the wheel, only while somebody waits or just settled."""
        self.late = 0
        """Answers that nobody waited for any more."""

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, waiter: Waiter, due: float) -> str:
        """Enter a waiter until loop time `due`; returns the reply subject to send along."""
        self._last_token += 1
        waiter.token = self._last_token
        self._waiting[self._last_token] = waiter
        self.extend(waiter, due)
        return f"{self.inbox}.{self._last_token}"

    def extend(self, waiter: Waiter, due: float) -> None:
        """Move a waiter's deadline."""
        waiter.due = due
        # Under way to an earlier tick it goes on from there by itself.
        if waiter.tick == 0 or int(due / TICK_S) + 1 < waiter.tick:
            self._enter(waiter)

    def close(self, waiter: Waiter) -> None:
        """Forget a waiter; answers that still come are counted as late."""
        self._waiting.pop(waiter.token, None)

    def receive(self, subject: str, reply: str, headers: bytes, payload: bytes) -> None:
        """An answer from the wire."""
        del reply
        text = subject[self._prefix :]
        waiter = self._waiting.get(int(text)) if text.isdecimal() else None
        if waiter is None:
            self.late += 1
            return
        waiter.replied(headers, payload)

    def _enter(self, waiter: Waiter) -> None:
        loop = asyncio.get_running_loop()
        now = int(loop.time() / TICK_S)
        tick = min(max(int(waiter.due / TICK_S) + 1, now + 1), now + HORIZON_TICKS)
        waiter.tick = tick
        bucket = self._wheel.get(tick)
        if bucket is None:
            self._wheel[tick] = [waiter.token]
        else:
            bucket.append(waiter.token)
        if self._timer is None:
            self._last_tick = now
            self._timer = loop.call_later(TICK_S, self._turn)

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        tick = int(now / TICK_S)
        # After a stall of the loop there may be many ticks to catch up on: look at the buckets instead.
        passed = range(self._last_tick + 1, tick + 1)
        ticks = passed if len(passed) < len(self._wheel) else sorted(t for t in self._wheel if t <= tick)
        self._last_tick = tick
        overdue: list[Waiter] = []
        self._timer = None
        for one in ticks:
            for token in self._wheel.pop(one, ()):
                waiter = self._waiting.get(token)
                if waiter is None or waiter.tick != one:
                    continue
                waiter.tick = 0
                if waiter.due > now:
                    self._enter(waiter)
                else:
                    overdue.append(waiter)
        if self._timer is None and self._wheel:
            self._timer = loop.call_later(TICK_S, self._turn)
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
        super().__init__()
        self._table = table
        self.future: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    def replied(self, headers: bytes, payload: bytes) -> None:
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
