"""Joins identical requests at the same time: the first one asks a model, the others wait for its answer for a while."""

import asyncio
from typing import Final

from pointsman_semantic_cache.domain.entry import Partition

MOST_WAITING: Final = 512
"""Requests of a process that wait; others go on at once."""
MOST_FLIGHTS: Final = 8192
"""Requests whose answer may be waited for; the oldest one is forgotten first."""

Key = tuple[Partition, bytes]
"""Who shares the answer, and `Asked.exact`."""


class _Flight:
    __slots__ = ("leader", "until", "waiting")

    def __init__(self, leader: str, until: float) -> None:
        self.leader = leader
        self.until = until
        self.waiting: list[asyncio.Future[None]] = []


class Flights:
    """The open requests of one process. Times are of its event loop."""

    def __init__(self) -> None:
        self._flights: Final[dict[Key, _Flight]] = {}
        self._waiting = 0

    def may_lead(self, key: Key, request_id: str, wait_s: float) -> bool:
        """Whether this request asks a model itself: nothing like it is under way, or it is itself sent again. For
        `wait_s` others wait for its answer."""
        now = asyncio.get_running_loop().time()
        flight = self._flights.get(key)
        if flight is not None and flight.until > now and flight.leader != request_id:
            return self._waiting >= MOST_WAITING
        if flight is None:
            if len(self._flights) >= MOST_FLIGHTS:
                self.end_waits(next(iter(self._flights)))
            self._flights[key] = _Flight(request_id, now + wait_s)
        else:
            flight.leader, flight.until = request_id, now + wait_s
        return True

    def left_s(self, key: Key) -> float:
        """How long the answer is waited for from now."""
        flight = self._flights.get(key)
        return 0.0 if flight is None else max(0.0, flight.until - asyncio.get_running_loop().time())

    async def wait(self, key: Key) -> None:
        """Wait until the answer is stored, it is known that none will be, or the time is up."""
        flight = self._flights.get(key)
        if flight is None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flight.waiting.append(future)
        self._waiting += 1
        try:
            await asyncio.wait([future], timeout=self.left_s(key))
        finally:
            self._waiting -= 1
            if not future.done():
                flight.waiting.remove(future)

    def end_waits(self, key: Key) -> None:
        """End the wait: the answer is stored, or none will be."""
        flight = self._flights.pop(key, None)
        for future in flight.waiting if flight is not None else ():
            if not future.done():
                future.set_result(None)
