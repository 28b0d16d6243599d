"""From the end of a request to its part in the sums of service levels. Times are whole microseconds: exact in any
order."""

from typing import Final, NamedTuple

from msgspec.structs import replace

from pointsman_contracts.attainment import AttainmentSum
from pointsman_contracts.response import ResponseCompleted
from pointsman_core.service_level import level_result

LONGEST_MS: Final = 86_400_000.0
"""A longer time, or a negative one, counts as unknown: sums of it wouldn't fit into the table."""
MOST_TOKENS: Final = 2**32
"""As above, of one answer."""


class AttainmentAnswer(NamedTuple):
    """The content of an answer."""

    rows: list[AttainmentSum]
    more: bool
    """Whether there are more rows."""
    since_ms: int
    until_ms: int


def row_of_end(end: ResponseCompleted) -> AttainmentSum | None:
    """The part of a request that ended; None for one without a service level."""
    promise = end.promise
    if promise is None:
        return None
    tenant = end.identity.tenant if end.identity is not None else ""
    row = AttainmentSum(service_class=promise.service_class, tenant=tenant, model=end.model or "")
    result = level_result(end)
    if result == "refused":
        return replace(row, refused=1)
    tokens = end.usage.completion_tokens if end.kept and end.usage is not None else 0
    promised_us = _whole_us(promise.ttft_ms)
    predicted_us, got_us = _whole_us(promise.predicted_ttft_ms), _whole_us(end.ttft_ms)
    compared = predicted_us is not None and got_us is not None
    return replace(
        row,
        kept=int(result == "kept"),
        missed=int(result == "missed"),
        unknown=int(result == "unknown"),
        tokens=tokens if 0 <= tokens <= MOST_TOKENS else 0,
        promised=int(promised_us is not None),
        promised_us=promised_us or 0,
        predicted=int(compared),
        predicted_us=(predicted_us or 0) if compared else 0,
        got_us=(got_us or 0) if compared else 0,
    )


def _whole_us(ms: float | None) -> int | None:
    return None if ms is None or not 0 <= ms <= LONGEST_MS else round(ms * 1000)
