"""From a text to its signature."""

import re
from collections.abc import Sequence
from typing import Final

from pointsman_semantic_cache.domain.gate.marks import fraction, plain
from pointsman_semantic_cache.domain.gate.relations import (
    ALWAYS,
    COUNTED,
    FOREIGN,
    GOVERNING,
    NEGATED,
    PERSON,
    SAID,
    TO_ME,
)
from pointsman_semantic_cache.domain.gate.signature import Signature, hashed, stem_of
from pointsman_semantic_cache.domain.gate.tokens import Token, tokens
from pointsman_semantic_cache.domain.gate.vocabulary import (
    CASELESS_UNITS,
    DATA_UNITS,
    FUNCTION_WORDS,
    NEGATIONS,
    NUMBER_WORDS,
    POLES,
    SHORT_UNITS,
    SYNONYMS,
    UNITS,
)

_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_APOSTROPHES: Final = str.maketrans({"\u2019": "'", "\u2018": "'"})
_SHORTEST: Final = 2
"""Letters of a word that carries any meaning."""
_LONGEST_SYMBOL: Final = 4
"""Letters of a unit's symbol."""


def read(text: str) -> Signature:
    return _Reader(plain(text.translate(_APOSTROPHES))).read_signature()


class _Reader:
    """One text on its way to a signature."""

    def __init__(self, text: str) -> None:
        self._tokens = list(tokens(text))
        words = [token for token in self._tokens if token.text[0].isalpha() and not token.marks]
        self._language = language_of(text, [token.text.lower() for token in words])
        self._functions = FUNCTION_WORDS.get(self._language.partition("-")[2], FUNCTION_WORDS["en"])
        self._negations = 0
        self._numbers: list[int] = []
        self._units: set[int] = set()
        self._poles: set[tuple[int, int]] = set()
        self._stems: list[int] = []
        self._persons: list[int] = []
        self._groups: list[frozenset[int]] = []
        self._marks: list[int] = []
        self._governed: set[tuple[int, int]] = set()
        self._governing: list[int] = []
        self._said: set[tuple[int, int]] = set()
        self._always: set[int] = set()
        self._ended = False
        self._before = ""
        self._last = ""
        self._currency: int | None = None

    def read_signature(self) -> Signature:
        latin = self._language.startswith("latin")
        foreign: list[int] = []
        for token in self._tokens:
            if token.marks:
                # Which side of a word it is on is part of what it says.
                self._marks.append(hashed(f"{token.text}\0{self._last}"))
                continue
            word = token.text.lower()
            if not latin or word in FOREIGN:
                foreign.append(hashed(word))
            self._take_token(token, word)
            self._before = word
        if len(set(self._persons)) > 1:
            self._marks.append(hashed(f"persons {self._persons}"))
        return Signature(
            language=self._language,
            negations=self._negations,
            numbers=tuple(self._numbers),
            units=frozenset(self._units),
            poles=frozenset(self._poles),
            words=tuple(self._stems),
            synonyms=tuple(self._groups),
            marks=tuple(self._marks),
            governed=frozenset(self._governed),
            said=frozenset(self._said),
            always=frozenset(self._always),
            ended=self._ended,
            foreign=tuple(foreign),
        )

    def _take_token(self, token: Token, word: str) -> None:
        acronym = _acronym(token)
        if not acronym:
            self._relate(word)
        if word in NEGATIONS:
            self._negations += 1
            self._governing.append(NEGATED)
            return
        number = _number(word, token)
        if number is not None:
            self._counted(number)
            return
        if self._unit(token, word):
            return
        stem = stem_of(word)
        pole = POLES.get(word) or POLES.get(stem)
        if pole is not None:
            self._poles.add(pole)
        governs = None if acronym else GOVERNING.get(word)
        if len(word) < _SHORTEST:
            self._letter(token)
        elif acronym or not (word in self._functions or stem in self._functions):
            self._word(word, stem)
        if governs is not None:
            self._governing.append(governs)

    def _relate(self, word: str) -> None:
        said = SAID.get(word)
        if said is not None and not (word in ("me", "us") and self._before in TO_ME):
            self._said.add(said)
            if said[0] == PERSON:
                self._persons.append(said[1])
        always = ALWAYS.get(word)
        if always is not None:
            self._always.add(always)

    def _counted(self, number: str) -> None:
        code = hashed(number)
        self._numbers.append(code)
        self._govern(code)
        self._last = number
        if self._currency is not None:
            self._governed.add((hashed(f"of {number}"), self._currency))
            self._currency = None

    def _unit(self, token: Token, word: str) -> bool:
        exact = (token.after_number or word in DATA_UNITS) and _case_counts(token.text)
        if exact:
            self._marks.append(hashed(token.text))
        if word not in UNITS or not (token.after_number or word not in SHORT_UNITS):
            return False
        unit = hashed(UNITS[word])
        self._units.add(unit)
        self._stems.append(unit)
        self._groups.append(frozenset())
        if token.after_number:
            self._governed.add((hashed(f"of {self._last}"), unit))
            self._governing.append(COUNTED)
        elif not word.isalpha():
            self._currency = unit
        self._govern(unit)
        return True

    def _letter(self, token: Token) -> None:
        """A single one: an article, a pronoun, or a name."""
        article = token.text == "a" or (token.text == "A" and token.first)
        if token.text in ("I", "i") or (article and not token.alone):
            return
        self._marks.append(hashed(token.text))
        self._govern(hashed(token.text))

    def _word(self, word: str, stem: str) -> None:
        code = hashed(stem)
        self._stems.append(code)
        self._groups.append(SYNONYMS.get(word) or SYNONYMS.get(stem) or frozenset())
        self._ended = self._ended or word.endswith("ed")
        self._last = stem
        self._govern(code)

    def _govern(self, code: int) -> None:
        self._governed.update((code, relation) for relation in self._governing)
        self._governing.clear()


