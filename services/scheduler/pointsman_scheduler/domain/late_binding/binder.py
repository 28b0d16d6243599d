"""The requests of a pool that aren't bound yet: the engine planned for each, and when it goes there."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from pointsman_delay.estimator import DelayEstimator
from pointsman_delay.outlook import Outlook
from pointsman_delay.token_pace import TokenPace
from pointsman_plugins.scheduling.arrays import Floats, greatest
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_scheduler.domain.late_binding.background_queue import BackgroundQueue
from pointsman_scheduler.domain.late_binding.bursts import Bursts
from pointsman_scheduler.domain.late_binding.pass_plan import Queued, fill
from pointsman_scheduler.domain.late_binding.peers import Peers
from pointsman_scheduler.domain.late_binding.plan import place, turn
from pointsman_scheduler.domain.late_binding.policy import LateBindingPolicy
from pointsman_scheduler.domain.late_binding.room_queue import RoomQueue
from pointsman_scheduler.domain.late_binding.slack import ClassShares, place_by_slack
from pointsman_scheduler.domain.late_binding.unbound import REFUSING, Because, Bound, PeerRequest, Unbound
from pointsman_scheduler.domain.lateness import PROBE_EVERY_S

LOOK_AGAIN_MS: Final = 50.0
"""While a request waits, engines are looked at this often even without new reports."""
SOONEST_MS: Final = 0.1
"""Minimum time between two looks; rounding could otherwise make a look come too early."""
LEAST_LEAD_MS: Final = 4.0
"""A request leaves at least this long before the pass in flight ends: the way to the engine takes time."""
_PLAN_MS_EACH: Final = 0.02
"""Between two plans, for each pair of a request and an engine: keeps planning below 10% of a processor."""

MOST_PROMISED: Final = 512
"""Requests with a service level may wait beyond the limit of the policy: flow control lets only those pass that are
predicted to be in time, or are refused when they are late."""

_TO_THE_BEST: Final = Because.BLIND, Because.CLOSING, Because.FULL
"""The request goes to the engine that is best now, not to the one that is planned for it."""

Turn = tuple[float, bool, float, float]
"""The order of requests at one engine, least first."""

Match = Callable[[ScheduleRequest], Floats]
"""Prompt tokens of the request that each worker is estimated to hold."""


class Binder:
    """Knows no clock and no bus. Times are milliseconds of the estimator's clock."""

    def __init__(self) -> None:
        self.version = 0
        """Changes whenever `waiting` does, or what is planned for it."""
        self._waiting: dict[RequestKey, Unbound] = {}
        self.room_queue: Final = RoomQueue()
        """Requests that wait until an engine has room for their prompts: none is planned for them."""
        self.background: Final = BackgroundQueue()
        """Requests that give way to others: they wait until an engine has capacity left."""
        self._bursts: Final = Bursts()
        self._peers: Final = Peers()
        self._theirs: list[Unbound] = []
        """Requests of other schedulers, as in the last plan."""
        self._presumed: dict[RequestKey, tuple[Unbound, float]] = {}
        """Requests of other schedulers that have gone by the plan, and until when that counts without their word."""
        self._names: tuple[str, ...] = ()
        self._by_slack = False
        """Whether any request that waits has a service level."""
        self._shares: Final = ClassShares()
        self._sent_at = -math.inf
        """When a request last went to an engine."""
        self._planned = True
        """Whether the plan covers all waiting requests."""
        self._planned_at = -math.inf
        self._wake_at = math.inf

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting) + len(self.room_queue) + len(self.background)

    @property
    def waiting(self) -> list[Unbound]:
        """Those that an engine is planned for, the oldest first."""
        return list(self._waiting.values())

    @property
    def is_overfull(self) -> bool:
        """Whether as many requests as there are engines wait without being in time for their service levels: one fills
        the gaps of each engine, and the next ones wait in flow control."""
        return self._by_slack and sum([each.left_out for each in self._waiting.values()]) >= len(self._names)

    def worker_of(self, unbound: Unbound) -> str:
        """The worker planned for the request."""
        return self._names[unbound.row]

    def counts(self, names: tuple[str, ...]) -> bool:
        """Whether waiting requests are planned by these rows. If not, they leave before another request may wait."""
        # Comparing a tuple with itself would look at each name.
        return not self._waiting or names is self._names or names == self._names

    def holds(self, row: int, uncached: float, now: float, policy: LateBindingPolicy) -> bool:
        """Whether a request that would go to this worker, with `uncached` tokens to compute there, waits instead. Asked
        once for each new request, when its costs at this moment have just been computed."""
        bursts = self._bursts
        bursts.note_arrival(now)
        estimator = policy.delays.best
        if not estimator.model.is_trusted:
            return False
        if estimator.first_token_ms(row, uncached, now) < LEAST_LEAD_MS:
            # Waiting would take longer than the engine does.
            return False
        if policy.delays.paces:
            return True
        if estimator.workers == 1 and not self._waiting and estimator.joins_next_pass(row, uncached, LEAST_LEAD_MS):
            # No other engine can come first, and no other pass would do better.
            return False
        if not estimator.ready(row, now):
            return True
        if self._waiting and (not self._planned or any(each.row == row for each in self._waiting.values())):
            return True
        # Peers get their share of each burst.
        peers = self._peers.count(now)
        size = bursts.size * (1 + peers)
        if size < 2.0 or now > bursts.over_at(not peers):
            return False
        return size > estimator.count_ready(now)

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
        """Add a request, as soon as `holds` has said so. One that waits already keeps its place."""
        key = request.key
        found = self._waiting.get(key)
        if found is not None:
            return found
        if names is not self._names and names != self._names:
            self._names = names
            self._peers.forget()
            self._theirs = []
            self._presumed.clear()
        estimator = policy.delays.best
        depth = int(greatest(matched)) // request.facts.block_tokens if request.facts.block_tokens else 0
        uses = estimator.earlier_uses(request.blocks.item(depth - 1)) if depth else 0.0
        tokens = uncached = max(1.0, request.facts.prompt_tokens - matched.item(row))
        if self._waiting:
            tokens += sum([each.uncached for each in self._waiting.values() if each.row == row])
        else:
            self._by_slack = False
        facts = request.facts
        if facts.slo_ttft_ms is not None and facts.is_promised:
            self._by_slack, latest = True, now + facts.slo_ttft_ms
        else:
            latest = now + policy.slowdown * estimator.first_come_ms(row, tokens, now)
        unbound = self._waiting[key] = Unbound(
            request=request, since=now, rows=rows, row=row, uses=uses, uncached=uncached, latest=latest
        )
        self._planned = False
        self._wake_at = now
        self.version += 1
        return unbound

    def cancel(self, request: RequestKey) -> bool:
        """Remove a request that is over. Returns whether it waited."""
        if self._waiting.pop(request, None) is None:
            removed = self.room_queue.remove_waiting(request) or self.background.remove_waiting(request)
            return removed is not None
        self.version += 1
        return True

    def leave_now(self, request: RequestKey, now: float) -> Bound | None:
        """Bind a request to the engine that is best now. None when it doesn't wait."""
        unbound = self._waiting.get(request)
        if unbound is not None:
            return self._take(unbound, now, Because.CLOSING)
        entry = self.room_queue.remove_waiting(request) or self.background.remove_waiting(request)
        return None if entry is None else entry.leave_because(now, Because.CLOSING)

    def peer(self, scheduler: str, requests: Sequence[PeerRequest], now: float) -> None:
        """Take another scheduler's report of all its waiting requests."""
        if self._peers.report(scheduler, requests, now):
            self._bursts.note_peer_burst(now)
        peers = self._peers
        self._theirs = [each for each in self._theirs if peers.knows(each.request.key)]
        if self._presumed:
            self._presumed = {key: found for key, found in self._presumed.items() if peers.knows(key)}

    def silent(self, scheduler: str, now: float) -> bool:
        """Whether it is time to note that another scheduler lives."""
        return self._peers.silent(scheduler, now)

    def count_peers(self, now: float) -> int:
        """Other schedulers of this pool that live."""
        return self._peers.count(now)

    def heard(self, scheduler: str, now: float) -> None:
        """Another scheduler of this pool is known to live."""
        self._peers.heard(scheduler, now)

    def look_at(self, now: float) -> float | None:
        """When to call `bind` even without new reports; None while no request waits."""
        at = min(self._wake_at, now + LOOK_AGAIN_MS) if self._waiting else math.inf
        if len(self.room_queue):
            at = min(at, self.room_queue.look_at)
        background = self.background
        if len(background) or background.running:
            at = min(at, background.look_at(now))
        return None if at == math.inf else max(now + SOONEST_MS, at)

    def bind(self, now: float, names: tuple[str, ...], policy: LateBindingPolicy | None, match: Match) -> list[Bound]:
        """The requests that go to an engine now. The caller reserves each before the next call."""
        if not self._waiting:
            return []
        self._wake_at = math.inf
        if policy is None or names != self._names or not policy.delays.best.model.is_trusted:
            return [self._take(each, now, Because.BLIND) for each in self.waiting]
        estimator = policy.delays.best
        bound: list[Bound] = []
        most = policy.most
        if self._by_slack:
            most += min(MOST_PROMISED, sum([each.request.facts.is_promised for each in self._waiting.values()]))
        while len(self._waiting) > most:
            bound.append(self._take(next(iter(self._waiting.values())), now, Because.FULL))
        peers = self._peers.count(now)
        over_at = self._bursts.over_at(not peers)
        if now < over_at and self._bursts.size * (1 + peers) >= 2.0 and not self._planned:
            self._wake_at = over_at
            return bound
        outlook = Outlook(estimator, now)
        paces = policy.delays.list_paces()
        ready = self._ready(outlook, paces, now)
        if self._presumed:
            ready = self._without_presumed(ready, outlook, now)
        if not bound and (ready or (self._by_slack and now - self._planned_at >= LOOK_AGAIN_MS)):
            due = self._planned_at + _PLAN_MS_EACH * len(self._waiting) * len(self._names)
            if now >= due:
                self._plan(outlook, paces, now, match)
            else:
                self._wake_at = min(self._wake_at, due)
            if self._by_slack:
                bound += self._give_up(now, policy.waits_ms)
            bound += self._leave(outlook, estimator, ready, now)
        return bound

    def _ready(self, outlook: Outlook, paces: Sequence[TokenPace | None], now: float) -> list[int]:
        """Rows of workers whose next pass has room and begins about now, and whose answers keep the times between
        tokens that they are promised."""
        ready: list[int] = []
        for row, at in enumerate(outlook.base):
            if at.waiting >= outlook.budget:
                continue
            if paces and (pace := paces[row]) is not None:
                owed = pace.owed_ms(now, outlook.step_ms(row))
                if owed > 0.0:
                    self._wake_at = min(self._wake_at, now + owed)
                    continue
            left = at.free_at - now  # of the pass with prompts that is in flight; below 0 without one
            if left <= LEAST_LEAD_MS or left <= (lead := max(LEAST_LEAD_MS, outlook.step_ms(row))):
                ready.append(row)
            else:
                self._wake_at = min(self._wake_at, now + left - lead)
        return ready

    def _without_presumed(self, ready: list[int], outlook: Outlook, now: float) -> list[int]:
        """The rows that no other scheduler is about to fill."""
        taken: set[int] = set()
        for key, (each, until) in tuple(self._presumed.items()):
            if until <= now:
                del self._presumed[key]
            else:
                taken.add(each.row)
                outlook.add(each.row, each.uncached, each.prompt, before=True)
                self._wake_at = min(self._wake_at, until)
        return [row for row in ready if row not in taken]

    def _plan(self, outlook: Outlook, paces: Sequence[TokenPace | None], now: float, match: Match) -> None:
        self._planned, self._planned_at = True, now
        theirs = self._peers.waiting(self._names, now)
        self._theirs = [each for each in theirs if each.request.key not in self._presumed]
        everyone = [*self._waiting.values(), *self._theirs]
        for each in everyone:
            each.match(match(each.request))
        if self._by_slack:
            changed = place_by_slack(everyone, outlook, now, self._shares.compute_lifts(everyone), paces)
        else:
            changed = place(everyone, outlook, now)
        if changed:
            self.version += 1

    def _give_up(self, now: float, waits_ms: float) -> list[Bound]:
        """The requests that are refused: none of them would be in time, however the engines' next passes go. One that
        is served late has waited for `waits_ms`, as long as flow control lets any request wait."""
        expired = [
            self._take(each, now, Because.EXPIRED)
            for each in self.waiting
            if each.left_out and now - each.since + each.request.queued_s * 1000.0 >= waits_ms
        ]
        late = [
            each
            for each in self.waiting
            if each.left_out and each.first_token_at > each.latest and each.request.facts.is_refused_late
        ]
        bound: list[Bound] = []
        if late and now - self._sent_at >= PROBE_EVERY_S * 1000.0:
            probe = min(late, key=lambda each: each.uncached)
            late.remove(probe)
            bound.append(self._take(probe, now, Because.PROBE))
        return expired + bound + [self._take(each, now, Because.LATE) for each in late]

    def _leave(self, outlook: Outlook, estimator: DelayEstimator, ready: Sequence[int], now: float) -> list[Bound]:
        """Fill the next pass of each ready engine with the requests planned for it."""
        bound: list[Bound] = []
        rows = set(ready)
        queues: dict[int, list[tuple[Turn, Queued[Unbound]]]] = {}
        for each in (*self._waiting.values(), *self._theirs):
            if each.row in rows and not (each.left_out and each.request.facts.is_refused_late):
                if self._by_slack:
                    order = (
                        float(-each.request.facts.priority),
                        each.left_out,
                        each.uncached if each.left_out else each.latest,
                        each.since,
                    )
                else:
                    order = *turn(each.request.facts.priority, each.latest, each.uncached, now), each.since
                queues.setdefault(each.row, []).append((order, Queued(each.uncached, each)))
        for row in ready:
            queue = queues.get(row)
            if queue is None:
                continue
            queue.sort(key=lambda entry: entry[0])
            order = [queued for _, queued in queue]
            for number, queued in enumerate(order[: fill(outlook, row, estimator.count_unfinished(row), order)]):
                each = queued.what
                if each.reported is not None:
                    self._theirs.remove(each)
                    self._presumed[each.request.key] = each, now + self._bursts.theirs_ms
                    continue
                limit = (
                    not self._by_slack
                    and each.latest <= now
                    and any(other.uncached < each.uncached for other in order[number + 1 :])
                )
                because = Because.LIMIT if limit else Because.PASS if number else Because.TURN
                bound.append(self._take(each, now, because))
        return bound

    def _take(self, each: Unbound, now: float, because: Because) -> Bound:
        del self._waiting[each.request.key]
        self.version += 1
        if because in REFUSING:
            return Bound(each.request, "", now - each.since, because, each.first_token_at - each.since)
        self._sent_at = now
        if each.request.facts.is_promised:
            self._shares.count_tokens(each, now)
        worker = "" if because in _TO_THE_BEST else self._names[each.row]
        each.request.bound = worker
        return Bound(each.request, worker, now - each.since, because)
