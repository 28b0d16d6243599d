"""Chained hashes of the prompt's blocks: equal hashes mean equal prefixes.

Each hash is XXH3-64 of its block, seeded with the hash before it, so it stands for everything from the start of the
prompt (the chain of NVIDIA Dynamo's router, with the parent as the seed). XXH3 isn't keyed: a client that chooses its
prompts can make collisions. Therefore the chain of a tenant starts from the tenant's own salt.
"""

import sys
from array import array
from struct import iter_unpack
from typing import Final

import xxhash

LIMIT: Final = 4096
"""Most blocks of a prompt; a longer prompt is described by its first ones."""


def chain(stream: bytes, block_bytes: int, root: int, limit: int = LIMIT) -> bytes:
    """Hashes of the full blocks of `stream`, 8 bytes each, little-endian. `root` is the hash before the first; at most
    `limit` blocks are described."""
    digest, parent = xxhash.xxh3_64_intdigest, root
    full = stream[: min(len(stream) // block_bytes, limit) * block_bytes]
    hashes = array("Q", [parent := digest(block, parent) for (block,) in iter_unpack(f"{block_bytes}s", full)])
    if sys.byteorder == "big":
        hashes.byteswap()
    return hashes.tobytes()
