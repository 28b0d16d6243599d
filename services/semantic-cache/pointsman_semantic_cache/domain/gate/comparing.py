"""Whether two texts may have the same answer."""

from typing import Final

from pointsman_semantic_cache.domain.gate.relating import foreign_words_differ, relations_differ
from pointsman_semantic_cache.domain.gate.signature import Signature, ordered
from pointsman_semantic_cache.domain.gate.vocabulary import STRICT, WHO_WHEN_WHERE


def difference(one: Signature, other: Signature) -> str | None:
    """What keeps two texts from having the same answer, in a word; None: nothing that the gate sees."""
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
    if _names_differ(one, other):
        return "entity"
    if relations_differ(one, other) or foreign_words_differ(one, other):
        return "relation"
    return "swap" if _swapped(one, other) else None


def _languages_differ(one: str, other: str) -> bool:
    if one == other:
        return False
    # A few words of Latin script tell no language.
    return one.partition("-")[0] != other.partition("-")[0] or "latin" not in (one, other)


def _opposed(one: Signature, other: Signature) -> bool:
    mine, others = dict.fromkeys(one.words), dict.fromkeys(other.words)
    if any(word in others and word not in mine for word in one.opposites):
        return True
    if any(word in mine and word not in others for word in other.opposites):
        return True
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


def _names_differ(one: Signature, other: Signature) -> bool:
    """Not the same names, or in another order: from Paris to London isn't from London to Paris."""
    names = one.names | other.names
    mine = ordered([word for word in one.words if word in names])
    return mine != ordered([word for word in other.words if word in names])


def _swapped(one: Signature, other: Signature) -> bool:
    """One text with a word exchanged for another, or with its words in another order: embeddings find those closest,
    and what is exchanged is what was asked."""
    mine, others = set(one.words), set(other.words)
    if mine == others:
        return ordered(one.words) != ordered(other.words)
    left, right = mine - others, others - mine
    shared = len(mine & others)
    if not left or not right:
        return False
    if len(left) != len(right) or shared < len(left):
        # Names in small letters can't be told: nothing that is known by no other word may be exchanged then.
        return one.caseless and other.caseless and shared >= 1 and not _stands_for(one, left, other, right)
    return not _stands_for(one, left, other, right)


def _stands_for(one: Signature, left: set[int], other: Signature, right: set[int]) -> bool:
    """Whether a word on one side may stand for one on the other."""
    groups = {group for word, found in zip(one.words, one.synonyms, strict=True) if word in left for group in found}
    opposite = {
        group for word, found in zip(other.words, other.synonyms, strict=True) if word in right for group in found
    }
    return bool(groups & opposite)
