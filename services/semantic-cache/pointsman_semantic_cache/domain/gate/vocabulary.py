"""The words of `vocabulary.toml`, as the gate looks them up. Read once, when the module is imported."""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from pydantic import BaseModel, ConfigDict


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Units(_Strict):
    forms: tuple[str, ...]
    data: str
    caseless: str


class _Opposites(_Strict):
    strict: tuple[str, ...]
    loose: tuple[str, ...]


class _Synonyms(_Strict):
    groups: tuple[str, ...]


class _Words(_Strict):
    negations: str
    number_words: dict[str, str]
    units: _Units
    opposites: _Opposites
    synonyms: _Synonyms
    function_words: dict[str, str]


_WORDS: Final = _Words.model_validate(
    tomllib.loads(files("pointsman_semantic_cache.domain.gate").joinpath("vocabulary.toml").read_text("utf-8"))
)

NEGATIONS: Final = frozenset(_WORDS.negations.split())
NUMBER_WORDS: Final[Mapping[str, str]] = {
    word: value for value, words in _WORDS.number_words.items() for word in words.split()
}
"""Word → the number in digits."""

_UNITS: Final = [unit.split("|") for unit in _WORDS.units.forms]
UNITS: Final[Mapping[str, str]] = {form: unit[0] for unit in _UNITS for form in unit}
"""Form of a unit → its first form."""
SHORT_UNITS: Final = frozenset(form for form in UNITS if len(form) <= 2 and form.isalpha()) | {"am", "pm", "min", "bar"}
"""Units that are other words too, unless a number stands before them."""
DATA_UNITS: Final = frozenset(_WORDS.units.data.split())
CASELESS_UNITS: Final = frozenset(_WORDS.units.caseless.split())


def _poles() -> dict[str, tuple[int, int]]:
    poles: dict[str, tuple[int, int]] = {}
    for dimension, group in enumerate((*_WORDS.opposites.strict, *_WORDS.opposites.loose)):
        for side, words in enumerate(group.split()):
            for word in words.split("|"):
                poles.setdefault(word, (dimension, side))
    return poles


POLES: Final[Mapping[str, tuple[int, int]]] = _poles()
"""Word → its dimension, and its side among the opposites of that dimension."""
STRICT: Final = len(_WORDS.opposites.strict)
"""Dimensions below this need the same words in both texts."""
WHO_WHEN_WHERE: Final = STRICT + len(_WORDS.opposites.loose) - 1
"""The dimension of question words: a text without one is not the opposite of a text with one."""
HOW: Final = POLES["how"]


def _synonyms() -> dict[str, frozenset[int]]:
    groups: dict[str, set[int]] = {}
    for number, group in enumerate(_WORDS.synonyms.groups):
        for word in group.split("|"):
            groups.setdefault(word, set()).add(number)
    return {word: frozenset(numbers) for word, numbers in groups.items()}


SYNONYMS: Final[Mapping[str, frozenset[int]]] = _synonyms()
"""Word → the groups of words that it may stand for."""
FUNCTION_WORDS: Final[Mapping[str, frozenset[str]]] = {
    language: frozenset(words.split()) for language, words in _WORDS.function_words.items()
}
"""Language → its function words."""
