"""Corrects misspelt words that attacks need: with letters in another order, one missing or one extra."""

import re
from functools import lru_cache
from typing import Final

_WORDS: Final = (
    *("ignore", "disregard", "forget", "override", "bypass", "previous", "prior", "above", "earlier", "instruction"),
    *("instructions", "guidelines", "directives", "restrictions", "system", "prompt", "reveal", "repeat", "hidden"),
    *("rules", "unrestricted", "unfiltered", "developer", "everything", "before", "initial", "your", "pretend"),
    *("without", "limits", "filters", "policies", "safety", "commands", "orders"),
)
_WORD: Final = re.compile(r"[A-Za-z]{4,14}")
HINT: Final = (
    r"\b(?:i[nstruciom]{8,13}|p[romt]{4,7}s?|gu[idelns]{6,9}|dir[ectivs]{6,9}|re[strcion]{8,12}|r[ules]{3,5})\b"
)
"""The letters, in any order, of nouns that such attacks name; correct spellings too."""


def spelt(text: str) -> str:
    """The text with these words corrected."""
    return _WORD.sub(lambda match: _right(match[0]), text)


@lru_cache(maxsize=16384)
def _right(written: str) -> str:
    word = written.lower()
    if word in _KNOWN or (word[:-1] in _KNOWN and word[-1] in "sdr"):
        return written
    signature = "".join(sorted(word))
    right = _BY_LETTERS.get(signature)
    if right is not None and right[0] == word[0]:
        return right
    for variant in (word, *_without_one(word)):
        right = _VARIANTS.get(variant)
        if right is not None and abs(len(right) - len(word)) <= 1 and right[0] == word[0]:
            return right
    return written


def _without_one(word: str) -> list[str]:
    return [word[:at] + word[at + 1 :] for at in range(len(word))]


_KNOWN: Final = frozenset(
    (*_WORDS, "proper", "prompts", "system's", "ruler", "ruled", "rule", "order", "limit", "limited")
)
_BY_LETTERS: Final = {"".join(sorted(word)): word for word in _WORDS}
_VARIANTS: Final = {variant: word for word in _WORDS if len(word) > 5 for variant in (word, *_without_one(word))}
