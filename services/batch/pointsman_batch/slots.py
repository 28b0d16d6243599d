"""Slots for lines: as many as the pace allows, given out in turn, while the engines of a model have room."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from pointsman_batch.domain.pace import Pace

LOOK_S: Final = 0.1
"""How often waiting lines look whether there is room now."""


class Slots:
    """The slots of this process. Batches that wait for one get it in the order in which they asked."""

    def __init__(self, pace: Pace, has_room: Callable[[str], bool]) -> None:
        """`has_room(model)`: whether the engines of a model have room."""
        self.pace: Final = pace
        self._has_room: Final = has_room
        self._waiting: Final[deque[tuple[str, asyncio.Future[None]]]] = deque()

    async def take_slot(self, model: str) -> None:
        """Wait for a slot and take it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((model, future))
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
        for _ in range(len(self._waiting)):
            if not self.pace.may_begin(now):
                return
            model, future = self._waiting.popleft()
            if future.done():
                continue
            room = rooms.get(model)
            if room is None:
                room = rooms[model] = self._has_room(model)
            if room:
                self.pace.begin_line()
                future.set_result(None)
            else:
                self._waiting.append((model, future))
