"""The cost of a finished request, read from its event."""

from collections.abc import Mapping
from typing import NamedTuple, cast

import orjson
from pydantic import JsonValue

from pointsman_contracts.batch import charged_attempt
from pointsman_contracts.money import nanos
from pointsman_limits.domain.budgets.account import day_of


class Spending(NamedTuple):
    """The cost of one request."""

    edge: str
    request_id: str
    amount: int | None
    """Nano-dollars; None when the model has no price, or no model ran."""
    used: bool
    """Whether tokens were used."""
    identity: Mapping[str, JsonValue]
    model: str
    """The configured name of the model that answered."""
    attempt: str | None
    """The attempt of a batch's line, which is charged once; None for any other request."""
    day: int
    """Days since 1970-01-01 (UTC) on which the request ended, as the usage ledger has it."""


def spending(body: bytes) -> Spending:
    """The cost in a `ResponseCompleted`. Raises ValueError for an invalid one."""
    match orjson.loads(body):
        case {"source": str(edge), "request_id": str(request_id), "at_ms": int(at_ms), **rest}:
            facts = cast("dict[str, JsonValue]", rest)
        case _:
            raise ValueError("no end of a request")
    amount, dollars, usage, identity = (facts.get(name) for name in ("cost_nanos", "cost", "usage", "identity"))
    if not isinstance(amount, int):
        # An edge of an earlier version reports dollars alone.
        amount = nanos(dollars) if isinstance(dollars, int | float) else None
    used = _has_tokens(usage)
    unused = facts.get("unused")
    for each in unused if isinstance(unused, list) else ():
        # Another model's answer of the same request, which is charged as well.
        if isinstance(each, dict):
            more = each.get("cost_nanos")
            amount = amount if not isinstance(more, int) else more + (amount or 0)
            used |= _has_tokens(each.get("usage"))
    identity = identity if isinstance(identity, dict) else {}
    batch = identity.get("batch")
    return Spending(
        edge=edge,
        request_id=request_id,
        amount=amount,
        used=used,
        identity=identity,
        model=str(facts.get("served") or ""),
        attempt=charged_attempt(request_id, str(batch)) if batch and facts.get("outcome") == "ok" else None,
        day=day_of(at_ms / 1000),
    )


def _has_tokens(usage: JsonValue) -> bool:
    return isinstance(usage, dict) and bool(usage.get("prompt_tokens") or usage.get("completion_tokens"))
