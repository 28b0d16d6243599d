"""From the end of a request to its entry in the usage ledger, and from there to sums."""

from datetime import UTC, datetime
from typing import NamedTuple

from pointsman_contracts.identity import Identity
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.usage import UsageRecord

_ERROR = 400
_LAST_MS = 253_402_300_799_000
"""The end of the year 9999."""


def record_of(completed: ResponseCompleted) -> UsageRecord:
    """The entry of a request. There is one for each, whether it used anything or not."""
    target = completed.target
    return UsageRecord(
        key=f"{completed.request_id}@{completed.source}/{completed.pool}/{completed.sequence}/{completed.at_ms}",
        request_id=completed.request_id,
        at_ms=completed.at_ms,
        identity=completed.identity or Identity(),
        model=completed.served or (target.model if target is not None else ""),
        pool=target.pool if target is not None else None,
        provider=target.provider if target is not None else None,
        api=completed.api,
        stream=completed.stream,
        status=completed.status,
        outcome=completed.outcome,
        usage=completed.usage or Usage(),
        cost=completed.cost,
    )


class Counted(NamedTuple):
    """What a record adds to the sums of its row, in the order of `USAGE_COLUMNS`."""

    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    estimated: int
    cost: float
    unpriced: int


USAGE_COLUMNS = Counted._fields


def counted(record: UsageRecord) -> Counted:
    """What a record adds."""
    usage = record.usage
    used = usage.prompt_tokens + usage.completion_tokens > 0
    return Counted(
        requests=1,
        failed=int(record.outcome != "ok" or record.status >= _ERROR),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        estimated=int(usage.estimated),
        cost=record.cost or 0.0,
        unpriced=int(used and record.cost is None),
    )


def day_of(at_ms: int) -> str:
    """The day (UTC), as `2026-03-01`; a time that no calendar has is the nearest one that it has."""
    return datetime.fromtimestamp(min(max(at_ms, 0), _LAST_MS) / 1000, UTC).date().isoformat()
