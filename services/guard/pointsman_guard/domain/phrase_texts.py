"""The texts in which phrases are searched: encoded data is masked, and the parts of a conversation are joined."""

import re
import string
from collections.abc import Iterator, Sequence
from typing import Final

from pointsman_guard.domain.expressions import Expressions

WORTH: Final = 512
"""Minimum characters of a run to be masked."""
_RUN: Final = r"(?:[A-Za-z0-9+/=_-]{64,}[\r\n]{0,2}){8,}"
_RUNS: Final = Expressions([_RUN])
_SAMPLE: Final = 128
"""Characters at the beginning, middle and end of a run that distinguish data from words without spaces."""


def covered(text: str) -> str:
    """The text with zeros for the inside of such runs; places stay the same."""
    if len(text) < WORTH or not _RUNS.find_matching(text):
        return text
    pieces: list[str] = []
    place = 0
    for run, start, end in _RUNS.find_spans(0, text, 0):
        middle = len(run) // 2
        samples = (run[:_SAMPLE], run[middle : middle + _SAMPLE], run[-_SAMPLE:])
        if all(_is_data(sample) for sample in samples):
            pieces += (text[place : start + _SAMPLE], "0" * (end - start - 2 * _SAMPLE))
            place = end - _SAMPLE
    return "".join((*pieces, text[place:])) if pieces else text


def _is_data(sample: str) -> bool:
    return all(re.search(letters, sample) for letters in ("[0-9]", "[a-z]", "[A-Z]"))


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
