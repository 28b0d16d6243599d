"""Whether two texts may have the same answer."""

from typing import Final

from pointsman_semantic_cache.domain.gate.relating import foreign_words_differ, relations_differ
from pointsman_semantic_cache.domain.gate.signature import Signature
from pointsman_semantic_cache.domain.gate.vocabulary import STRICT, WHO_WHEN_WHERE


def difference(one: Signature, other: Signature) -> str | None:
    """Why two texts can't have the same answer, in one word; None when the gate finds no reason."""
    if _languages_differ(one.language, other.language):
        return "language"
    if one.negations != other.negations:
        return "negation"
    if one.numbers != other.numbers:
        return "number"
    if one.units != other.units:
        return "unit"
    if one.marks != other.marks:
        return "symbol"
    if _opposed(one, other):
        return "opposite"
    if relations_differ(one, other) or foreign_words_differ(one, other):
        return "relation"
    return None if _agree(one, other) else "words"


def _languages_differ(one: str, other: str) -> bool:
    if one == other:
        return False
    # A few words of Latin script don't show which language it is.
    return one.partition("-")[0] != other.partition("-")[0] or "latin" not in (one, other)


def _opposed(one: Signature, other: Signature) -> bool:
    for dimension in {dimension for dimension, _ in one.poles | other.poles}:
        sides = {side for of, side in one.poles if of == dimension}
        other_sides = {side for of, side in other.poles if of == dimension}
        if sides == other_sides:
            continue
        if (sides and other_sides) or dimension < STRICT:
            return True
        if dimension != WHO_WHEN_WHERE and (sides | other_sides) != {_SAID_OR_NOT}:
            return True
    return False


_SAID_OR_NOT: Final = 0
"""The side of a dimension that a text may leave out."""


def _agree(one: Signature, other: Signature) -> bool:
    """Whether the words that carry the meaning are the same in the same order, or stand for each other."""
    if len(one.words) != len(other.words):
        return False
    groups = zip(one.synonyms, other.synonyms, strict=True)
    return all(
        mine == theirs or mine_in & theirs_in
        for mine, theirs, (mine_in, theirs_in) in zip(one.words, other.words, groups, strict=True)
    )
