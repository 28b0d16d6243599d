"""Whether small words make two texts with the same large ones different questions."""

from typing import Final

from pointsman_semantic_cache.domain.gate.relations import ASKED_BY_A_NOUN, LOOSE, MODAL, PRESENT, SOME, TENSE
from pointsman_semantic_cache.domain.gate.signature import Signature, hashed, stem_of
from pointsman_semantic_cache.domain.gate.vocabulary import HOW, WHO_WHEN_WHERE

_NOUNS: Final = frozenset(hashed(stem_of(noun)) for noun in ASKED_BY_A_NOUN)
_ASIDE: Final = {TENSE: {PRESENT}}
"""The value of a relation that a text leaves out."""


def relations_differ(one: Signature, other: Signature) -> bool:
    """Whether something is given where it was taken, was where it is, is some where it was all."""
    same_words = set(one.words) == set(other.words)
    return (
        one.always != other.always
        or _said_otherwise(one, other, same_words=same_words)
        or _governed_otherwise(one, other, same_words=same_words)
    )


def foreign_words_differ(one: Signature, other: Signature) -> bool:
    """Whether the `foreign` words of the two differ: the gate knows of these only that they matter."""
    if "latin-en" in (one.language, other.language):
        return False
    if one.foreign != other.foreign:
        return True
    # The language of neither is known: an extra word in one may be a negation.
    return one.language == other.language == "latin" and set(one.words) != set(other.words) and _within(one, other)


def _within(one: Signature, other: Signature) -> bool:
    mine, others = set(one.words), set(other.words)
    return mine <= others or others <= mine


def _said_otherwise(one: Signature, other: Signature, *, same_words: bool) -> bool:
    if (SOME in one.said) != (SOME in other.said):
        return True
    asked, other_asked = _asked(one), _asked(other)
    if same_words and asked != other_asked and not _NOUNS.intersection(one.words):
        return True
    how = HOW in one.poles and HOW in other.poles
    for dimension in {dimension for dimension, _ in one.said | other.said}:
        sides = {side for of, side in one.said if of == dimension}
        other_sides = {side for of, side in other.said if of == dimension}
        if sides == other_sides:
            continue
        if sides and other_sides:
            return True
        # "How do I" is "how can I"; "do dogs" isn't "can dogs".
        if (
            same_words
            and dimension in (TENSE, MODAL)
            and not how
            and (sides | other_sides) - _ASIDE.get(dimension, set())
        ):
            return True
    return same_words and one.ended != other.ended and not any(of == TENSE for of, _ in one.said | other.said)


def _asked(signature: Signature) -> set[int]:
    return {side for of, side in signature.poles if of == WHO_WHEN_WHERE}


def _governed_otherwise(one: Signature, other: Signature, *, same_words: bool) -> bool:
    mine, others = _by_word(one), _by_word(other)
    for word in mine.keys() & others.keys():
        left, right = mine[word], others[word]
        if left != right and (same_words or left - LOOSE != right - LOOSE):
            return True
    return False


def _by_word(signature: Signature) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for word, relation in signature.governed:
        found.setdefault(word, set()).add(relation)
    return found
