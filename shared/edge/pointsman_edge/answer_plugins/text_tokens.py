"""Texts of answers to token ids, by the tokenizer of a pool."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

TextTokens = Callable[[str], bytes]
"""The token ids of a text without special tokens, 4 bytes each, little-endian."""


def read_text_tokens(folder: str) -> TextTokens:
    """The tokenizer in this folder, read once for each state of its file. Raises OSError or ValueError."""
    path = Path(folder)
    return _read(path, (path / "tokenizer.json").stat().st_mtime)


@lru_cache(maxsize=8)
def _read(folder: Path, changed: float) -> TextTokens:
    del changed
    # The library takes 0.1 s to load: only configurations that use it load it.
    from pointsman_models.tokenization.prompt_tokenizer import read_folder
    from pointsman_models.tokenization.segments import SegmentEncoder

    found = read_folder(folder)
    return SegmentEncoder(found.tokenizer, found.pre_tokenizer, 2**20).encode_text
