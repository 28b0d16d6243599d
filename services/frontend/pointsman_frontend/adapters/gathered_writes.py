"""Writes to several connections in one turn of the event loop, which leave together.

A write to a process that sleeps wakes it, which costs as much as all the work of an HTTP connection. So writes wait for
those that follow in the same turn. A write that none follows leaves at once: what the gateway does next for the request
is done while its peer works.
"""

import asyncio
from collections.abc import Callable
from typing import Final


class GatheredWrites:
    """Those of one event loop, to clients and engines."""

    __slots__ = ("_planned", "_waiting", "to_come")

    def __init__(self) -> None:
        self.to_come = 0
        """Tasks that were woken to write and haven't run yet. Who wakes one adds it, and it takes itself off."""
        self._waiting: Final[list[Callable[[], None]]] = []
        self._planned = False

    def add(self, write: Callable[[], None]) -> None:
        """Call `write` once no other write is to come, at the end of the turn at the latest. It raises nothing."""
        waiting = self._waiting
        if self.to_come > 0:
            waiting.append(write)
            if not self._planned:
                self._planned = True
                asyncio.get_running_loop().call_soon(self._end)
        elif waiting:
            waiting.append(write)
            self._write_all()
        else:
            write()

    def _end(self) -> None:
        """A task that was to come waits for something else than the loop's turn."""
        self._planned = False
        self._write_all()

    def _write_all(self) -> None:
        for write in self._waiting:
            write()
        self._waiting.clear()
