"""Passes a stream of server-sent events on at their boundaries.

Bytes leave as they came. Only an event whose end hasn't arrived waits for it: a client can't use it before, and a
stream that is cut off ends on a boundary, where an error event can follow.
"""

from typing import Final

HELD: Final = 2**20
"""An event longer than this many bytes passes in pieces."""
_ENDS: Final = (b"\n\n", b"\n\r\n", b"\r\r")
_SPLIT: Final = 2
"""Bytes of an end that may have arrived before the rest of it."""


class WholeEvents:
    """One stream."""

    __slots__ = ("_before", "_held", "_size")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size = 0
        self._before = b""

    def feed(self, data: bytes) -> bytes:
        """The next bytes from the engine; returns what goes to the client now."""
        if not self._held and data.endswith((b"\n\n", b"\r\n\r\n")):
            return data
        seen = self._before + data
        end = max(seen.rfind(mark) + len(mark) if mark in seen else 0 for mark in _ENDS) - len(self._before)
        if end <= 0:
            self._hold(data)
            return self.rest() if self._size > HELD else b""
        whole = b"".join((*self._held, data[:end]))
        self.rest()
        if end < len(data):
            self._hold(data[end:])
        return whole

    def rest(self) -> bytes:
        """What is held, once the engine has ended the stream properly."""
        held = b"".join(self._held)
        self._held = []
        self._size = 0
        self._before = b""
        return held

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._size += len(data)
        self._before = (self._before + data)[-_SPLIT:]
