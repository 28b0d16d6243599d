"""Texts as vectors of the words that they have: what a prompt and the described strengths of a model share.

Lexical, not semantic: "fix my loop" and "programming" share nothing. Words and their beginnings are hashed into a fixed
number of places (Weinberger et al., "Feature hashing for large scale multitask learning", 2009), so that a vector can
travel where the text may not; a short text can be guessed from its vector, a long one can't be read from it.
"""

import base64
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from zlib import crc32

from pydantic import JsonValue

from pointsman_core.plugins import Key

PROMPT_VECTOR: Final[Key[dict[str, JsonValue]]] = Key("prompt_vector", dict[str, JsonValue])
"""The user's last words as a vector: `kind` (`lexical`) and `values`, the base64 form of one signed byte for each
place. Absent for requests without text."""
LEXICAL: Final = "lexical"

PLACES: Final = 512
_WORD: Final = re.compile(r"[^\W_]+")
_SHORTEST: Final = 3
_STEM: Final = 4
"""Letters of a word that count apart, so that `write`, `writes` and `writing` share something."""
_COMMON: Final = frozenset((
    "about", "and", "are", "but", "can", "could", "for", "from", "had", "has", "have", "her", "him", "his", "how",
    "its", "not", "our", "please", "she", "should", "that", "the", "their", "them", "then", "there", "these",
    "they", "this", "was", "were", "what", "when", "where", "which", "who", "why", "will", "with", "would", "you",
    "your",
))  # fmt: skip
_STEP: Final = 127

Vector = Mapping[int, float]
"""Place → weight; places without any are left out."""


def vector(text: str) -> Vector:
    """The words of a text and their beginnings, each by one plus the logarithm of how often it occurs."""
    terms: Counter[str] = Counter()
    for word in _WORD.findall(text.lower()):
        if len(word) < _SHORTEST or word in _COMMON:
            continue
        terms[word] += 1
        if len(word) >= _STEM:
            terms[word[:_STEM] + "-"] += 1
    places: dict[int, float] = {}
    for term, count in terms.items():
        digest = crc32(term.encode("utf-8", "surrogatepass"))
        # The sign makes terms that meet in one place cancel out rather than add up.
        weight = (1.0 + math.log(count)) * (1.0 if digest & 1 else -1.0)
        place = (digest >> 1) % PLACES
        places[place] = places.get(place, 0.0) + weight
    return {place: weight for place, weight in places.items() if weight}


def rarity(vectors: Iterable[Vector]) -> list[float]:
    """Weight of each place by how few of these texts have it: ln((1 + n) / (1 + df)) + 1 (the smooth idf
    of scikit-learn)."""
    found = list(vectors)
    having = Counter(place for one in found for place in one)
    return [math.log((1 + len(found)) / (1 + having[place])) + 1 for place in range(PLACES)]


def similarity(one: Vector, other: Vector, weights: Sequence[float]) -> float:
    """Cosine of the angle between two texts under these weights of places, in [-1,1]; 0 for a text without words."""
    product = sum(weight * other[place] * weights[place] ** 2 for place, weight in one.items() if place in other)
    length = _length(one, weights) * _length(other, weights)
    return product / length if length else 0.0


def encode(places: Vector) -> str:
    """A vector for the wire, scaled to signed bytes."""
    largest = max((abs(weight) for weight in places.values()), default=1.0)
    dense = array("b", bytes(PLACES))
    for place, weight in places.items():
        dense[place] = round(weight / largest * _STEP)
    return base64.b64encode(dense.tobytes()).decode("ascii")


def decode(text: str) -> Vector:
    """The vector that `encode` wrote. Raises ValueError for anything else."""
    dense = array("b", base64.b64decode(text, validate=True))
    if len(dense) != PLACES:
        raise ValueError(f"a vector has {PLACES} places, this one {len(dense)}")
    return {place: weight / _STEP for place, weight in enumerate(dense) if weight}


def _length(places: Vector, weights: Sequence[float]) -> float:
    return math.sqrt(sum((weight * weights[place]) ** 2 for place, weight in places.items()))
