"""Defaults of a tokenizer, for settings of processes that may have none."""

from typing import Final

CACHE_BYTES: Final = 64 * 2**20
"""Bytes that it keeps of texts and their tokens."""
