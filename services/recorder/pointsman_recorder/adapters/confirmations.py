"""Waits until a stream has confirmed each of several messages."""

import asyncio
from types import TracebackType

from pointsman_runtime.bus.replies import ReplyTable, Waiter


class NotWritten(Exception):
    """The stream rejected a message, or didn't confirm it in time."""


class Confirmations(Waiter):
    """Used as a context, which gives the subject that the server's answers go to."""

    __slots__ = ("_left", "_table", "_wait_s", "_written")

    def __init__(self, table: ReplyTable, count: int, wait_s: float) -> None:
        super().__init__()
        self._table = table
        self._left = count
        self._wait_s = wait_s
        self._written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> str:
        return self._table.open(self, asyncio.get_running_loop().time() + self._wait_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._table.close(self)
        # The exception that ended publishing already reports a failure during it.
        self._written.cancel()

    async def all(self) -> None:
        """Returns once every message is confirmed. Raises NotWritten."""
        await self._written

    def replied(self, headers: bytes, payload: bytes) -> None:
        """One message is confirmed, or rejected: an answer without a body means that no stream takes it."""
        del headers
        if not payload or b'"error"' in payload:
            self._fail(f"the stream refused a message: {payload[:200].decode(errors='replace')}")
            return
        self._left -= 1
        if self._left == 0 and not self._written.done():
            self._written.set_result(None)

    def overdue(self, now: float) -> None:
        """Not all were confirmed in time."""
        del now
        self._table.close(self)
        self._fail(f"{self._left} messages weren't confirmed within {self._wait_s:g} s")

    def _fail(self, words: str) -> None:
        if not self._written.done():
            self._written.set_exception(NotWritten(words))