def _number(word: str, token: Token) -> str | None:
    if word in NUMBER_WORDS and not (word == "second" and token.after_number):
        return NUMBER_WORDS[word]
    part = fraction(word)
    if part is not None:
        return f"{part:.12g}"
    bare = word.replace(",", "")
    if _NUMBER.fullmatch(bare):
        return f"{float(bare):.12g}"
    return bare if _NUMBER.fullmatch(bare[:-2]) and bare[-2:] in ("st", "nd", "rd", "th") else None


def _case_counts(text: str) -> bool:
    """Whether a symbol is another one in other letters: mW and MW, Gb and GB."""
    if len(text) > _LONGEST_SYMBOL or not text.isalpha() or text.islower():
        return False
    word = text.lower()
    if word in DATA_UNITS:
        return not text.isupper() and text != "kB"
    return word not in CASELESS_UNITS


def _acronym(token: Token) -> bool:
    return len(token.text) >= _SHORTEST and token.text.isupper()


_SCRIPTS: Final = (
    ("latin", 0x0041, 0x024F), ("greek", 0x0370, 0x03FF), ("cyrillic", 0x0400, 0x052F), ("hebrew", 0x0590, 0x05FF),
    ("arabic", 0x0600, 0x06FF), ("devanagari", 0x0900, 0x097F), ("thai", 0x0E00, 0x0E7F), ("kana", 0x3040, 0x30FF),
    ("han", 0x3400, 0x9FFF), ("hangul", 0xAC00, 0xD7AF),
)  # fmt: skip


def language_of(text: str, words: Sequence[str]) -> str:
    """Like `Signature.language`. `words`: of the text, in small letters."""
    counts: dict[str, int] = {}
    for letter in text:
        code = ord(letter)
        if letter.isalpha():
            script = next((name for name, low, high in _SCRIPTS if low <= code <= high), "other")
            counts[script] = counts.get(script, 0) + 1
    script = max(counts, key=lambda name: counts[name]) if counts else ""
    if script != "latin":
        return "kana" if script == "han" and counts.get("kana") else script
    scores = {language: sum(word in listed for word in words) for language, listed in FUNCTION_WORDS.items()}
    best = max(scores, key=lambda language: scores[language])
    others = [score for language, score in scores.items() if language != best]
    return f"latin-{best}" if scores[best] > max(others) else "latin"
