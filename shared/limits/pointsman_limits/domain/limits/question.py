"""Makes the question of a request to a limit or a budget."""

from typing import Final

from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.limits import BudgetAsk, LimitAsk, LimitWindow

GRACE_MS: Final = 5_000
"""Milliseconds after a request's deadline: by then its end was reported, or its edge is gone."""


def limit_ask(
    envelope: PreprocessRequest,
    limit: str,
    scope: str,
    shard: int,
    *,
    windows: tuple[LimitWindow, ...] = (),
    cost: float = 1.0,
    risk: float = 0.0,
    reactive: bool = False,
    kept: bool = False,
    until_ms: int | None = None,
    budget: BudgetAsk | None = None,
) -> LimitAsk:
    """The question; see `LimitAsk`. `until_ms`: by default `GRACE_MS` after the request's deadline."""
    if until_ms is None:
        until_ms = envelope.deadline_ms + GRACE_MS
    return LimitAsk(
        edge=envelope.edge,
        request_id=envelope.request_id,
        limit=limit,
        scope=scope,
        attempt=envelope.attempt,
        shard=shard,
        windows=windows,
        cost=cost,
        risk=risk,
        reactive=reactive,
        kept=kept,
        until_ms=until_ms,
        open_s=(until_ms - envelope.received_ms) / 1000,
        budget=budget,
        dry_run=envelope.dry_run is True,
    )
