"""Long runs of encoded data within a text. They are decoded; no phrase is looked for in them as they stand, which costs
a hundred times what prose does: every few characters of theirs begin another one."""

import re
from typing import Final

from pointsman_guard.domain.expressions import Expressions

WORTH: Final = 512
"""Characters from which on a run is covered."""
_RUN: Final = r"(?:[A-Za-z0-9+/=_-]{64,}[\r\n]{0,2}){8,}"
_RUNS: Final = Expressions([_RUN])
_SAMPLE: Final = 128
"""Characters of a run, at its beginning, its middle and its end, that tell data from words without spaces."""


def covered(text: str) -> str:
    """The text with what is inside such runs replaced by zeros; places stay."""
    if len(text) < WORTH or not _RUNS.among(text):
        return text
    pieces: list[str] = []
    place = 0
    for run, start, end in _RUNS.spans(0, text, 0):
        middle = len(run) // 2
        samples = (run[:_SAMPLE], run[middle : middle + _SAMPLE], run[-_SAMPLE:])
        if all(_is_data(sample) for sample in samples):
            pieces += (text[place : start + _SAMPLE], "0" * (end - start - 2 * _SAMPLE))
            place = end - _SAMPLE
    return "".join((*pieces, text[place:])) if pieces else text


def _is_data(sample: str) -> bool:
    return all(re.search(letters, sample) for letters in ("[0-9]", "[a-z]", "[A-Z]"))
