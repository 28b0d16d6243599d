"""What is said piece by piece: texts of a conversation as one."""

import string
from collections.abc import Iterator, Sequence
from typing import Final

EDGE: Final = 512
"""Characters at each end of a text that may belong to what its neighbours begin or end."""
_PADDING: Final = string.punctuation + string.whitespace
_WORTH: Final = 16
"""Characters of padding at the ends of a text that keep its words from those of its neighbours."""


def joined(texts: Sequence[str]) -> Iterator[str]:
    """The texts run together, once with nothing between and once with a space. Of a long one only its ends take part:
    what stands inside it has been seen in it."""
    if len(texts) < 2:
        return
    texts = [_unpadded(text) for text in texts]
    pieces = [text if len(text) <= 2 * EDGE else f"{text[:EDGE]}\n#0#\n{text[-EDGE:]}" for text in texts]
    yield "".join(pieces)
    yield " ".join(pieces)


def _unpadded(text: str) -> str:
    words = text.strip(_PADDING)
    return words if len(text) - len(words) >= _WORTH else text
