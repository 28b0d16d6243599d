"""What a tokenizer has when nobody says otherwise, for settings of processes that may have none."""

from typing import Final

CACHE_BYTES: Final = 64 * 2**20
"""What it keeps of texts and their tokens."""
