"""A transport that gathers what is written within one turn of the event loop into one write.

uvicorn writes the head and every piece of a body by themselves, and uvloop makes a system call of each: a tenth of
the CPU time of a request here, and as much again for the peer, who is woken each time.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

GATHERED: Final = 65536
"""More bytes than this are written at once, so that a slow reader is noticed."""


class CorkedTransport(asyncio.Transport):
    """Stands before another transport."""

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._inner = inner
        self._loop = loop
        self._gathered: list[bytes] = []
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send soon, in order."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(bytes(data))
        self._size += len(data)
        if self._size > GATHERED:
            self._flush()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send all of them soon, in order."""
        for data in list_of_data:
            self.write(data)

    def _flush(self) -> None:
        gathered = self._gathered
        if gathered:
            self._gathered = []
            self._size = 0
            self._inner.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def write_eof(self) -> None:
        """End the writing side after what was written."""
        self._flush()
        self._inner.write_eof()

    def can_write_eof(self) -> bool:
        """As the inner transport."""
        return self._inner.can_write_eof()

    def close(self) -> None:
        """Close after what was written."""
        self._flush()
        self._inner.close()

    def abort(self) -> None:
        """Close at once."""
        self._gathered.clear()
        self._inner.abort()

    def is_closing(self) -> bool:
        """As the inner transport."""
        return self._inner.is_closing()

    def pause_reading(self) -> None:
        """As the inner transport."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """As the inner transport."""
        self._inner.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the inner transport."""
        return self._inner.get_extra_info(name, default)
