"""Slots for lines: as many as the pace allows, given to senders in turn, while the engines of a model have room."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from pointsman_batch.domain.pace import Pace

LOOK_S: Final = 0.1
"""How often waiting lines look whether there is room now."""

_Waiting = deque[tuple[str, asyncio.Future[None]]]


class Slots:
    """The slots of this process. Batches and queues that wait for one get it in turn."""

    def __init__(self, pace: Pace, has_room: Callable[[str], bool]) -> None:
        """`has_room(model)`: whether the engines of a model have room."""
        self.pace: Final = pace
        self._has_room: Final = has_room
        self._waiting: Final[dict[str, _Waiting]] = {}
        """The models of lines that wait, by sender; the first sender is the next."""

    async def take_slot(self, sender: str, model: str) -> None:
        """Wait for a slot and take it. `sender`: the batch, or the queue."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sender, deque()).append((model, future))
        self.give_out()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        """A line is no longer at work."""
        self.pace.end_line()
        self.give_out()

    def record_answer(self) -> None:
        """A gateway answered."""
        self.pace.record_answer()

    def record_refusal(self, retry_after_s: float | None) -> None:
        """There was no room."""
        self.pace.record_refusal(time.monotonic(), retry_after_s)

    def give_out(self) -> None:
        """Give slots to those that wait; call every `LOOK_S`, too."""
        now = time.monotonic()
        rooms: dict[str, bool] = {}
        passed = 0
        while passed < len(self._waiting) and self.pace.may_begin(now):
            sender = next(iter(self._waiting))
            lines = self._waiting.pop(sender)
            passed = 0 if self._begin_one(lines, rooms) else passed + 1
            if lines:
                self._waiting[sender] = lines

    def _begin_one(self, lines: _Waiting, rooms: dict[str, bool]) -> bool:
        """Give a slot to the first line whose model has room; False when there is none."""
        for _ in range(len(lines)):
            model, future = lines.popleft()
            if future.done():
                continue
            room = rooms.get(model)
            if room is None:
                room = rooms[model] = self._has_room(model)
            if room:
                self.pace.begin_line()
                future.set_result(None)
                return True
            lines.append((model, future))
        return False
