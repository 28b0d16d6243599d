"""A model that decides whether two questions mean the same, in place of the gate of words."""

from collections.abc import Sequence
from typing import Protocol

from pointsman_semantic_cache.domain.finding import Found
from pointsman_semantic_cache.domain.store import Near


class GateUnavailable(Exception):
    """The model is missing or fails. The text is advice for the operator and never has a question."""

    def __init__(self, what: str, detail: str = "") -> None:
        super().__init__(f"{what} ({detail})" if detail else what)


class ModelGate(Protocol):
    """Compares two texts."""

    name: str

    async def compare_texts(self, one: str, other: str) -> float | None:
        """How likely both mean the same, asked in both orders, in [0,1]; None for texts that are too long for the
        model. Raises GateUnavailable."""
        ...

    async def close(self) -> None:
        """Release what it holds; it isn't used again."""
        ...


async def find_judged(gate: ModelGate, threshold: float, question: str, near: Sequence[Near]) -> Found:
    """Compare a question with close ones, the closest first. One whose text isn't known never passes. Raises
    GateUnavailable."""
    refused: list[str] = []
    for entry, similarity in near:
        if entry.question is None:
            refused.append("no text")
            continue
        likely = await gate.compare_texts(question, entry.question)
        if likely is None:
            refused.append("too long")
        elif likely >= threshold:
            return Found(entry, similarity, tuple(refused), f"{gate.name} {likely:.3f}")
        else:
            refused.append("model")
    return Found(None, 0.0, tuple(refused))
