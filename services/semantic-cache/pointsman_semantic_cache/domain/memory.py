"""Answers kept in this process: a table for identical requests, and a matrix of vectors for each partition.

Partitions are small, so that every question of one is looked at: 10,000 vectors of 384 places cost 0.2 ms, and the
closest are always found.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pointsman_semantic_cache.domain.entry import CacheEntry, Meaning, Partition
from pointsman_semantic_cache.domain.store import NEAREST, Near

_FIRST: Final = 16


class EntryPlace(NamedTuple):
    """Where an answer is."""

    partition: Partition
    key: bytes


class _Questions:
    """Vectors of one partition, context and embedder; a row that is free is None."""

    def __init__(self, width: int) -> None:
        self._matrix: NDArray[np.float32] = np.zeros((_FIRST, width), np.float32)
        self._keys: list[bytes | None] = []
        self._rows: dict[bytes, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, key: bytes, vector: NDArray[np.float32]) -> None:
        row = self._rows.get(key)
        if row is None:
            row = self._free.pop() if self._free else len(self._keys)
            if row == len(self._keys):
                self._keys.append(None)
                if row >= len(self._matrix):
                    self._matrix = np.concatenate((self._matrix, np.zeros_like(self._matrix)))
        self._keys[row] = key
        self._rows[key] = row
        self._matrix[row] = vector

    def remove(self, key: bytes) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._keys[row] = None
            self._matrix[row] = 0.0
            self._free.append(row)

    def near(self, vector: NDArray[np.float32], threshold: float) -> Iterator[tuple[bytes, float]]:
        count = len(self._keys)
        scores: NDArray[np.float32] = self._matrix[:count] @ vector
        close = np.flatnonzero(scores >= threshold)
        for row in (int(place) for place in close[np.argsort(-scores[close], kind="stable")]):
            key = self._keys[row]
            if key is not None:
                yield key, float(scores[row])


class MemoryStore:
    """Implements `Store`. The least recently used answers are evicted first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[EntryPlace, CacheEntry] = OrderedDict()
        self._questions: dict[tuple[Partition, bytes, str], _Questions] = {}
        self._bytes: dict[str, int] = {}
        self.changes = 0
        """Counts what was kept and forgotten."""

    def __len__(self) -> int:
        return len(self._entries)

    def bytes_of(self, cache: str) -> int:
        """Bytes of all answers of a cache."""
        return self._bytes.get(cache, 0)

    @property
    def held_in_all(self) -> int:
        """Bytes of all answers."""
        return sum(self._bytes.values())

    def list_entries(self) -> Iterator[tuple[Partition, CacheEntry]]:
        """Every answer, the least recently used first."""
        return ((place.partition, entry) for place, entry in self._entries.items())

    def find_exact(self, partition: Partition, key: bytes, now_ms: int, *, uses: bool = True) -> CacheEntry | None:
        """Implements `EntryStore.find_exact`."""
        place = EntryPlace(partition, key)
        if uses:
            return self._current(place, now_ms)
        entry = self._entries.get(place)
        return entry if entry is not None and entry.expires_ms > now_ms else None

    async def find_near(self, partition: Partition, meaning: Meaning, threshold: float, now_ms: int) -> Sequence[Near]:
        """Implements `EntryStore.find_near`."""
        return self.near_now(partition, meaning, threshold, now_ms)

    def near_now(self, partition: Partition, meaning: Meaning, threshold: float, now_ms: int) -> Sequence[Near]:
        """The same, at once."""
        questions = self._questions.get((partition, meaning.context, meaning.embedder))
        if questions is None:
            return []
        found: list[Near] = []
        for key, similarity in list(questions.near(meaning.vector, threshold)):
            place = EntryPlace(partition, key)
            entry = self._entries.get(place)
            if entry is not None and entry.expires_ms <= now_ms:
                self._forget(place)
            elif entry is not None:
                found.append(Near(entry, similarity))
                if len(found) == NEAREST:
                    break
        return found

    def store_answer(self, partition: Partition, entry: CacheEntry, max_bytes: int) -> int:
        """Implements `EntryStore.store_answer`."""
        place = EntryPlace(partition, entry.key)
        self._forget(place)
        self._entries[place] = entry
        cache = partition.cache
        self._bytes[cache] = self._bytes.get(cache, 0) + entry.size
        meaning = entry.meaning
        if meaning is not None:
            where = (partition, meaning.context, meaning.embedder)
            questions = self._questions.get(where)
            if questions is None:
                questions = self._questions[where] = _Questions(len(meaning.vector))
            questions.put(entry.key, meaning.vector)
        self.changes += 1
        return self._shrink(cache, max_bytes)

    async def purge_answers(self, cache: str | None, tenant: str | None) -> int:
        """Implements `EntryStore.purge_answers`."""
        gone = [
            place
            for place in self._entries
            if cache in (None, place.partition.cache) and tenant in (None, place.partition.tenant)
        ]
        for place in gone:
            self._forget(place)
        return len(gone)

    def expire_answers(self, now_ms: int) -> int:
        """Delete expired answers; returns their number."""
        gone = [place for place, entry in self._entries.items() if entry.expires_ms <= now_ms]
        for place in gone:
            self._forget(place)
        return len(gone)

    async def close(self) -> None:
        """Implements `EntryStore.close`."""

    def _current(self, place: EntryPlace, now_ms: int) -> CacheEntry | None:
        entry = self._entries.get(place)
        if entry is None:
            return None
        if entry.expires_ms <= now_ms:
            self._forget(place)
            return None
        self._entries.move_to_end(place)
        return entry

    def _shrink(self, cache: str, max_bytes: int) -> int:
        gone = 0
        while self._bytes.get(cache, 0) > max_bytes:
            oldest = next(place for place in self._entries if place.partition.cache == cache)
            self._forget(oldest)
            gone += 1
        return gone

    def _forget(self, place: EntryPlace) -> None:
        entry = self._entries.pop(place, None)
        if entry is None:
            return
        self.changes += 1
        cache = place.partition.cache
        self._bytes[cache] -= entry.size
        meaning = entry.meaning
        if meaning is not None:
            where = (place.partition, meaning.context, meaning.embedder)
            questions = self._questions.get(where)
            if questions is not None:
                questions.remove(place.key)
                if not len(questions):
                    del self._questions[where]
