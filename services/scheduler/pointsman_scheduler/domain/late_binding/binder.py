"""The requests of a pool that aren't bound yet: the engine planned for each, and when it goes there."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_scheduler.domain.delay.estimator import DelayEstimator
from pointsman_scheduler.domain.delay.outlook import Outlook
from pointsman_scheduler.domain.late_binding.bursts import Bursts
from pointsman_scheduler.domain.late_binding.pass_plan import Queued, fill
from pointsman_scheduler.domain.late_binding.policy import LateBindingPolicy
from pointsman_scheduler.domain.late_binding.unbound import Because, Bound, PeerRequest, Unbound

LOOK_AGAIN_MS: Final = 50.0
"""While a request waits, engines are looked at this often even without new reports."""
SOONEST_MS: Final = 0.1
"""Minimum time between two looks; rounding could otherwise make a look come too early."""
LEAST_LEAD_MS: Final = 4.0
"""A request leaves at least this long before the pass in flight ends: the way to the engine takes time."""
PEER_FORGOTTEN_MS: Final = 250.0
"""A peer's report of its waiting requests is valid for this long."""
_PLAN_MS_EACH: Final = 0.02
"""Between two plans, for each pair of a request and an engine: keeps planning below 10% of a processor."""

_RELATIVES: Final = 16
"""Requests with the same beginning that one request is compared with."""

Match = Callable[[ScheduleRequest], Floats]
"""Prompt tokens of the request that each worker is estimated to hold."""


