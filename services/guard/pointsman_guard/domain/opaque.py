"""Long runs of encoded data within a text. They are decoded; phrases aren't searched in their raw form, which would
cost a hundred times what prose does: every few characters of theirs begin another one."""

import re
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
