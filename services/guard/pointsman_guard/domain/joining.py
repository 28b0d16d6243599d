"""Joins the texts of a conversation, for phrases that are spread over several."""

import string
from collections.abc import Iterator, Sequence
from typing import Final

EDGE: Final = 512
"""Characters at each end of a text that may belong to a phrase of its neighbours."""
_PADDING: Final = string.punctuation + string.whitespace
_WORTH: Final = 16
"""Characters of padding at the ends of a text that keep its words from those of its neighbours."""


def joined(texts: Sequence[str]) -> Iterator[str]:
    """The texts run together, once with nothing between and once with a space. Only the ends of a long one are used:
    its inside has been searched already."""
    if len(texts) < 2:
        return
    texts = [_unpadded(text) for text in texts]
    pieces = [text if len(text) <= 2 * EDGE else f"{text[:EDGE]}\n#0#\n{text[-EDGE:]}" for text in texts]
    yield "".join(pieces)
    yield " ".join(pieces)


def _unpadded(text: str) -> str:
    words = text.strip(_PADDING)
    return words if len(text) - len(words) >= _WORTH else text
