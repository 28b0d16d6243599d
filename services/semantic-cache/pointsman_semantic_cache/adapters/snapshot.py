"""The answers of a process on disk, so that a restart doesn't begin with nothing."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from pointsman_semantic_cache.domain.entry import CacheEntry, Partition

FORMAT: Final = 3


class SnapshotUnreadable(Exception):
    """The file isn't a snapshot, or one of another version."""


def write(file: Path, entries: Iterable[tuple[Partition, CacheEntry]]) -> int:
    """Write the entries in place of the snapshot before; returns how many there are. Raises OSError."""
    kept: list[msgspec.Raw] = []
    for entry in entries:
        try:
            kept.append(msgspec.Raw(_ENCODER.encode(entry)))
        except UnicodeEncodeError:
            continue  # half of a surrogate pair has no UTF-8
    half = file.with_suffix(".half")
    half.write_bytes(zlib.compress(_ENCODER.encode((FORMAT, kept)), 1))
    # Answers are private: only this user may read the file.
    half.chmod(0o600)
    half.replace(file)
    return len(kept)


def read(file: Path) -> list[tuple[Partition, CacheEntry]]:
    """The entries that `write` wrote, in its order. Raises SnapshotUnreadable and OSError."""
    try:
        found, entries = _VERSIONED.decode(zlib.decompress(file.read_bytes()))
        if found != FORMAT:
            raise SnapshotUnreadable(f"its format is {found}, not {FORMAT}")
        return _ENTRIES.decode(entries)
    except (zlib.error, ValueError, TypeError) as error:
        raise SnapshotUnreadable(type(error).__name__) from error


def _written(value: object) -> bytes:
    """A vector, or the bytes of a message's field."""
    if isinstance(value, np.ndarray):
        return value.astype("<f4").tobytes()
    if isinstance(value, bytes):
        return bytes(value)
    raise NotImplementedError(type(value))


def _read(kind: type, data: object) -> object:
    if not isinstance(data, bytes):
        raise TypeError(f"Expected the bytes of {kind}")
    return np.frombuffer(data, "<f4").astype(np.float32)


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_written)
_VERSIONED: Final = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_ENTRIES: Final = msgspec.msgpack.Decoder(list[tuple[Partition, CacheEntry]], dec_hook=_read)
