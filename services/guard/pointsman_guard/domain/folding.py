"""Folds texts to their appearance: removes invisible characters, and replaces characters that resemble a Latin letter.

Detection works on the folded text; `offsets` maps its places back to the original. Look-alikes are those of Unicode's
UTS 39 (the tables of `confusable-homoglyphs`), and some that the table lacks.
"""

import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Final, cast

_LOOKS_LIKE: Final = {
    "в": "b", "г": "r", "к": "k", "м": "m", "н": "h", "т": "t", "п": "n", "и": "u", "й": "u", "я": "r", "ь": "b",
    "ъ": "b", "ш": "w", "щ": "w", "з": "e", "э": "e", "б": "6", "л": "n", "ц": "u", "ч": "y", "ж": "x",
    "β": "b", "δ": "d", "ε": "e", "η": "n", "θ": "o", "ι": "i", "κ": "k", "λ": "a", "μ": "u", "π": "n", "σ": "o",
    "τ": "t", "φ": "o", "χ": "x", "ω": "w", "ς": "c", "Δ": "A", "Λ": "A", "Σ": "E", "Ω": "O",
    "æ": "ae", "œ": "oe", "ß": "ss", "ø": "o", "đ": "d", "ħ": "h", "ł": "l", "ŧ": "t", "þ": "p", "ð": "d", "ı": "i",
    "ƒ": "f", "ɇ": "e", "ƨ": "s", "ɾ": "r", "ɢ": "g", "ʀ": "r", "ɴ": "n", "ʜ": "h", "ʟ": "l", "ʙ": "b", "ǫ": "q",
    "ʏ": "y", "ɪ": "i", "ᴀ": "a", "ᴄ": "c", "ᴅ": "d", "ᴇ": "e", "ꜰ": "f", "ᴊ": "j", "ᴋ": "k", "ᴍ": "m", "ᴏ": "o",
    "ᴘ": "p", "ꜱ": "s", "ᴛ": "t", "ᴜ": "u", "ᴠ": "v", "ᴡ": "w", "ᴢ": "z", "€": "e", "£": "l", "¥": "y", "¢": "c",
    "“": '"', "”": '"', "‘": "'", "’": "'", "…": "...", "–": "-", "—": "-", "−": "-",
    "ո": "n", "ց": "g", "ս": "u", "հ": "h", "զ": "q", "օ": "o", "ӏ": "l", "ԁ": "d", "ԝ": "w", "տ": "s",
}  # fmt: skip
_INVISIBLE: Final = frozenset(("Cf", "Mn", "Me", "Cc", "Cs"))
_KEPT: Final = "\t\n\r"
_FILLERS: Final = "\u115f\u1160\u3164\uffa0\u2800\u17b4\u17b5"
"""Unicode categories of invisible characters."""
_TAGS: Final = 0xE0000
"""Tag characters repeat ASCII invisibly."""
_ALPHABETS: Final = (0x1F1E6, 0x1F150, 0x1F170, 0x1F130)
"""Start of the emoji for the Latin letters A to Z."""


def fold(text: str) -> str:
    """The text as it looks. ASCII is returned unchanged."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFKD", text).translate(_table())


def offsets(text: str) -> list[int]:
    """For each character of `fold(text)`, and for its end, its place in `text`."""
    places: list[int] = []
    for place, character in enumerate(text):
        places.extend([place] * len(fold(character)))
    places.append(len(text))
    return places


@cache
def _table() -> dict[int, str | None]:
    # Loading the look-alikes takes some hundredths of a second, so it waits for the first text.
    table: dict[int, str | None] = dict(_look_alikes())
    for character, look in _LOOKS_LIKE.items():
        table[ord(character)] = look
        capital = character.upper()
        if len(capital) == 1 and capital not in _LOOKS_LIKE and not capital.isascii():
            table[ord(capital)] = look.upper()
    for start in _ALPHABETS:
        table |= {start + number: chr(ord("a") + number) for number in range(26)}
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) in _INVISIBLE and chr(code) not in _KEPT:
            table[code] = None
    table |= {_TAGS + code: chr(code) for code in range(0x20, 0x7F)}
    table |= {ord(character): None for character in _FILLERS}
    return table


def _look_alikes() -> Iterator[tuple[int, str]]:
    from confusable_homoglyphs import confusables

    data = cast("dict[str, list[dict[str, str]]]", confusables.confusables_data)  # pyright: ignore[reportUnknownMemberType]
    for character, looks in data.items():
        if len(character) != 1 or character.isascii():
            continue
        latin = [look["c"] for look in looks if look["c"].isascii() and look["c"]]
        if latin:
            look = min(latin, key=lambda look: _rank(character, look))
            # The table gives I and l the same look.
            yield ord(character), "I" if look == "l" and character.isupper() else look


def _rank(character: str, look: str) -> tuple[bool, bool, int]:
    return not look.isalpha(), look.isupper() != character.isupper(), len(look)
