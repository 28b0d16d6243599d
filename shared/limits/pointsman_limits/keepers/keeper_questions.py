"""Questions to keepers of counts. Those to one keeper that come up in one turn of the event loop are one message."""

import asyncio
import time
from itertools import islice
from typing import Final

from pointsman_contracts.limits import LimitAsk, LimitAsks, LimitVerdict, LimitVerdicts
from pointsman_contracts.message import MalformedMessage
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError, NoReply

ASKED_S: Final = 0.2
"""How long a keeper may take before it is asked again; one that also misses a beat is taken for dead. A later answer
is never used: see `TAKEN_S`."""
BATCH: Final = 256
"""Requests in one message."""

_Verdicts = tuple[LimitVerdict, ...]
_Waiting = tuple[tuple[LimitAsk, ...], "asyncio.Future[_Verdicts]"]


class KeeperQuestions:
    """One of a process."""

    def __init__(self, bus: Bus) -> None:
        self._bus: Final = bus
        self._waiting: Final[dict[str, list[_Waiting]]] = {}
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    def ask_keeper(self, asks: tuple[LimitAsk, ...], keeper: str) -> "asyncio.Future[_Verdicts]":
        """The keeper's answers to the questions of one request. Raises MalformedMessage and the errors
        of `Bus.ask`."""
        future: asyncio.Future[_Verdicts] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._bus.link.soon(self._send)
        self._waiting.setdefault(keeper, []).append((asks, future))
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
            asks = tuple([ask for each, _ in waiting for ask in each])
            answer = await self._bus.ask(LimitAsks(asks=asks), keeper, timeout=ASKED_S)
            verdicts = LimitVerdicts.decode(answer).verdicts
            if time.monotonic() - began > ASKED_S:
                # This process was stopped in the meantime: the keeper's lease may be over, and another keeper may have
                # the count.
                raise NoReply("limits.ask", ASKED_S)
            answers = iter([verdict for _, verdict in zip(asks, verdicts, strict=True)])
            for each, future in waiting:
                own = tuple(islice(answers, len(each)))
                if not future.done():
                    future.set_result(own)
        except (BusError, ValueError) as error:
            # A MalformedMessage is a ValueError; so is an answer of another length.
            problem = error if isinstance(error, BusError | MalformedMessage) else BusError(str(error))
            for _, future in waiting:
                if not future.done():
                    future.set_exception(problem)
