"""The cost of a finished request, read from its event."""

from collections.abc import Mapping
from typing import NamedTuple, cast

import orjson
from pydantic import JsonValue

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
    tokens = usage if isinstance(usage, dict) else {}
    return Spending(
        edge=edge,
        request_id=request_id,
        amount=amount,
        used=bool(tokens.get("prompt_tokens") or tokens.get("completion_tokens")),
        identity=identity if isinstance(identity, dict) else {},
        model=str(facts.get("served") or ""),
        day=day_of(at_ms / 1000),
    )
