"""From the end of a request to its entry in the usage ledger, and from there to sums."""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from pointsman_contracts.batch import charged_attempt, created_ms_of
from pointsman_contracts.cascade import ESCALATED
from pointsman_contracts.identity import Identity
from pointsman_contracts.money import NANOS, nanos
from pointsman_contracts.response import ResponseCompleted, UnusedAnswer, Usage
from pointsman_contracts.usage import UsageRecord, UsageSum
from pointsman_recorder.domain.numbers import MOST, MOST_DOLLARS, calendar_ms

_ERROR = 400
DAY_MS: Final = 86_400_000


class Owed(msgspec.Struct, frozen=True, gc=False):
    """A record that the ledger is to get."""

    key: str
    tenant: str
    message: bytes
    at_ms: int
    record: UsageRecord | None = None
    """The message's content, where it was just made."""


_ANONYMOUS: Final = Identity()
_NOTHING: Final = Usage()


def records_of(end: ResponseCompleted) -> tuple[UsageRecord, ...]:
    """The entries of a request, from its end. Every request has one, even without usage. The answers of
    a cascade that the client didn't get have further ones.

    Raises ValueError for one with a number that the tables don't hold.
    """
    key, at_ms = _charged_as(end)
    target = end.target
    own = checked(
        UsageRecord(
            key=key,
            request_id=end.request_id,
            at_ms=at_ms,
            identity=end.identity or _ANONYMOUS,
            model=end.served or (target.model if target is not None else ""),
            pool=target.pool if target is not None else None,
            provider=target.provider if target is not None else None,
            api=end.api,
            stream=end.stream,
            status=end.status,
            outcome=end.outcome,
            usage=end.usage or _NOTHING,
            cost=end.cost,
            cost_nanos=end.cost_nanos,
        )
    )
    return (own, *(_unused_record(own, each, place) for place, each in enumerate(end.unused or ())))


def _unused_record(own: UsageRecord, answer: UnusedAnswer, place: int) -> UsageRecord:
    """The record of an answer of the same request that the client didn't get."""
    cost_nanos = answer.cost_nanos
    return checked(
        replace(
            own,
            key=f"{own.key}/{place}",
            model=answer.served or answer.target.model,
            pool=answer.target.pool,
            provider=answer.target.provider,
            outcome=ESCALATED,
            usage=answer.usage or _NOTHING,
            cost=None if cost_nanos is None else cost_nanos / NANOS,
            cost_nanos=cost_nanos,
        )
    )


def _charged_as(end: ResponseCompleted) -> tuple[str, int]:
    """Key and time of a request's record. An attempt of a batch's line has the same in each of its requests, so that it
    is charged once: another replica repeats an attempt whose result was lost."""
    batch = "" if end.identity is None else end.identity.batch
    if batch and end.outcome == "ok":
        attempt, created_ms = charged_attempt(end.request_id, batch), created_ms_of(batch)
        if attempt is not None and created_ms is not None:
            return attempt, created_ms
    return f"{end.request_id}@{end.source}/{end.pool}/{end.sequence}/{end.at_ms}", end.at_ms


def checked(record: UsageRecord) -> UsageRecord:
    """The record. Raises ValueError for one with a number that the tables don't hold."""
    usage, cost_nanos = record.usage, record.cost_nanos or 0
    for number in (
        record.at_ms,
        cost_nanos,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.reasoning_tokens,
    ):
        if not -MOST <= number <= MOST:
            break
    else:
        if record.cost is None or -MOST_DOLLARS <= record.cost <= MOST_DOLLARS:
            return record
    raise ValueError(f"the record {record.key!r} has a number above {MOST}")


USAGE_COLUMNS: Final = (
    "requests",
    "failed",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "estimated",
    "cost_nanos",
    "unpriced",
)
"""The fields of `UsageSum` that are added up."""


class Sums(NamedTuple):
    """The content of an answer."""

    rows: list[UsageSum]
    more: bool
    """Whether there are more rows."""
    unpriced_models: list[str]


def counted(records: Iterable[UsageRecord]) -> UsageSum:
    """The part of records of one row in its sums; without dimensions and `cost`."""
    requests = failed = prompt = cached = completion = reasoning = estimated = nanos_in_all = unpriced = 0
    for record in records:
        usage = record.usage
        cost = cost_of(record)
        if record.outcome != ESCALATED:
            # The request has another record.
            requests += 1
            failed += record.outcome != "ok" or record.status >= _ERROR
        prompt += usage.prompt_tokens
        cached += usage.cached_tokens
        completion += usage.completion_tokens
        reasoning += usage.reasoning_tokens
        estimated += usage.estimated
        if cost is not None:
            nanos_in_all += cost
        elif usage.prompt_tokens + usage.completion_tokens > 0:
            unpriced += 1
    return UsageSum(
        requests=requests,
        failed=failed,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        reasoning_tokens=reasoning,
        estimated=estimated,
        cost_nanos=nanos_in_all,
        unpriced=unpriced,
    )


def cost_of(record: UsageRecord) -> int | None:
    """Nano-dollars; None without a price. Records of earlier versions have only dollars."""
    if record.cost_nanos is not None or record.cost is None:
        return record.cost_nanos
    return nanos(record.cost)


def day_of(at_ms: int) -> str:
    """The day (UTC), as `2026-03-01`; a time that no calendar has is the nearest one that it has."""
    return _day(calendar_ms(at_ms) // DAY_MS)


@lru_cache(maxsize=64)
def _day(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_MS / 1000, UTC).date().isoformat()
