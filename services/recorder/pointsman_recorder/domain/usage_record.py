"""From the end of a request to its entry in the usage ledger, and from there to sums."""

from datetime import UTC, datetime
from operator import add
from typing import NamedTuple, cast

import orjson
from pydantic import JsonValue

from pointsman_contracts.identity import Identity
from pointsman_contracts.money import nanos
from pointsman_contracts.response import Usage
from pointsman_contracts.usage import UsageRecord, UsageSum

_ERROR = 400
_LAST_MS = 253_402_300_799_000
"""The end of the year 9999."""


class Owed(NamedTuple):
    """A record that the ledger is to get."""

    key: str
    tenant: str
    record: bytes
    """The message."""


def record_of(body: bytes) -> UsageRecord:
    """The entry of a request, from its `ResponseCompleted`. Every request has one, even without usage.

    Raises ValueError for any other event.
    """
    # Half the cost of validating the whole event. The ledger record is validated in any case.
    match orjson.loads(body):
        case {"source": str(source), "pool": str(pool), "sequence": int(sequence), **rest}:
            facts = cast("dict[str, JsonValue]", rest)
        case _:
            raise ValueError("no end of a request")
    target = facts.get("target") or {}
    if not isinstance(target, dict):
        raise ValueError("no target")  # noqa: TRY004 - of the same kind as what pydantic raises
    request_id, at_ms = facts.get("request_id"), facts.get("at_ms")
    return UsageRecord.__pydantic_validator__.validate_python(
        {
            "key": f"{request_id}@{source}/{pool}/{sequence}/{at_ms}",
            "request_id": request_id,
            "at_ms": at_ms,
            "identity": facts.get("identity") or Identity(),
            "model": facts.get("served") or target.get("model") or "",
            "pool": target.get("pool"),
            "provider": target.get("provider"),
            "api": facts.get("api") or "",
            "stream": facts.get("stream") or False,
            "status": facts.get("status"),
            "outcome": facts.get("outcome"),
            "usage": facts.get("usage") or Usage(),
            "cost": facts.get("cost"),
            "cost_nanos": facts.get("cost_nanos"),
        }
    )


class Counted(NamedTuple):
    """The part of a record in the sums of its row, in the order of `USAGE_COLUMNS`."""

    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    estimated: int
    cost_nanos: int
    unpriced: int

    def plus(self, other: "Counted") -> "Counted":
        """The sum of both."""
        return Counted._make(map(add, self, other))


USAGE_COLUMNS = Counted._fields


class Sums(NamedTuple):
    """The content of an answer."""

    rows: list[UsageSum]
    more: bool
    """Whether there are more rows."""
    unpriced_models: list[str]


def counted(record: UsageRecord) -> Counted:
    """The part of a record in the sums."""
    usage = record.usage
    cost = cost_of(record)
    used = usage.prompt_tokens + usage.completion_tokens > 0
    return Counted(
        requests=1,
        failed=int(record.outcome != "ok" or record.status >= _ERROR),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        estimated=int(usage.estimated),
        cost_nanos=cost or 0,
        unpriced=int(used and cost is None),
    )


def cost_of(record: UsageRecord) -> int | None:
    """Nano-dollars; None without a price. Records of earlier versions have only dollars."""
    if record.cost_nanos is not None or record.cost is None:
        return record.cost_nanos
    return nanos(record.cost)


def day_of(at_ms: int) -> str:
    """The day (UTC), as `2026-03-01`; a time that no calendar has is the nearest one that it has."""
    return datetime.fromtimestamp(min(max(at_ms, 0), _LAST_MS) / 1000, UTC).date().isoformat()