class Binder:
    """Knows no clock and no bus. Times are milliseconds of the estimator's clock."""

    def __init__(self) -> None:
        self.version = 0
        """Changes whenever `waiting` does, or what is planned for it."""
        self._waiting: dict[RequestKey, Unbound] = {}
        self._bursts: Final = Bursts()
        self._peers: dict[str, tuple[float, Sequence[PeerRequest]]] = {}
        """Scheduler → when its report came, and the requests that wait there."""
        self._names: tuple[str, ...] = ()
        self._planned = True
        """Whether the plan covers all waiting requests."""
        self._planned_at = -math.inf
        self._wake_at = math.inf

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    @property
    def waiting(self) -> list[Unbound]:
        """Oldest first."""
        return list(self._waiting.values())

    def worker_of(self, unbound: Unbound) -> str:
        """The worker planned for the request."""
        return self._names[unbound.row]

    def holds(self, row: int, uncached: float, now: float, policy: LateBindingPolicy) -> bool:
        """Whether a request that would go to this worker, with `uncached` tokens to compute there, waits instead. Asked
        once for each new request."""
        bursts = self._bursts
        bursts.came(now)
        estimator = policy.delays.best
        if not estimator.model.trusted:
            return False
        if estimator.first_token_ms(row, uncached, now) < LEAST_LEAD_MS:
            # Waiting would take longer than the engine does.
            return False
        if not estimator.ready(row, now):
            return True
        if self._waiting and (not self._planned or any(each.row == row for each in self._waiting.values())):
            return True
        if bursts.size < 2.0 or now > bursts.over_at():
            return False
        return bursts.size > sum(estimator.ready(each, now) for each in range(estimator.workers))

    def put(
        self,
        request: ScheduleRequest,
        now: float,
        matched: Floats,
        rows: list[int] | None,
        row: int,
        names: tuple[str, ...],
        policy: LateBindingPolicy,
    ) -> Unbound:
        """Add a request. One that waits already keeps its place."""
        found = self._waiting.get(request.key)
        if found is not None:
            return found
        if names != self._names:
            self._names = names
            self._peers = {}
        estimator = policy.delays.best
        depth = int(matched.max()) // request.block_tokens if request.block_tokens else 0
        uses = estimator.earlier_uses(int(request.blocks[depth - 1])) if depth else 0.0
        unbound = Unbound(request, now, matched, rows, row, uses)
        unbound.uncached = unbound.on(float(matched[row]))
        unbound.latest = now + policy.slowdown * self._first_come_ms(unbound, estimator, now)
        self._waiting[request.key] = unbound
        self._planned = False
        self._wake_at = now
        self.version += 1
        return unbound

    def cancel(self, request: RequestKey) -> bool:
        """Remove a request that is over. Returns whether it waited."""
        if self._waiting.pop(request, None) is None:
            return False
        self.version += 1
        return True

    def leave_now(self, request: RequestKey, now: float) -> Bound | None:
        """Bind a request to the engine that is best now. None when it doesn't wait."""
        unbound = self._waiting.get(request)
        return None if unbound is None else self._take(unbound, now, Because.CLOSING)

    def peer(self, scheduler: str, requests: Sequence[PeerRequest], now: float) -> None:
        """Take another scheduler's report of its waiting requests."""
        if requests:
            self._peers[scheduler] = now, requests
        else:
            self._peers.pop(scheduler, None)

    def look_at(self, now: float) -> float | None:
        """When to call `bind` even without new reports; None while no request waits."""
        return max(now + SOONEST_MS, min(self._wake_at, now + LOOK_AGAIN_MS)) if self._waiting else None

    def bind(self, now: float, names: tuple[str, ...], policy: LateBindingPolicy | None, match: Match) -> list[Bound]:
        """The requests that go to an engine now. The caller reserves each before the next call."""
        if not self._waiting:
            return []
        self._wake_at = math.inf
        if policy is None or names != self._names or not policy.delays.best.model.trusted:
            return [self._take(each, now, Because.BLIND) for each in self.waiting]
        estimator = policy.delays.best
        bound: list[Bound] = []
        while len(self._waiting) > policy.most:
            bound.append(self._take(next(iter(self._waiting.values())), now, Because.FULL))
        over_at = self._bursts.over_at()
        if now < over_at and self._bursts.size >= 2.0 and not self._planned:
            self._wake_at = over_at
            return bound
        outlook = Outlook(estimator, now)
        ready = self._ready(outlook, now)
        if ready and not bound:
            due = self._planned_at + _PLAN_MS_EACH * len(self._waiting) * len(self._names)
            if now >= due:
                self._plan(outlook, now, match)
            else:
                self._wake_at = min(self._wake_at, due)
            bound += self._leave(estimator, ready, now)
        return bound

    def _ready(self, outlook: Outlook, now: float) -> list[int]:
        """Rows of workers whose next pass has room and begins about now."""
        ready: list[int] = []
        for row, at in enumerate(outlook.figures):
            left = outlook.left_ms(row)
            lead = max(LEAST_LEAD_MS, outlook.step_ms(row))
            if at.waiting >= outlook.budget:
                continue
            if left <= lead:
                ready.append(row)
            else:
                self._wake_at = min(self._wake_at, now + left - lead)
        return ready

    def _plan(self, outlook: Outlook, now: float, match: Match) -> None:
        """Plan each request for the engine where it costs least: longest first, since short ones fill the rest."""
        self._planned, self._planned_at = True, now
        for peer in self._peer_requests(now):
            row = self._names.index(peer.worker) if peer.worker in self._names else None
            if row is not None:
                outlook.add(row, peer.uncached, peer.prompt)
        for each in self._waiting.values():
            each.matched = match(each.request).copy()
        order = sorted(
            self._waiting.values(), key=lambda each: (-each.request.priority, -each.least_uncached(), each.since)
        )
        families: dict[int, list[Unbound]] = {}
        for each in order:
            blocks = each.request.blocks
            family = families.setdefault(int(blocks[0]), []) if len(blocks) else []
            for other in family[-_RELATIVES:]:
                each.shares(other)
            family.append(each)
            costs = outlook.costs(each.prompt, each.matched, each.request.max_output_tokens, each.uses, each.rows)
            place = costs.index(min(costs))
            row = place if each.rows is None else each.rows[place]
            if row != each.row:
                each.row = row
                self.version += 1
            each.uncached = each.on(float(each.matched[row]))
            outlook.add(row, each.uncached, each.prompt)

    def _leave(self, estimator: DelayEstimator, ready: Sequence[int], now: float) -> list[Bound]:
        """Fill the next pass of each ready engine with the requests planned for it."""
        bound: list[Bound] = []
        there = Outlook(estimator, now)
        queues: dict[int, list[tuple[tuple[float, bool, float], Queued[Unbound | None]]]] = {row: [] for row in ready}
        for each in self._waiting.values():
            if each.row in queues:
                key = _turn(each.request.priority, each.latest, each.uncached, now)
                queues[each.row].append((key, Queued(each.uncached, each)))
        for peer in self._peer_requests(now):
            row = self._names.index(peer.worker) if peer.worker in self._names else -1
            if row in queues:
                key = _turn(peer.priority, peer.latest, peer.uncached, now)
                queues[row].append((key, Queued(peer.uncached, None)))
        for row, queue in queues.items():
            queue.sort(key=lambda entry: entry[0])
            order = [queued for _, queued in queue]
            for place, queued in enumerate(order[: fill(there, row, estimator.unfinished(row), order)]):
                each = queued.what
                if each is None:
                    continue
                limit = each.latest <= now and any(other.uncached < each.uncached for other in order[place + 1 :])
                because = Because.LIMIT if limit else Because.PASS if place else Because.TURN
                bound.append(self._take(each, now, because))
        return bound

    def _take(self, each: Unbound, now: float, because: Because) -> Bound:
        del self._waiting[each.request.key]
        self.version += 1
        worker = "" if because in (Because.BLIND, Because.CLOSING) else self._names[each.row]
        each.request.bound = worker
        return Bound(each.request, worker, now - each.since, because)

    def _first_come_ms(self, unbound: Unbound, estimator: DelayEstimator, now: float) -> float:
        """How long the request would wait, first come, first served, at the worker that an immediate choice would
        take."""
        outlook = Outlook(estimator, now)
        row = unbound.row
        before = sum(each.uncached for each in self._waiting.values() if each.row == row)
        speed = outlook.figures[row].speed
        ahead = outlook.prefill_ms(outlook.figures[row].waiting + before + unbound.uncached) * speed
        return outlook.left_ms(row) + ahead

    def _peer_requests(self, now: float) -> list[PeerRequest]:
        return [
            request
            for heard, requests in self._peers.values()
            if now - heard <= PEER_FORGOTTEN_MS
            for request in requests
        ]


def _turn(priority: int, latest: float, uncached: float, now: float) -> tuple[float, bool, float]:
    """The order of requests, least first: the higher priority, then those at their limit, then the shortest."""
    overdue = latest <= now
    return -priority, not overdue, latest if overdue else uncached
