"""Other ways to read a folded text: digits for letters, letters apart, tags between them, misspelt words, backwards,
upside down, shifted by thirteen."""

import codecs
import re
from collections.abc import Callable, Iterator
from typing import Final

from pointsman_guard.domain.expressions import Expressions
from pointsman_guard.domain.misspelling import HINT, spelt

_DIGITS: Final = {
    "0": "o", "1": "i", "3": "e", "4": "a", "5": "s", "7": "t", "8": "b", "9": "g", "@": "a", "$": "s", "!": "i",
    "|": "l", "+": "t", "(": "c",
}  # fmt: skip
_LEET: Final = str.maketrans(_DIGITS)
_LEET_L: Final = str.maketrans(_DIGITS | {"1": "l"})
_APART: Final = re.compile(r"(?:\b[A-Za-z][ \t.\-_*/\\|,~'\"]{1,3}){5,}[A-Za-z]\b")
_BETWEEN: Final = re.compile(r"[^A-Za-z\n]")
_INNER: Final = re.compile(r"(?<=[A-Za-z])[.\-_*~'\"|/\\](?=[A-Za-z])")
_L_FOR_I: Final = re.compile(r"\bl(?=[bcdfghjkmnpqrstvwxz])")
_I_FOR_L: Final = re.compile(r"(?<=[a-zI])I")
_FLIPPED: Final = str.maketrans("ɐqɔpǝɟƃɓɥᴉıɾʞlɯuodbɹsʇnʌʍxʎz˙", "abcdefgghiijklmnopqrstuvwxyz.")
_FLIPPED_HINT: Final = re.compile("[ɐɔǝɟƃɓɥᴉɾʞɯɹʇʌʍʎ][^.]{0,40}[ɐɔǝɟƃɓɥᴉɾʞɯɹʇʌʍʎ]")

_TAG: Final = re.compile(r"<(?:/?[A-Za-z][^<>]{0,80}|!--[^<>]{0,80}--)>")

_READINGS: Final[tuple[tuple[str, tuple[Callable[[str], str], ...]], ...]] = (
    (r"[A-Za-z]{3}", (lambda text: text[::-1], lambda text: codecs.encode(text, "rot13"))),
    (
        r"[A-Za-z][0134578@$!|+(][A-Za-z0134578@$!|+(]|[0134578@$!|][A-Za-z]{2}",
        (lambda text: text.translate(_LEET), lambda text: text.translate(_LEET_L)),
    ),
    (_APART.pattern, (lambda text: _APART.sub(lambda match: _BETWEEN.sub("", match[0]), text),)),
    (r"\bl[bcdfghjkmnpqrstvwxz]|[a-z]I", (lambda text: _I_FOR_L.sub("l", _L_FOR_I.sub("i", text)),)),
    (r"[A-Za-z]<(?:/?[A-Za-z]|!--)[^<>]{0,80}>", (lambda text: _TAG.sub("", text),)),
    (HINT, (spelt,)),
    (r"[A-Za-z]{1,4}[.\-_*~'\"|/\\][A-Za-z]{1,4}[.\-_*~'\"|/\\ ][A-Za-z]", (lambda text: _INNER.sub("", text),)),
)
"""The sign of each disguise, and the function that removes it."""
_HINTS: Final = Expressions([hint for hint, _ in _READINGS])


def disguises(text: str, folded: str) -> Iterator[str]:
    """Readings of a text besides the folded one. Each costs one pass; most texts have two."""
    for number in _HINTS.find_matching(folded):
        for read in _READINGS[number][1]:
            reading = read(folded)
            if reading != folded:
                yield reading
    if not text.isascii() and _FLIPPED_HINT.search(text):
        yield text.translate(_FLIPPED)[::-1]
