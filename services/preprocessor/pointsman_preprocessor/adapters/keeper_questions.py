"""Questions to keepers of counts. Those to one keeper that come up in one turn of the event loop are one message."""

import asyncio
import time
from typing import Final

from pydantic import ValidationError

from pointsman_contracts.limit_asks import InnerAsk, InnerAsks, InnerVerdict, read_verdicts, write_limits
from pointsman_contracts.limits import LimitAsks
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError, NoReply

ASKED_S: Final = 0.2
"""How long a keeper may take before it is asked again; one that also misses a beat is taken for dead. A later answer
is never used: see `TAKEN_S`."""
BATCH: Final = 256
"""Requests in one message."""

_Waiting = tuple[InnerAsk, "asyncio.Future[InnerVerdict]"]


class KeeperQuestions:
    """One of a process."""

    def __init__(self, bus: Bus) -> None:
        self._bus: Final = bus
        self._waiting: Final[dict[str, list[_Waiting]]] = {}
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    def ask(self, ask: InnerAsk, keeper: str) -> "asyncio.Future[InnerVerdict]":
        """The keeper's answer. Raises the errors of `Bus.ask`, and ValidationError."""
        future: asyncio.Future[InnerVerdict] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._bus.link.soon(self._send)
        self._waiting.setdefault(keeper, []).append((ask, future))
        return future

    def _send(self) -> None:
        loop = asyncio.get_running_loop()
        for keeper, waiting in self._waiting.items():
            for start in range(0, len(waiting), BATCH):
                task = loop.create_task(self._ask_all(keeper, waiting[start : start + BATCH]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._waiting.clear()

    async def _ask_all(self, keeper: str, waiting: list[_Waiting]) -> None:
        began = time.monotonic()
        try:
            asks = write_limits(InnerAsks(tuple([ask for ask, _ in waiting])))
            answer = read_verdicts(await self._bus.ask_written(LimitAsks, asks, keeper, timeout=ASKED_S))
            if time.monotonic() - began > ASKED_S:
                # This process was stopped in the meantime: the keeper's lease may be over, and another keeper may have
                # the count.
                raise NoReply("limits.ask", ASKED_S)
            for (_, future), verdict in zip(waiting, answer.verdicts, strict=True):
                if not future.done():
                    future.set_result(verdict)
        except (BusError, ValueError) as error:
            # A ValidationError is a ValueError; so is an answer that is too short.
            problem = error if isinstance(error, BusError | ValidationError) else BusError(str(error))
            for _, future in waiting:
                if not future.done():
                    future.set_exception(problem)
