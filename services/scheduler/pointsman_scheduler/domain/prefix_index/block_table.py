"""Block hashes with a value each, found and changed many at a time by numpy: some 50 ns a block where a dictionary of
millions takes 200 to 300, and a third of its memory."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pointsman_plugins.scheduling.arrays import Blocks, Ints

Values = NDArray[np.int32]
Ticks = NDArray[np.uint32]

PLACES: Final = 8
"""Hashes in one bucket: a line of the processor's cache. The code below reads the eight truth values of a comparison as
one number, so this is fixed."""
MOST_LOAD: Final = 2.2
"""Hashes to a bucket on average, above which the table grows. A bucket that hasn't been split has up to twice as many;
1 in 60 hashes finds its bucket full then."""
SPLIT: Final = 256
"""Buckets that grow together: some 20 us."""
RESERVED: Final = 2**20
"""Buckets for which addresses are reserved at first. Memory is taken only when they are used; beyond, everything is
copied once for each doubling."""
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: spreads hashes that aren't random (Knuth, The Art of Computer Programming, 6.4)."""
_SHIFT: Final = np.uint64(20)
_ONE: Final = np.uint64(1)


class BlockPlaces(NamedTuple):
    """Where hashes are."""

    buckets: Ints
    places: Ints
    """Indexes into `values` and `ticks`; that of an unused entry, whose value is 0, for a hash that isn't there."""
    missing: NDArray[np.bool_]


