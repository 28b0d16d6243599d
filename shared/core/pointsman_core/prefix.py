"""Ties a chain of block hashes to a model.

The preprocessor hashes the prompt before a model is chosen (`model: auto`). The stage that settles the target folds
model and adapter into every hash, so that equal prompts for different models share no block.
"""

import hashlib
from functools import lru_cache
from typing import Final

HASH_BYTES: Final = 8


@lru_cache(maxsize=4096)
def salt(*scope: str) -> int:
    """A 64-bit number that stands for these names; different lists of names give different numbers."""
    text = "".join(f"{len(part)}:{part}" for part in scope)
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest(), "little"
    )


def salted(blocks: bytes, *scope: str) -> bytes:
    """`blocks` with `salt(scope)` folded into each hash (exclusive or, so that doing it twice undoes it)."""
    size = len(blocks)
    mask = salt(*scope).to_bytes(HASH_BYTES, "little") * (size // HASH_BYTES)
    return (int.from_bytes(blocks, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")
