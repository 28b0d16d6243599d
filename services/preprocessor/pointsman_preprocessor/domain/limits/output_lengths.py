"""How long answers of a model get: what to reserve for one that hasn't begun."""

from math import ceil, log2
from typing import Final

_PER_DOUBLING: Final = 4
"""Classes of length between one and its double: an estimate is at most a fifth too high."""
_DECAY: Final = 0.999
"""An answer counts half after 700 more."""
_ENOUGH: Final = 20
"""Answers from which on something is known."""
_MOST_MODELS: Final = 1024


class OutputLengths:
    """A histogram that forgets, for each model."""

    def __init__(self, part: float = 0.95) -> None:
        """`part` of the answers are no longer than the estimate."""
        self._part: Final = part
        self._models: Final[dict[str, dict[int, float]]] = {}
        self._weights: Final[dict[str, float]] = {}
        self._seen: Final[dict[str, int]] = {}

    def learn(self, model: str, tokens: int) -> None:
        """An answer ended by itself."""
        classes = self._models.get(model)
        if classes is None:
            if len(self._models) >= _MOST_MODELS:
                return
            classes = self._models[model] = {}
        # Older answers weigh less because newer ones weigh more.
        weight = self._weights.get(model, 1.0) / _DECAY
        if weight > 1e9:
            for each in classes:
                classes[each] /= weight
            weight = 1.0
        self._weights[model] = weight
        index = ceil(log2(max(1, tokens)) * _PER_DOUBLING)
        classes[index] = classes.get(index, 0.0) + weight
        self._seen[model] = self._seen.get(model, 0) + 1

    def expected(self, model: str) -> int | None:
        """Tokens; None while too little is known."""
        if self._seen.get(model, 0) < _ENOUGH:
            return None
        classes = self._models[model]
        wanted = self._part * sum(classes.values())
        for index in sorted(classes):
            wanted -= classes[index]
            if wanted <= 1e-9:
                return ceil(2 ** (index / _PER_DOUBLING))
        return ceil(2 ** (max(classes) / _PER_DOUBLING))
