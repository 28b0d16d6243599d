"""Reads headers that look like earlier ones: the same names in the same order, with values of the same lengths.

One client's heads differ in little more than a request id, so nearly every head has the shape of another one. One call
of `struct` then takes it apart, and one comparison says whether everything but the values is as it was. No value is
kept.
"""

from struct import Struct
from typing import Final

from pointsman_epp_adapter.domain.mutation import Header

Value = tuple[int, int]
"""Where a header's value begins and ends."""

_AT_MOST: Final = 1024
"""Shapes; beyond it all are forgotten."""
_ALIKE: Final = 8
"""Shapes of one length."""
_HEADERS: Final = 64
_BYTES: Final = 16_384
"""A head with more of either isn't remembered."""


class _Shape:
    """One shape."""

    __slots__ = ("_between", "_names", "_unpack")

    def __init__(self, data: bytes, at: int, headers: list[Header], values: list[Value]) -> None:
        self._names = tuple([name for name, _ in headers])
        between: list[bytes] = []
        sizes: list[str] = []
        for start, end in values:
            between.append(data[at:start])
            sizes.append(f"{start - at}s{end - start}s")
            at = end
        self._between = tuple(between)
        self._unpack = Struct("".join(sizes)).unpack_from

    def read(self, data: bytes, at: int) -> list[Header] | None:
        found = self._unpack(data, at)
        return list(zip(self._names, found[1::2], strict=True)) if found[::2] == self._between else None


class HeaderShapes:
    """The shapes of the heads that were read."""

    def __init__(self) -> None:
        self._by_length: dict[int, list[_Shape]] = {}
        self._count = 0

    def read(self, data: bytes, at: int, end: int) -> list[Header] | None:
        """The headers between `at` and `end`, which are in `data`; None where no earlier ones had their shape."""
        for shape in self._by_length.get(end - at, ()):
            found = shape.read(data, at)
            if found is not None:
                return found
        return None

    def learn_shape(self, data: bytes, at: int, headers: list[Header], values: list[Value]) -> None:
        """Remember the shape of `headers`, which begin at `at` and end with the last of the `values`."""
        if not values or len(values) > _HEADERS or values[-1][1] - at > _BYTES:
            return
        if self._count >= _AT_MOST:
            self._by_length.clear()
            self._count = 0
        alike = self._by_length.setdefault(values[-1][1] - at, [])
        alike.insert(0, _Shape(data, at, headers, values))
        self._count += 1
        if len(alike) > _ALIKE:
            alike.pop()
            self._count -= 1
