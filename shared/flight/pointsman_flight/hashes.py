"""Block hashes of records. In a log they stand in a frame of their own before the records: all of them are renamed
together, and a frame of records without them shrinks well.
"""

from typing import TYPE_CHECKING, Final

HASH_BYTES: Final = 8

if TYPE_CHECKING:
    BlockHashes = bytes
else:

    class BlockHashes(bytes):
        """Hashes as a reader has them: 8 bytes each, little-endian. Written is only how many they are."""


class HashesTaken:
    """Gives the records of a frame the block hashes of the frame before."""

    def __init__(self) -> None:
        self._hashes = b""
        self._taken = 0

    def take_hashes(self, hashes: bytes) -> None:
        """Take the hashes of the next frame of records."""
        self._hashes, self._taken = hashes, 0

    def decode_record(self, kind: type, value: object) -> object:
        """The block hashes of a record. In format 1, they stand in the record. ValueError when there are too few."""
        if not isinstance(value, int):
            return kind(value)
        begin, self._taken = self._taken, self._taken + value * HASH_BYTES
        if value < 0 or self._taken > len(self._hashes):
            raise ValueError(f"{self._taken} bytes of block hashes are needed, but only {len(self._hashes)} are stored")
        return kind(self._hashes[begin : self._taken])
