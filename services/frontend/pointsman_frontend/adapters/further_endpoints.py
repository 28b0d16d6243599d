"""Finds the endpoint to ask next, for a request whose endpoint failed or drains."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pointsman_contracts.reply import ChosenEndpoint, Decision
from pointsman_core.refusal import Refusal
from pointsman_edge.edge import Edge
from pointsman_edge.sending.header_edits import edited_headers
from pointsman_edge.sending.moving_on import failed_workers
from pointsman_edge.sending.retry_budget import RetryBudget
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_frontend.adapters.outgoing import Outgoing
from pointsman_frontend.adapters.providers import is_external

DECIDED_WITHIN_S: Final = 2.0
"""A request that leaves a drained engine waits no longer for the stages: it was admitted before."""


class FurtherEndpoints:
    """Those of one edge's requests."""

    def __init__(self, edge: Edge) -> None:
        self._edge: Final = edge

    def find_next(
        self, pool: str, left: list[ChosenEndpoint], budget: RetryBudget, *, free: bool
    ) -> ChosenEndpoint | None:
        """The endpoint to try next: the first one that hasn't failed lately here and that schedulers find well; None
        when none is left, or the budget is spent. `free`: a scheduler asked for it."""
        if not left:
            return None
        unwell = self._edge.unwell_workers(pool)
        following = min(left, key=lambda each: self._edge.is_avoided(each.worker) + (each.worker in unwell))
        if not (free or is_external(following) or budget.spend(time.monotonic())):
            return None
        left.remove(following)
        return following

    async def find_for_drained(
        self, request: Outgoing, headers: Headers, budget: RetryBudget, left: list[ChosenEndpoint]
    ) -> ChosenEndpoint | None:
        """The endpoint for a request that leaves a drained engine: of a new decision, or else of the last one, or by
        this edge's own knowledge."""
        record = request.record
        again = await self.decide_again(request, headers, budget, left, free=True)
        if again is not None:
            return again
        left[:] = [each for each in left if not self._edge.draining.is_draining(record.pool, each.worker)]
        following = self.find_next(record.pool, left, budget, free=True)
        return following or self._edge.find_engine(
            record.pool, request.decision.target, failed_workers(record.attempts)
        )

    async def find_for_preempted(
        self, request: Outgoing, headers: Headers, left: list[ChosenEndpoint]
    ) -> ChosenEndpoint:
        """The endpoint for a background request that gave way to others: of a new decision, which may wait. Raises
        Refusal when there is none."""
        again = await self._decide_moved(request, headers, left, within_s=None)
        if again is None:
            raise Refusal(
                429,
                "The request gave way to others, and no engine had capacity left since; retry later.",
                type="rate_limit_error",
                code="no_capacity_left",
                retry_after_s=1.0,
            )
        return again

    async def decide_again(
        self, request: Outgoing, headers: Headers, budget: RetryBudget, left: list[ChosenEndpoint], *, free: bool
    ) -> ChosenEndpoint | None:
        """An endpoint of a new decision, for a request whose endpoints have all failed while its pool has others.
        `headers`: for engines, without a decision's. `left`: gets its further endpoints. `free`: the request leaves a
        drained engine, which may happen often, and takes nothing from the budget."""
        if free:
            return await self._decide_moved(request, headers, left)
        tried = failed_workers(request.record.attempts)
        snapshot = self._edge.pools.get(request.record.pool)
        if request.decide_again is None or snapshot is None or all(view.worker in tried for view in snapshot.workers):
            return None
        decide_again, request.decide_again = request.decide_again, None
        if not budget.spend(time.monotonic()):
            return None
        decision = await decide_again()
        if decision is None:
            return None
        untried = [each for each in decision.endpoints if each.worker not in tried]
        if not untried:
            return None
        return self._take_decision(request, decision, headers, untried, left)

    async def _decide_moved(
        self,
        request: Outgoing,
        headers: Headers,
        left: list[ChosenEndpoint],
        within_s: float | None = DECIDED_WITHIN_S,
    ) -> ChosenEndpoint | None:
        """An endpoint of a new decision for a request that left a well engine."""
        record, decision = request.record, None
        if request.decide_again is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    decision = await request.decide_again()
        if decision is None:
            return None
        failed = failed_workers(record.attempts)
        able = [
            each
            for each in decision.endpoints
            if each.worker not in failed and not self._edge.draining.is_draining(record.pool, each.worker)
        ]
        return self._take_decision(request, decision, headers, able, left) if able else None

    def _take_decision(
        self,
        request: Outgoing,
        decision: Decision,
        headers: Headers,
        endpoints: Sequence[ChosenEndpoint],
        left: list[ChosenEndpoint],
    ) -> ChosenEndpoint:
        request.decision = decision
        request.headers = edited_headers(headers, decision.headers, self._edge.metrics.drop_header_edit)
        left += endpoints[1:]
        return endpoints[0]
