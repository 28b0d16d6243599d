"""Divides the time of one engine in one period. Pure.

At each moment, the answers that run on the engine divide it by their paces. A pace is the weight of the tokens that the
engine computes for an answer, divided by the time that it takes for them: before the first token those of the prompt,
then those of the answer. Cached tokens weigh nothing. An output token weighs twice a prompt token by default, as in the
service of a client in "Fairness in Serving Large Language Models" (https://arxiv.org/abs/2401.00588).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from pointsman_contracts.engine_time import EngineTimeSum

_HOUR_US: Final = 3_600_000_000
ANSWERS: Final = "answers"
UNKNOWN: Final = "unknown"
IDLE: Final = "idle"


class EngineTimeAnswer(NamedTuple):
    """The content of an answer."""

    rows: list[EngineTimeSum]
    more: bool
    """Whether there are more rows."""
    total_us: int
    total_nanos: int


class Spent(NamedTuple):
    """Microseconds of a period."""

    divided_us: int
    """With an answer whose tokens are known."""
    unknown_us: int
    idle_us: int


def divide(spent: Spent, groups: Sequence[tuple[EngineTimeSum, float]], hour_nanos: int) -> list[EngineTimeSum]:
    """The rows of a period, from answers of each client and model with their part of the divided time beside others.

    Their time and cost add up to those of the engine: both are rounded down to whole microseconds and nano-dollars. The
    rest is `idle`."""
    whole = sum(part for _, part in groups)
    rows: list[EngineTimeSum] = []
    unseen = 0
    for row, part in groups:
        if row.state == UNKNOWN:
            unseen += row.answers
            continue
        us = int(spent.divided_us * (part / whole)) if whole else 0
        if us or row.answers:
            rows.append(replace(row, time_us=us, time_nanos=us * hour_nanos // _HOUR_US))
    if unseen or spent.unknown_us:
        rows.append(_of_none(UNKNOWN, spent.unknown_us, spent.unknown_us * hour_nanos // _HOUR_US, unseen))
    whole_us = sum(spent)
    idle_us = whole_us - sum(row.time_us for row in rows)
    idle_nanos = whole_us * hour_nanos // _HOUR_US - sum(row.time_nanos for row in rows)
    if idle_us or idle_nanos:
        rows.append(_of_none(IDLE, idle_us, idle_nanos))
    return rows


def _of_none(state: str, us: int, nanos: int, answers: int = 0) -> EngineTimeSum:
    """A row of no client."""
    return EngineTimeSum(
        state=state, tenant="", subject="", key="", model="", answers=answers, time_us=us, time_nanos=nanos
    )
