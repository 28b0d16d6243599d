"""How long answers will probably be."""

import math
from collections.abc import Sequence
from typing import Final

from pointsman_plugins.selecting import Candidate, ModelQuestion

USUAL_OUTPUT_TOKENS: Final = 256
"""Assumed tokens of an answer without other information."""


def expected_output(question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
    """Output tokens that an answer will probably have with each model: as many as the model's answers have had,
    within the limit. A model without requests so far is assumed to answer like the others: otherwise it would look
    more expensive than they are, and never be chosen."""
    limit = question.journey.request.max_output_tokens
    lengths: list[float | None] = []
    known: list[float] = []
    for candidate in candidates:
        statistics = question.standing.statistics(candidate.name)
        length = None if statistics is None else statistics.output_tokens
        lengths.append(length)
        if length is not None:
            known.append(length)
    usual = sum(known) / len(known) if known else USUAL_OUTPUT_TOKENS
    most = math.inf if limit is None else limit
    return [min(most, usual if length is None else length) for length in lengths]
