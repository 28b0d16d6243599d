"""A table bounded in bytes: the least recently used entries go first."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedTable(Generic[K, V]):
    """Not to be used by several threads at once."""

    def __init__(self, most_bytes: int, size_of: Callable[[K, V], int]) -> None:
        """`size_of`: bytes of an entry. One that takes more than a quarter of `most_bytes` isn't kept."""
        self._most_bytes: Final = most_bytes
        self._size_of: Final = size_of
        self._entries: Final[OrderedDict[K, V]] = OrderedDict()
        self._used = 0

    def look_up(self, key: K) -> V | None:
        """The value, which counts as used; None where there is none."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def keep(self, key: K, value: V) -> None:
        """Keep a value; an earlier one stays."""
        size = self._size_of(key, value)
        if size > self._most_bytes // 4 or key in self._entries:
            return
        self._entries[key] = value
        self._used += size
        while self._used > self._most_bytes:
            self._used -= self._size_of(*self._entries.popitem(last=False))
