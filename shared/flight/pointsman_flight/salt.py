"""Renames block hashes and ids, so that a log doesn't show whether a known prompt was in it.

A block hash becomes the first half of its AES-128 encryption under a key of the deployment: equal hashes stay equal,
and different ones differ (two of ten million collide with a probability of 3 in a million). Without the key it can't be
computed from a prompt.
"""

import hashlib
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

KEY_BYTES: Final = 16
KEY_FILE: Final = "salt.key"
LEAST_HASH: Final = 2**48
"""Smaller numbers keep their value. A state holds block hashes beside other whole numbers, none of which is as large
but powers of two (sets of workers as bits): neither of them counts as a hash. One hash in 65,536 keeps its value."""
_AT_ONCE: Final = 2**15
"""Hashes that are encrypted together, in memory that is kept: new memory of this size comes from the operating system,
which takes longer than the encryption. A thread waits for the interpreter after each call."""

_LEAST: Final = 2**11
"""Hashes that the kept memory has room for at first. It grows with the calls, up to `_AT_ONCE`."""

Hashes = NDArray[np.uint64]
_ONE: Final = np.uint64(1)


class Salt:
    """One key."""

    def __init__(self, key: bytes) -> None:
        """`key` may have any length; 16 random bytes are enough."""
        # A scheduler without a flight log doesn't load it.
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import ECB

        self._key: Final = hashlib.blake2b(key, digest_size=KEY_BYTES, person=b"flight-blocks").digest()
        self._ids: Final = hashlib.blake2b(key, digest_size=32, person=b"flight-ids").digest()
        self.name: Final = hashlib.blake2b(key, digest_size=4, person=b"flight-name").hexdigest()
        """Tells whether two logs used the same key."""
        self._padded: NDArray[np.uint64] = np.zeros((0, 2), dtype="<u8")
        self._encrypted = bytearray()
        self._encryptor: Final = Cipher(AES(self._key), ECB()).encryptor()  # noqa: S305 - of single numbers

    def rename_hashes(self, hashes: Hashes) -> Hashes:
        """The renamed hashes, in a new array. Not for two threads at once."""
        if not len(hashes):
            return hashes
        size = min(max(len(hashes), _LEAST), _AT_ONCE)
        if len(self._padded) < size:
            self._padded = np.zeros((size, 2), dtype="<u8")
            self._encrypted = bytearray(2 * size * 8 + KEY_BYTES)
        renamed = np.empty(len(hashes), dtype=np.uint64)
        for start in range(0, len(hashes), _AT_ONCE):
            piece = hashes[start : start + _AT_ONCE]
            count = len(piece)
            padded = self._padded[:count]
            padded[:, 0] = piece
            self._encryptor.update_into(padded.data.cast("B"), self._encrypted)
            taken = renamed[start : start + count]
            taken[:] = np.frombuffer(self._encrypted, dtype="<u8", count=2 * count)[::2]
            # Without its lowest bit, a power of two is 0, a small number is smaller, and any other one stays large.
            kept = piece & (piece - _ONE)
            if kept.min() < LEAST_HASH:
                np.copyto(taken, piece, where=kept < LEAST_HASH)
        return renamed

    def rename_packed(self, hashes: bytes | bytearray) -> bytes:
        """Like `rename`, for hashes of 8 bytes each."""
        return (
            self.rename_hashes(np.frombuffer(hashes, dtype="<u8")).astype("<u8", copy=False).tobytes()
            if hashes
            else b""
        )

    def hash_id(self, text: str) -> str:
        """An id hashed: 16 hexadecimal digits. The empty one stays empty."""
        if not text:
            return text
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=self._ids)
        return digest.hexdigest()


def kept_in(directory: Path) -> Salt:
    """The salt of this directory: made at random when the directory has none, readable by its owner alone. Raises
    OSError."""
    file = directory / KEY_FILE
    directory.mkdir(parents=True, exist_ok=True)
    mine = directory / f"{KEY_FILE}.{os.getpid()}"
    if not file.exists():
        handle = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(handle, os.urandom(KEY_BYTES))
        finally:
            os.close(handle)
        try:
            os.link(mine, file)  # another scheduler that makes one at the same time is first, or this one is
        except FileExistsError:
            pass
        finally:
            mine.unlink()
    return Salt(file.read_bytes())
