"""Outcomes of decisions as they are recorded. A replay makes them from its own outcomes, and compares."""

from collections.abc import Callable
from typing import Final, cast

import msgspec
import numpy as np
from xxhash import xxh3_64_intdigest

from pointsman_flight.records import RecordedOutcome
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.run import Run
from pointsman_scheduler.domain.outcome import Outcome, Postponed, Refused, Scheduled

DIGEST: Final = cast("Callable[[Floats | bytes, int], int]", xxh3_64_intdigest)  # it takes an array's memory, too
SCORES: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder(enc_hook=float).encode
"""Scores of a plugin may be numpy's numbers."""


def recorded(outcome: Outcome | Exception) -> RecordedOutcome:
    if isinstance(outcome, Scheduled):
        selection, sight = outcome.selection, outcome.sight
        legs = selection.legs
        return RecordedOutcome(
            kind="scheduled",
            endpoints=tuple([each.name for each in outcome.endpoints]),
            held=outcome.held,
            rank=selection.rank,
            legs=tuple([(leg, sight.names[run.chosen[0]]) for leg, run in legs.items()]) if legs else (),
            cached_tokens=outcome.cached_tokens,
            reasons=tuple(outcome.reasons),
            seen=DIGEST(sight.figures, 0),
            scored=scores_digest(outcome.runs),
        )
    if isinstance(outcome, Postponed):
        return RecordedOutcome("postponed", (outcome.worker,))
    if isinstance(outcome, Refused):
        seen = 0 if outcome.sight is None else DIGEST(outcome.sight.figures, 0)
        return RecordedOutcome(
            "refused", code=outcome.refusal.code or "", seen=seen, scored=scores_digest(outcome.runs)
        )
    return RecordedOutcome("failed", code=type(outcome).__name__)


def scores_digest(runs: list[Run]) -> int:
    """`RecordedOutcome.scored`."""
    digest = 0
    for run in runs:
        scores = run.scores
        if scores is not None:
            content = SCORES(scores) if isinstance(scores, list) else np.ascontiguousarray(scores)
            digest = DIGEST(content, digest)
    return digest
