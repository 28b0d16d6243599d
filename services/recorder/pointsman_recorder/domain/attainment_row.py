"""From the end of a request to its part in the sums of service levels. Times are whole microseconds: exact in any
order."""

from typing import Final, NamedTuple

from pointsman_contracts.attainment import AttainmentSum
from pointsman_contracts.response import RequestRejected, ResponseCompleted
from pointsman_contracts.service_level import UNATTAINABLE

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


def row_of_answer(end: ResponseCompleted) -> AttainmentSum | None:
    """The part of an answer; None for one without a service level."""
    promise = end.promise
    if promise is None:
        return None
    tokens = end.usage.completion_tokens if end.kept and end.usage is not None else 0
    promised_us = _whole_us(promise.ttft_ms)
    predicted_us, got_us = _whole_us(promise.predicted_ttft_ms), _whole_us(end.ttft_ms)
    compared = predicted_us is not None and got_us is not None
    return AttainmentSum(
        service_class=promise.service_class,
        tenant=end.identity.tenant if end.identity is not None else "",
        model=end.model or "",
        kept=int(end.kept is True),
        missed=int(end.kept is False),
        unknown=int(end.kept is None),
        tokens=tokens if 0 <= tokens <= MOST_TOKENS else 0,
        promised=int(promised_us is not None),
        promised_us=promised_us or 0,
        predicted=int(compared),
        predicted_us=(predicted_us or 0) if compared else 0,
        got_us=(got_us or 0) if compared else 0,
    )


def row_of_refusal(event: RequestRejected) -> AttainmentSum | None:
    """The part of a request that would have been late; None for one that was rejected for another reason."""
    if event.code != UNATTAINABLE:
        return None
    tenant = event.identity.tenant if event.identity is not None else ""
    return AttainmentSum(service_class="", tenant=tenant, model=event.model or "", refused=1)


def _whole_us(ms: float | None) -> int | None:
    return None if ms is None or not 0 <= ms <= LONGEST_MS else round(ms * 1000)
