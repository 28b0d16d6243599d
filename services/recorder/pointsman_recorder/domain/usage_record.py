"""From the end of a request to its entry in the usage ledger, and from there to sums."""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from pydantic import StrictInt, StrictStr

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import Target
from pointsman_contracts.message import Part
from pointsman_contracts.money import nanos
from pointsman_contracts.response import Usage
from pointsman_contracts.usage import UsageRecord, UsageSum
from pointsman_recorder.domain.numbers import MOST, Dollars, Number, calendar_ms
from pointsman_recorder.domain.reading import reader

_ERROR = 400
DAY_MS: Final = 86_400_000


class _End(Part):
    """The facts of a `ResponseCompleted` that a record has. The time to read them is half of that for all facts."""

    source: StrictStr
    pool: StrictStr
    sequence: StrictInt
    request_id: str
    at_ms: int
    target: Target | None = None
    identity: Identity | None = None
    served: str | None = None
    api: str | None = None
    stream: bool | None = None
    status: int
    outcome: str
    usage: Usage | None = None
    cost: float | None = None
    cost_nanos: int | None = None


class _QuickTarget(msgspec.Struct, frozen=True, gc=False):
    model: str
    pool: str | None = None
    provider: str | None = None


class _QuickIdentity(msgspec.Struct, frozen=True, gc=False):
    tenant: str = ""
    subject: str = ""
    plan: str = ""
    key: str = ""


class _QuickUsage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: Number = 0
    completion_tokens: Number = 0
    cached_tokens: Number = 0
    reasoning_tokens: Number = 0
    estimated: bool = False


class _QuickEnd(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """As `_End`, in the order of the event: msgspec looks for a field after the one that it found last."""

    request_id: str
    source: str
    sequence: int
    at_ms: Number
    pool: str
    target: _QuickTarget | None = None
    api: str | None = None
    stream: bool | None = None
    status: int
    outcome: str
    usage: _QuickUsage | None = None
    cost: Dollars | None = None
    cost_nanos: Number | None = None
    identity: _QuickIdentity | None = None
    served: str | None = None


encoded: Final = msgspec.json.Encoder().encode
"""The message of a `MadeRecord`."""


class MadeRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """As `UsageRecord`, made in a third of its time."""

    key: str
    request_id: str
    at_ms: int
    identity: _QuickIdentity
    model: str
    pool: str | None = None
    provider: str | None = None
    api: str
    stream: bool
    status: int
    outcome: str
    usage: _QuickUsage
    cost: float | None = None
    cost_nanos: int | None = None


Record = UsageRecord | MadeRecord


class Owed(msgspec.Struct, frozen=True, gc=False):
    """A record that the ledger is to get."""

    key: str
    tenant: str
    message: bytes
    at_ms: int
    record: MadeRecord | None = None
    """The message's content, where it was just made."""


_NOBODY: Final = _QuickIdentity()
_NOTHING: Final = _QuickUsage()


def _slowly(body: bytes) -> _QuickEnd:
    """Raises ValueError, as `_read` does."""
    return msgspec.convert(_End.__pydantic_validator__.validate_json(body), _QuickEnd, from_attributes=True)


_read: Final = reader(_QuickEnd, _slowly)


def record_of(body: bytes) -> MadeRecord:
    """The entry of a request, from its `ResponseCompleted`. Every request has one, even without usage.

    Raises ValueError for any other event, and for one with a number that the tables don't hold.
    """
    end = _read(body)
    target = end.target
    return MadeRecord(
        key=f"{end.request_id}@{end.source}/{end.pool}/{end.sequence}/{end.at_ms}",
        request_id=end.request_id,
        at_ms=end.at_ms,
        identity=end.identity or _NOBODY,
        model=end.served or (target.model if target is not None else ""),
        pool=target.pool if target is not None else None,
        provider=target.provider if target is not None else None,
        api=end.api or "",
        stream=end.stream or False,
        status=end.status,
        outcome=end.outcome,
        usage=end.usage or _NOTHING,
        cost=end.cost,
        cost_nanos=end.cost_nanos,
    )


def checked(record: UsageRecord) -> UsageRecord:
    """The record. Raises ValueError for one with a number that the tables don't hold."""
    if all(-MOST <= number <= MOST for number in (record.at_ms, *counted((record,)))):
        return record
    raise ValueError(f"the record {record.key!r} has a number above {MOST}")


class Counted(NamedTuple):
    """The part of records in the sums of their row, in the order of `USAGE_COLUMNS`."""

    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    estimated: int
    cost_nanos: int
    unpriced: int


USAGE_COLUMNS = Counted._fields


class Sums(NamedTuple):
    """The content of an answer."""

    rows: list[UsageSum]
    more: bool
    """Whether there are more rows."""
    unpriced_models: list[str]


def counted(records: Iterable[Record]) -> Counted:
    """The part of records of one row in its sums."""
    requests = failed = prompt = cached = completion = reasoning = estimated = nanos_in_all = unpriced = 0
    for record in records:
        usage = record.usage
        cost = cost_of(record)
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
    return Counted(requests, failed, prompt, cached, completion, reasoning, estimated, nanos_in_all, unpriced)


def cost_of(record: Record) -> int | None:
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
