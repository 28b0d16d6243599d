"""Messages of one subscription that are received and not yet handled: bounded, and counted when dropped."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Final, Protocol

from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.tallies import Tally

BATCH: Final = 32
"""Messages handled in one turn of the event loop, so that heartbeats and timers get theirs."""


class Delivery:
    """One message as it arrived: as bytes from the wire, or as an object from a service of the same process."""

    __slots__ = ("body", "headers", "message", "payload", "reply", "subject", "traceparent")

    def __init__(
        self,
        subject: str,
        reply: str,
        headers: bytes,
        payload: bytes,
        message: object | None = None,
        body: bytes | memoryview = b"",
        traceparent: str | None = None,
    ) -> None:
        self.subject = subject
        self.reply = reply
        self.headers = headers
        self.payload = payload
        """Empty when `message` came as an object."""
        self.message = message
        """The message, or the part of it that a receiver needed, once one has decoded it."""
        self.body = body
        """The body of a request that came as an object."""
        self.traceparent = traceparent
        """The trace of a message that came as an object."""


Handle = Callable[[Delivery], Coroutine[object, object, None] | None]
"""Handles one message; a coroutine that it returns runs on its own, up to the mailbox's concurrency."""


class Mailbox(Protocol):
    """Takes messages and hands them to a handler, those of bytes in later turns of the loop."""

    tally: Tally

    def take(self, delivery: Delivery) -> None:
        """Take one message."""
        ...

    async def drain(self) -> None:
        """Wait until everything received is handled."""
        ...


class Fifo:
    """Every message, in order. Over its limits the newest is dropped and counted."""

    def __init__(
        self,
        tally: Tally,
        handle: Handle,
        soon: Callable[[Callable[[], None]], None],
        *,
        messages: int = 4096,
        size: int = 64 * 1024 * 1024,
        concurrency: int = 256,
    ) -> None:
        self.tally = tally
        self._handle = handle
        self._soon = soon
        self._messages = messages
        self._size = size
        self._concurrency = concurrency
        self._waiting: deque[Delivery] = deque()
        self._bytes = 0
        self._planned = False
        self._left = BATCH
        """Messages from the wire that may be handled as they arrive, until the loop has had a turn."""
        self._running: set[asyncio.Task[None]] = set()
        self._overflow = Overflow(tally)
        self.busy = False
        """Whether a message must wait for its turn: others wait, as many coroutines run as may, or a batch was handled
        as it arrived."""

    def receive_from_wire(self, delivery: Delivery) -> None:
        """Take one message from the wire: handled in this very call, unless others wait or a batch of them was."""
        if self.busy:
            self.take(delivery)
            return
        self._left -= 1
        if self._left <= 0:
            self.busy = True
            if not self._planned:
                self._planned = True
                asyncio.get_running_loop().call_soon(self._work)
        going_on = self._handle(delivery)
        if going_on is not None:
            self.run(going_on)

    def take(self, delivery: Delivery) -> None:
        """Like `Mailbox.take`. An object of this process is handled in this very call, unless others wait."""
        if not (self._append(delivery) if delivery.message is None else self.hand(delivery)):
            self._overflow.dropped_one(len(self._waiting))

    def hand(self, delivery: Delivery) -> bool:
        """Handle one message in this very call unless others wait for their turn. False when the mailbox is full; the
        message is then the caller's."""
        if self.busy:
            return self._append(delivery)
        going_on = self._handle(delivery)
        if going_on is not None:
            self.run(going_on)
        return True

    def run(self, going_on: Coroutine[object, object, None]) -> None:
        """Run a coroutine that counts towards the mailbox's concurrency."""
        task = asyncio.get_running_loop().create_task(going_on)
        self._running.add(task)
        task.add_done_callback(self._ended)
        if len(self._running) >= self._concurrency:
            self.busy = True

    def _append(self, delivery: Delivery) -> bool:
        """Keep one message for a later turn. False when there is no room."""
        size = len(delivery.payload) + len(delivery.body)
        if len(self._waiting) >= self._messages or self._bytes + size > self._size:
            return False
        self._waiting.append(delivery)
        self.busy = True
        self._bytes += size
        if not self._planned:
            self._planned = True
            self._soon(self._work)
        return True

    async def drain(self) -> None:
        """Wait until everything received is handled."""
        while self._waiting or self._running:
            if self._running:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)

    def _work(self) -> None:
        self._planned = False
        self._left = BATCH
        waiting = self._waiting
        for _ in range(min(BATCH, len(waiting))):
            if len(self._running) >= self._concurrency:
                return  # a task that ends plans the next turn
            delivery = waiting.popleft()
            self.busy = bool(waiting)
            self._bytes -= len(delivery.payload) + len(delivery.body)
            going_on = self._handle(delivery)
            if going_on is not None:
                self.run(going_on)
        if waiting:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._work)  # the rest waits for a turn of its own
            return
        self.busy = len(self._running) >= self._concurrency
        if self._overflow.overflowing:
            self._overflow.caught_up()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self.busy = bool(self._waiting)
        if self._waiting and not self._planned:
            self._planned = True
            self._soon(self._work)


class LatestWins:
    """Only the newest message of each subject. A message that it replaces isn't counted as dropped."""

    def __init__(
        self, tally: Tally, handle: Handle, soon: Callable[[Callable[[], None]], None], *, subjects: int = 65536
    ) -> None:
        self.tally = tally
        self._handle = handle
        self._soon = soon
        self._subjects = subjects
        self._waiting: dict[str, Delivery] = {}
        self._planned = False
        self._overflow = Overflow(tally)

    def take(self, delivery: Delivery) -> None:
        """Take one message."""
        if len(self._waiting) >= self._subjects and delivery.subject not in self._waiting:
            self._overflow.dropped_one(len(self._waiting))
            return
        self._waiting[delivery.subject] = delivery
        if not self._planned:
            self._planned = True
            self._soon(self._work)

    async def drain(self) -> None:
        """Wait until everything received is handled."""
        while self._waiting:  # noqa: ASYNC110 - one turn of the loop is what it waits for
            await asyncio.sleep(0)

    def _work(self) -> None:
        self._planned = False
        for subject in list(self._waiting)[:BATCH]:
            self._handle(self._waiting.pop(subject))
        if self._waiting:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._work)
        elif self._overflow.overflowing:
            self._overflow.caught_up()


class Overflow:
    """Counts drops, and logs once when a mailbox fills and once when it has caught up."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._before = 0
        self.overflowing = False
        """Whether messages were dropped since it last caught up."""
        self._log = Log("bus")

    def dropped_one(self, waiting: int) -> None:
        """One message was dropped because `waiting` others are before it."""
        if not self.overflowing:
            self.overflowing = True
            self._before = self._tally.dropped
            self._log.warning("mailbox_full", subscription=self._tally.name, waiting=waiting)
        self._tally.dropped += 1

    def caught_up(self) -> None:
        """The mailbox is empty."""
        self.overflowing = False
        dropped = self._tally.dropped - self._before
        self._log.info("mailbox_caught_up", subscription=self._tally.name, dropped=dropped)
