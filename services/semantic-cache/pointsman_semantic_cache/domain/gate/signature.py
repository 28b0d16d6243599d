"""The gate's reduction of a text: numbers in place of its words, never the words."""

from typing import Final, NamedTuple
from zlib import crc32

_SHORTEST_STEM: Final = 4


class Signature(NamedTuple):
    """One text, as the gate compares it. Words are 32-bit hashes."""

    language: str
    """Script and, of Latin script, the language; `latin` alone where the language is unclear."""
    negations: int
    numbers: tuple[int, ...]
    """In their order."""
    units: frozenset[int]
    poles: frozenset[tuple[int, int]]
    words: tuple[int, ...]
    """Stems of the words that carry the meaning, and units, in their order."""
    synonyms: tuple[frozenset[int], ...]
    """For each of `words`: the groups of synonyms that contain it."""
    marks: tuple[int, ...]
    """Signs, operators and symbols with the word before each, single letters, and units whose case counts, in their
    order; and where there are several, the persons in theirs."""
    governed: frozenset[tuple[int, int]]
    """Words and numbers, and what stands before them: `GOVERNING`, a negation, or of a number its unit."""
    said: frozenset[tuple[int, int]]
    """Same as `SAID`."""
    always: frozenset[int]
    """Same as `ALWAYS`."""
    ended: bool
    """A word ends in -ed."""
    foreign: tuple[int, ...]
    """Words that matter although their meaning isn't known, in their order: small words of languages other than
    English, and all words in scripts other than Latin."""


def stem_of(word: str) -> str:
    """The stem of a word, roughly; a name loses only its plural."""
    for ending, instead, shortest in (
        ("ies", "y", 3), ("sses", "ss", 2), ("ing", "", 4), ("ed", "", 4), ("ly", "", 4), ("es", "e", 3), ("s", "", 3),
    ):  # fmt: skip
        if word.endswith(ending) and len(word) - len(ending) >= shortest and not word.endswith(("ss", "us", "is")):
            word = word[: len(word) - len(ending)] + instead
            break
    return word[:-1] if word.endswith("e") and len(word) > _SHORTEST_STEM else word


def hashed(text: str) -> int:
    """The number in place of a word."""
    return crc32(text.encode("utf-8", "surrogatepass"))