class BlockTable:
    """Block hash → value and tick. A value of 0 means that nothing is there; hash 0 can't be kept.

    It grows by linear hashing (W. Litwin, VLDB 1980), a few buckets at a time, so that no call takes long however large
    it is. A hash whose bucket is full gets a place in an area beside the buckets.
    """

    def __init__(self, reserved: int = RESERVED) -> None:
        self.size = 0
        """Hashes in the table."""
        self._reserved = reserved
        self._rows: Blocks = np.zeros((0, PLACES), dtype=np.uint64)
        self._hashes: Blocks = np.zeros(0, dtype=np.uint64)
        self.values: Values = np.zeros(0, dtype=np.int32)
        self.ticks: Ticks = np.zeros(0, dtype=np.uint32)
        self._low = SPLIT
        """Buckets at the beginning of this doubling, a power of two."""
        self._split = 0
        """How many of them were split in two since."""
        self._has_more: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        """By bucket: whether some of its hashes are in `_more`."""
        self._more: dict[int, dict[int, int]] = {}
        """Bucket → hash → place, of the hashes whose bucket was full."""
        self._free: list[int] = []
        self._next_free = 0
        self._reserve(reserved)

    @property
    def buckets(self) -> int:
        """Buckets in use."""
        return self._low + self._split

    def find_blocks(self, blocks: Blocks) -> BlockPlaces:
        """Where these are."""
        buckets = self._bucket_of(blocks)
        # One truth value in eight bytes: below the lowest one that is set there are 8 bits for each place.
        alike = (self._rows.take(buckets, axis=0) == blocks[:, None]).view("<u8").ravel()
        within = np.bitwise_count(alike - _ONE) >> 3
        missing = within == PLACES
        places = buckets * PLACES + within
        if self._more:
            self._find_more(blocks, buckets, places, missing)
        places[missing] = self._unused
        return BlockPlaces(buckets, places, missing)

    def insert_blocks(self, blocks: Blocks, values: Values, ticks: Ticks) -> None:
        """Add hashes that aren't there, each once."""
        buckets = self._bucket_of(blocks)
        self.size += len(blocks)
        while len(blocks):
            free = (self._rows.take(buckets, axis=0) == 0).view("<u8").ravel()
            within = np.bitwise_count(free - _ONE) >> 3
            places = buckets * PLACES + within
            if (full := within == PLACES).any():
                places[full] = self._places_beside(blocks[full], buckets[full])
            self._hashes[places] = blocks
            self.values[places] = values
            self.ticks[places] = ticks
            # Two that want the same place: the last one has it, and the other one tries again.
            lost: NDArray[np.bool_] = np.not_equal(self._hashes.take(places), blocks)
            if not lost.any():
                break
            blocks, values, ticks, buckets = blocks[lost], values[lost], ticks[lost], buckets[lost]
        while self.size > MOST_LOAD * self.buckets:
            self._split_some()

    def delete_places(self, places: Ints) -> None:
        """Remove what is at these places, each once."""
        if self._more and (beside := places[places >= self._beside]).size:
            self._delete_beside(beside)
        self._hashes[places] = 0
        self.values[places] = 0
        self.size -= len(places)

    def used_places(self, first: int, buckets: int) -> Ints:
        """The places in use in so many buckets from `first` on, and of their hashes beside them."""
        last = min(first + buckets, self.buckets)
        within = np.flatnonzero(self._hashes[first * PLACES : last * PLACES]) + first * PLACES
        more = [
            place for at in np.flatnonzero(self._has_more[first:last]) for place in self._more[int(at) + first].values()
        ]
        return np.concatenate((within, np.array(more, dtype=np.int64))) if more else within

    def hashes_at(self, places: Ints) -> Blocks:
        return self._hashes.take(places)

    def _bucket_of(self, blocks: Blocks) -> Ints:
        spread = ((blocks * _ODD) >> _SHIFT).view(np.int64)
        buckets = spread & (2 * self._low - 1)
        buckets[buckets >= self._low + self._split] -= self._low
        return buckets

    def _find_more(self, blocks: Blocks, buckets: Ints, places: Ints, missing: NDArray[np.bool_]) -> None:
        for index in np.flatnonzero(missing & self._has_more.take(buckets)).tolist():
            place = self._more[buckets.item(index)].get(blocks.item(index))
            if place is not None:
                places[index] = place
                missing[index] = False

    def _places_beside(self, blocks: Blocks, buckets: Ints) -> list[int]:
        while len(self._free) + self._unused - self._next_free < len(blocks):
            self._reserve(2 * self._reserved)
        places: list[int] = []
        for block, bucket in zip(blocks.tolist(), buckets.tolist(), strict=True):
            if self._free:
                place = self._free.pop()
            else:
                place, self._next_free = self._next_free, self._next_free + 1
            self._more.setdefault(bucket, {})[block] = place
            self._has_more[bucket] = True
            places.append(place)
        return places

    def _delete_beside(self, places: Ints) -> None:
        blocks = self._hashes.take(places)
        for place, block, bucket in zip(
            places.tolist(), blocks.tolist(), self._bucket_of(blocks).tolist(), strict=True
        ):
            del self._more[bucket][block]
            if not self._more[bucket]:
                del self._more[bucket]
                self._has_more[bucket] = False
            self._free.append(place)

    def _split_some(self) -> None:
        low, first = self._low, self._split
        last = first + SPLIT
        if low + last > self._reserved:
            self._reserve(2 * self._reserved)
        rows = self._rows[first:last]
        leaves = (((rows * _ODD) >> _SHIFT).view(np.int64) & low) != 0
        for column in (self._hashes, self.values, self.ticks):
            stay = column[first * PLACES : last * PLACES].reshape(SPLIT, PLACES)
            leave = column[(low + first) * PLACES : (low + last) * PLACES].reshape(SPLIT, PLACES)
            np.multiply(stay, leaves, out=leave)
            stay -= leave
        full = np.flatnonzero(self._has_more[first:last]) + first
        beside = np.array([place for at in full.tolist() for place in self._more[at].values()], dtype=np.int64)
        again = self._hashes.take(beside), self.values.take(beside), self.ticks.take(beside)
        if len(beside):
            self.delete_places(beside)
        self._split = last
        if last == low:
            self._low, self._split = 2 * low, 0
        if len(beside):
            self.insert_blocks(*again)

    def _reserve(self, buckets: int) -> None:
        """Have addresses for so many buckets, and an eighth as many places beside them."""
        before, beside = self._reserved, getattr(self, "_beside", buckets * PLACES)
        self._reserved, self._beside = buckets, buckets * PLACES
        end = self._beside + buckets
        columns: list[NDArray[np.generic]] = []
        for column in (self._hashes, self.values, self.ticks):
            larger = np.zeros(end, dtype=column.dtype)
            if len(column):
                larger[: before * PLACES] = column[: before * PLACES]
                larger[self._beside : self._beside + before] = column[beside:]
            columns.append(larger)
        self._hashes, self.values, self.ticks = columns  # pyright: ignore[reportAttributeAccessIssue]
        self._rows = self._hashes[: self._beside].reshape(buckets, PLACES)
        moved = self._beside - beside
        self._more = {at: {block: place + moved for block, place in more.items()} for at, more in self._more.items()}
        self._free = [place + moved for place in self._free]
        self._next_free = self._next_free + moved if self._next_free else self._beside
        self._unused = end - 1
        has_more = np.zeros(buckets, dtype=np.bool_)
        has_more[: len(self._has_more)] = self._has_more
        self._has_more = has_more
