"""Labels of texts by the closest of their examples."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pointsman_core.lexical import PLACES, Vector, rarity, vector

Rows = NDArray[np.float32]
"""A vector of length 1 in each row."""

NEAREST: Final = 5
"""Examples of a label that count for a text. Five were best of 1 to 30 when each topic of the built-in examples was
classified by the other topics."""


class Nearest:
    """The examples of some labels."""

    def __init__(self, rows: Rows, labels: Sequence[int]) -> None:
        """`labels`: the label of each row, from 0 on; those of one label stand together."""
        marks = np.asarray(labels)
        bounds = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(marks)]
        self._rows: Final = rows
        self._spans: Final = [slice(first, end) for first, end in pairwise(bounds)]

    def closeness(self, text: NDArray[np.float32]) -> list[float]:
        """For each label the mean cosine of the text and the label's `NEAREST` closest examples, in [-1,1]."""
        cosines = self._rows @ text
        return [float(np.sort(cosines[span])[-NEAREST:].mean()) for span in self._spans]


class Words:
    """Vectors of words, weighted by how few of some texts have each."""

    def __init__(self, texts: Sequence[str]) -> None:
        vectors = [vector(text) for text in texts]
        self._weights: Final = np.asarray(rarity(vectors), np.float32)
        self.rows: Final[Rows] = np.stack([self.row(each) for each in vectors])
        """One row for each text; zeros for a text without words."""

    def row(self, words: Vector) -> NDArray[np.float32]:
        """A vector of length 1, or zeros."""
        dense = np.zeros(PLACES, np.float32)
        for place, weight in words.items():
            dense[place] = weight
        weighted = dense * self._weights
        length = float(np.linalg.norm(weighted))
        return weighted / np.float32(length) if length else weighted


def shares(closeness: Sequence[float], least: float, margin: float) -> list[float]:
    """1 for the closest label, less for each other one: 0 for a label that is `margin` less close, and for all when
    none reaches `least`."""
    best = max(closeness)
    if best < least:
        return [0.0] * len(closeness)
    return [max(0.0, 1.0 - (best - each) / margin) for each in closeness]


def grouped(examples: Mapping[str, Sequence[str]]) -> tuple[list[str], list[int]]:
    """All examples, and the position of each one's label."""
    texts = [text for label in examples.values() for text in label]
    return texts, [position for position, label in enumerate(examples.values()) for _ in label]
