"""Frames: the unit of writing, checking and cutting.

    length u32 | flags u32 | chain u64 | check u32 | payload

Little-endian. `chain` is XXH3-64 of length, flags and payload, seeded with the frame before (the header's frame with
0): a changed, removed, repeated or moved frame breaks it. `check` is CRC-32 of the 16 bytes before it: a changed
length isn't taken for a torn tail. A payload is msgpack, of records an array of arrays of them (before format 3, an
array of them); where flag 2 is set, it is block hashes of the records in the next frame. Where flag 1 is set, it is in
zlib's format, which ISA-L writes in a fifth of zlib's time.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import xxhash
from isal import isal_zlib

MAGIC: Final = b"PMFLIGHT"
FORMAT: Final = 4
"""Before it, records had a copy of each field of a message."""
NESTED: Final = 3
"""From this format on, the records of a frame are an array of arrays."""
MOST_BYTES: Final = 64 * 2**20
"""Most bytes in a payload."""
DEFLATED: Final = 1
HASHES: Final = 2

_SMALL: Final = 512
_LARGE: Final = 2**16
_SAMPLE: Final = 4096
"""Bytes from the middle of a large payload that tell whether it shrinks."""
_WORTH: Final = 0.75

_HEAD: Final = struct.Struct("<IIQ")
_CHECK: Final = struct.Struct("<I")
_SIZED: Final = struct.Struct("<II")
HEAD_BYTES: Final = _HEAD.size + _CHECK.size


class FrameDamagedError(Exception):
    """The bytes at `offset` aren't what was written there."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.offset: Final = offset
        self.problem: Final = problem


class Frame(NamedTuple):
    """One frame as read."""

    offset: int
    end: int
    chain: int
    payload: bytes
    hashes: bool = False
    """Whether the payload is the block hashes of the next frame's records."""


class Torn(NamedTuple):
    """The rest of a file whose last frame wasn't written to its end."""

    offset: int
    size: int


def framed(payload: bytes, chain: int, flags: int = 0) -> tuple[bytes, int]:
    """The payload as a frame after one with this chain. Returns the bytes and the frame's own chain."""
    if len(payload) > _SMALL and (_repeat if flags & HASHES else _shrinks)(payload):
        smaller = _deflated(payload)
        if len(smaller) < len(payload):
            payload, flags = smaller, flags | DEFLATED
    sized = _SIZED.pack(len(payload), flags)
    digest = xxhash.xxh3_64(sized, seed=chain)
    digest.update(payload)
    chain = digest.intdigest()
    head = _HEAD.pack(len(payload), flags, chain)
    return b"".join((head, _CHECK.pack(zlib.crc32(head)), payload)), chain


def _deflated(payload: bytes) -> bytes:
    return isal_zlib.compress(payload, 1)  # pyright: ignore[reportUnknownMemberType] - untyped in isal


def _shrinks(payload: bytes) -> bool:
    """Whether deflating may be worth its time."""
    if len(payload) <= _LARGE:
        return True
    middle = len(payload) // 2
    return len(_deflated(payload[middle : middle + _SAMPLE])) <= _WORTH * _SAMPLE


def _repeat(hashes: bytes) -> bool:
    """The same of block hashes. Those of different prompts don't shrink: trying costs as much CPU as everything else
    that is done for the log. One in 64 hashes, by its value, shows how many come again."""
    numbers = np.frombuffer(hashes, dtype="<u8")
    sample = numbers[numbers & 63 == 0]
    return len(set(sample.tolist())) <= _WORTH * len(sample)


def frames(content: bytes | memoryview, chain: int, offset: int = 0) -> Iterator[Frame | Torn]:
    """The frames from `offset` on; last a `Torn` where the file ends inside a frame. Raises FrameDamagedError."""
    view, end = memoryview(content), len(content)
    while offset < end:
        if offset + HEAD_BYTES > end:
            yield Torn(offset, end - offset)
            return
        head = bytes(view[offset : offset + _HEAD.size])
        length, flags, claimed = _HEAD.unpack(head)
        (check,) = _CHECK.unpack_from(view, offset + _HEAD.size)
        if zlib.crc32(head) != check:
            if not any(view[offset:end]):  # allocated and never written
                yield Torn(offset, end - offset)
                return
            raise FrameDamagedError(offset, "the head of a frame was changed")
        start = offset + HEAD_BYTES
        if start + length > end:
            yield Torn(offset, end - offset)
            return
        payload = view[start : start + length]
        digest = xxhash.xxh3_64(head[: _SIZED.size], seed=chain)
        digest.update(payload)
        if digest.intdigest() != claimed:
            raise FrameDamagedError(offset, "a frame was changed, or another one stood before it")
        chain = claimed
        content = _inflated(payload, offset) if flags & DEFLATED else bytes(payload)
        yield Frame(offset, start + length, chain, content, bool(flags & HASHES))
        offset = start + length


def _inflated(payload: memoryview, offset: int) -> bytes:
    inflater = zlib.decompressobj()
    content = inflater.decompress(payload, MOST_BYTES)
    if inflater.unconsumed_tail or not inflater.eof:
        raise FrameDamagedError(offset, f"a frame is larger than {MOST_BYTES} bytes")
    return content
