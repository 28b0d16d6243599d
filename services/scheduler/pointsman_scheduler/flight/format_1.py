"""Outcomes as logs of format 1 have them."""

import zlib
from array import array
from itertools import chain
from typing import Final

import msgspec
import numpy as np

from pointsman_flight.records import RecordedOutcome
from pointsman_scheduler.domain.outcome import Outcome, Refused, Scheduled
from pointsman_scheduler.flight.outcomes import recorded

FORMAT: Final = 1


def recorded_then(outcome: Outcome | Exception) -> RecordedOutcome:
    now = recorded(outcome)
    if not isinstance(outcome, Scheduled | Refused):
        return now
    signals = matched = scores = 0
    if outcome.sight is not None:
        figures = outcome.sight.figures
        signals, matched = zlib.crc32(figures[:-1].data), zlib.crc32(figures[-1].data)
    for run in outcome.runs:
        if isinstance(run.scores, list):
            scores = zlib.crc32(array("d", chain.from_iterable(run.scores)), scores)
        elif run.scores is not None:
            scores = zlib.crc32(np.ascontiguousarray(run.scores).data, scores)
    return msgspec.structs.replace(now, signals=signals, matched=matched, scores=scores, seen=0, scored=0)
