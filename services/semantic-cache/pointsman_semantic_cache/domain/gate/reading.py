"""What the gate keeps of a text: numbers that stand for its words, never the words."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from pointsman_semantic_cache.domain.gate.vocabulary import (
    FUNCTION_WORDS,
    NEGATING_PREFIXES,
    NEGATIONS,
    NUMBER_WORDS,
    OPENERS,
    POLES,
    SHORT_UNITS,
    SYNONYMS,
    UNITS,
)

_TOKEN: Final = re.compile(
    r"[\w.+-]+@[\w-]+\.[\w.]+"  # address
    r"|https?://\S+"
    r"|(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:st|nd|rd|th)?(?![\w/-]*[/-]\d)(?=[^\w]|[a-zA-Z°%µ]{1,4}\b|_|$)"
    r"|[^\W_]+(?:[._/:#+@-][^\W_]+)*\+{0,2}#?"
    r"|[$€£¥₹¢%°]"
)
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_SENTENCE: Final = re.compile(r"[.!?:;\n\"“(]\s*$")
_QUOTED: Final = re.compile(r"\"([^\"\n]{1,80})\"|`([^`\n]{1,80})`|“([^”\n]{1,80})”")
_APOSTROPHES: Final = str.maketrans({"\u2019": "'", "\u2018": "'"})
_TITLED: Final = 0.6
"""Of a text with more capitalised words than this, capitals say nothing."""
_FEW: Final = 3
_SHORTEST: Final = 2
"""Letters of a word that carries any meaning."""
_SHORTEST_STEM: Final = 4
_SCRIPTS: Final = (
    ("latin", 0x0041, 0x024F), ("greek", 0x0370, 0x03FF), ("cyrillic", 0x0400, 0x052F), ("hebrew", 0x0590, 0x05FF),
    ("arabic", 0x0600, 0x06FF), ("devanagari", 0x0900, 0x097F), ("thai", 0x0E00, 0x0E7F), ("kana", 0x3040, 0x30FF),
    ("han", 0x3400, 0x9FFF), ("hangul", 0xAC00, 0xD7AF),
)  # fmt: skip


class Signature(NamedTuple):
    """One text, as the gate compares it. Words are 32-bit hashes."""

    language: str
    """Script and, of Latin script, the language; `latin` alone where that can't be told."""
    negations: int
    numbers: tuple[int, ...]
    """In their order."""
    units: frozenset[int]
    poles: frozenset[tuple[int, int]]
    words: tuple[int, ...]
    """Stems of the words that carry the meaning, in their order."""
    names: frozenset[int]
    """Those of `words` that name something: capitalised, quoted, identifiers, codes."""
    opposites: frozenset[int]
    """What is left of words without a negating prefix."""
    synonyms: tuple[frozenset[int], ...]
    """Of each of `words`: the groups of synonyms that it is in."""
    caseless: bool
    """No word is capitalised, so that names can't be told."""


class _Token(NamedTuple):
    text: str
    first: bool
    """It begins a sentence."""
    after_number: bool


def read(text: str) -> Signature:
    """The signature of a text."""
    text = text.translate(_APOSTROPHES)
    tokens = list(_tokens(text))
    words = [token for token in tokens if token.text[0].isalpha()]
    capitals = [token for token in words if token.text[0].isupper()]
    titled = len(words) > _FEW and sum(token.text.istitle() for token in words) > _TITLED * len(words)
    quoted = {word.lower() for match in _QUOTED.finditer(text) for word in re.findall(r"\w+", match.group(0))}
    language = _language(text, [token.text.lower() for token in words])
    functions = FUNCTION_WORDS.get(language.partition("-")[2], FUNCTION_WORDS["en"])
    negations, numbers, units, poles = 0, list[int](), set[int](), set[tuple[int, int]]()
    stems, names, opposites, groups = list[int](), set[int](), set[int](), list[frozenset[int]]()
    for token in tokens:
        word = token.text.lower().removesuffix("'s")
        plain = word.replace("'", "")
        if plain in NEGATIONS:
            negations += 1
            continue
        number = _number(word, token)
        if number is not None:
            numbers.append(_hash(number))
            continue
        if word in UNITS and (token.after_number or word not in SHORT_UNITS):
            units.add(_hash(UNITS[word]))
            continue
        stem = stem_of(word)
        pole = POLES.get(word) or POLES.get(stem)
        if pole is not None:
            poles.add(pole)
        named = titled or word in quoted or _names(token)
        function = (word in functions or stem in functions or len(word) < _SHORTEST) and not _acronym(token)
        if function:
            continue
        code = _hash(stem)
        stems.append(code)
        groups.append(SYNONYMS.get(word) or SYNONYMS.get(stem) or frozenset())
        if named:
            names.add(code)
        opposites.update(
            _hash(stem_of(word.removeprefix(prefix).lstrip("-")))
            for prefix in NEGATING_PREFIXES
            if word.startswith(prefix) and len(word) - len(prefix) >= _SHORTEST_STEM
        )
    return Signature(
        language,
        negations,
        tuple(numbers),
        frozenset(units),
        frozenset(poles),
        tuple(stems),
        frozenset(names),
        frozenset(opposites),
        tuple(groups),
        all(token.first for token in capitals) and not names,
    )


def stem_of(word: str) -> str:
    """What forms of a word share, roughly; a name loses nothing but its plural."""
    for ending, instead, shortest in (
        ("ies", "y", 3), ("sses", "ss", 2), ("ing", "", 4), ("ed", "", 4), ("ly", "", 4), ("es", "e", 3), ("s", "", 3),
    ):  # fmt: skip
        if word.endswith(ending) and len(word) - len(ending) >= shortest and not word.endswith(("ss", "us", "is")):
            word = word[: len(word) - len(ending)] + instead
            break
    return word[:-1] if word.endswith("e") and len(word) > _SHORTEST_STEM else word


def _tokens(text: str) -> Iterable[_Token]:
    previous: re.Match[str] | None = None
    contracted = re.sub(r"(\w)'(?!s\b)(\w)", r"\1\2", text)
    for match in _TOKEN.finditer(contracted):
        between = contracted[previous.end() if previous else 0 : match.start()]
        first = previous is None or _SENTENCE.search(between) is not None
        after = previous is not None and previous.group()[-1:].isdigit() and not between.strip()
        yield _Token(match.group(), first, after)
        previous = match


def _number(word: str, token: _Token) -> str | None:
    if word in NUMBER_WORDS and not (word == "second" and token.after_number):
        return NUMBER_WORDS[word]
    bare = word.replace(",", "")
    if _NUMBER.fullmatch(bare):
        return f"{float(bare):.12g}"
    return bare if _NUMBER.fullmatch(bare[:-2]) and bare[-2:] in ("st", "nd", "rd", "th") else None


def _acronym(token: _Token) -> bool:
    return len(token.text) >= _SHORTEST and token.text.isupper()


def _names(token: _Token) -> bool:
    text = token.text
    if any(letter.isdigit() for letter in text) or any(mark in text for mark in "._/:#+@"):
        return True
    if not text[0].isupper():
        return any(letter.isupper() for letter in text)
    return not token.first or any(letter.isupper() for letter in text[1:]) or text.lower() not in OPENERS


def _language(text: str, words: Sequence[str]) -> str:
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


def _hash(text: str) -> int:
    return crc32(text.encode("utf-8", "surrogatepass"))


def ordered(values: Sequence[int]) -> list[int]:
    """Each value where it comes first."""
    return list(dict.fromkeys(values))
