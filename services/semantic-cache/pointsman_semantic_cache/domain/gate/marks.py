"""Signs, operators and symbols: a text has few, and each may be what was asked."""

import unicodedata
from typing import Final

_SILENT: Final = frozenset(
    ".,;:!?\u00bf\u00a1\u2026\"'`\u201c\u201d\u201e\u00ab\u00bb\u2039\u203a\u2018\u2019()[]{}\u2014\u3002\u3001\uff0c\uff01\uff1f\uff1b\uff1a\u300c\u300d\u300e\u300f\u30fb"
)
"""Marks that separate or quote. Beside a space or another such mark they have no meaning of their own."""
_OPERATORS: Final = frozenset("+-*/%^=<>|&~")
_BEHIND_A_POINT: Final = frozenset("+*=<>|&~:^")
"""Characters that make a point or a colon before them an operator."""
_ALIKE: Final = str.maketrans({"\u2212": "-", "\u2013": "-", "\u2010": "-", "\u2011": "-", "\u2012": "-"})
_INVISIBLE: Final = frozenset(("Cf", "Cc"))
_SELECTORS: Final = frozenset("\ufe0e\ufe0f")


def plain(text: str) -> str:
    """A text with one code for what is one letter, and one minus."""
    return unicodedata.normalize("NFC", text).translate(_ALIKE)


def computes(text: str) -> bool:
    """Whether there is an operator in it."""
    return not _OPERATORS.isdisjoint(text)


def mark_at(text: str, place: int, *, computing: bool) -> str | None:
    """The mark that the character here is; None when it only separates. `computing`: as `computes` says of the text."""
    letter = text[place]
    if letter in _SELECTORS or unicodedata.category(letter) in _INVISIBLE:
        return None
    if letter not in _SILENT:
        return letter
    before, after = text[max(place - 1, 0) : place], text[place + 1 : place + 2]
    if letter in ".," and after.isdigit() and not before.isalnum():
        return letter
    if letter in "()[]{}":
        # Brackets order a calculation; in prose they mean nothing.
        return letter if computing or (before.isalnum() and after) else None
    if letter in ":.?" and after in _BEHIND_A_POINT:
        return letter
    if letter == "!" and (before.isdigit() or after.isalpha() or after in ("=", "(")):
        return letter
    if letter in "\"'" and before.isdigit():
        return letter
    return letter if before.isalnum() and after.isalnum() else None


def is_sign(text: str, place: int) -> bool:
    """Whether a minus here belongs to the number behind it."""
    before, after = text[max(place - 1, 0) : place], text[place + 1 : place + 2]
    return text[place] == "-" and after.isdecimal() and not (before.isalnum() or before in ("-", ")"))


def fraction(text: str) -> float | None:
    """The value of a letter that is a number, e.g. ½."""
    if len(text) != 1 or text.isdecimal() or text.isdigit():
        return None
    return unicodedata.numeric(text, None)
