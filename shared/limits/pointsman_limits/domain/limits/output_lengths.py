"""Learns the length of a model's answers to a tenant, and says how much to reserve for one that hasn't begun."""

from bisect import insort
from math import ceil, log2, sqrt
from typing import Final

from pointsman_plugins.preprocessing import Incoming

UNKNOWN_LENGTH: Final = 1024
"""Expected tokens of an answer while too few lengths are known."""
UNLIMITED_LENGTH: Final = 4096
"""Maximum tokens of an answer assumed for a request without a limit."""
_PER_DOUBLING: Final = 4
"""Classes of length between one and its double: an estimate is at most a fifth too high."""
_DECAY: Final = 0.999
"""An answer counts half after 700 more."""
_CERTAIN: Final = 1.645
"""Standard errors that are added to the fraction of answers, so that an estimate is too high in 95 of 100 cases."""
_MOST: Final = 4096
"""Most pairs of tenant and model; the least recently learnt one is dropped first."""


class _Lengths:
    """Lengths of one tenant and model: a histogram that fades."""

    __slots__ = ("classes", "order", "squares", "weight", "whole")

    def __init__(self) -> None:
        self.classes: dict[int, float] = {}
        self.order: list[int] = []
        """The classes, shortest first."""
        self.whole = 0.0
        """Sum of the classes."""
        self.weight = 1.0
        """Weight of the next answer: older answers weigh less because newer ones weigh more."""
        self.squares = 0.0


class OutputLengths:
    """Pure."""

    def __init__(self, part: float = 0.95) -> None:
        """`part` of the answers are no longer than the estimate, with 95 % confidence."""
        self._part: Final = part
        self._known: Final[dict[tuple[str, str], _Lengths]] = {}

    def learn_length(self, tenant: str, model: str, tokens: int) -> None:
        """An answer ended by itself."""
        known = self._known.pop((tenant, model), None)
        if known is None:
            if len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
            known = _Lengths()
        self._known[tenant, model] = known
        if known.weight > 1e9:
            for each in known.classes:
                known.classes[each] /= known.weight
            known.squares /= known.weight**2
            known.weight = 1.0
            known.whole = sum(known.classes.values())
        index, classes, weight = ceil(log2(max(1, tokens)) * _PER_DOUBLING), known.classes, known.weight
        if index not in classes:
            classes[index] = 0.0
            insort(known.order, index)
        classes[index] += weight
        known.whole += weight
        known.squares += weight**2
        known.weight = weight / _DECAY

    def expected_tokens(self, tenant: str, model: str) -> int | None:
        """Expected tokens; None while too few answers are known (about 55)."""
        known = self._known.get((tenant, model))
        if known is None:
            return None
        whole = known.whole
        # So many answers of one weight are as telling (Kish, Survey Sampling, 1965); the part that is wanted of them
        # has the standard error of a proportion.
        telling = whole * whole / known.squares
        part = self._part + _CERTAIN * sqrt(self._part * (1 - self._part) / telling)
        if part >= 1:
            return None
        wanted = part * whole
        for index in known.order:
            wanted -= known.classes[index]
            if wanted <= 1e-9 * whole:
                return ceil(2 ** (index / _PER_DOUBLING))
        return ceil(2 ** (known.order[-1] / _PER_DOUBLING))


def answer_length(incoming: Incoming, lengths: OutputLengths, tenant: str, configured: int | None) -> tuple[int, int]:
    """Tokens of one answer: expected, and at most as far as the request says. `configured` goes before what `lengths`
    learned of this tenant's answers (empty: of all)."""
    most = incoming.body.max_output_tokens
    if configured is not None:
        return (configured, configured) if most is None else (min(most, configured), most)
    expected = lengths.expected_tokens(tenant, incoming.model) or UNKNOWN_LENGTH
    return (expected, max(expected, UNLIMITED_LENGTH)) if most is None else (min(most, expected), most)
