"""Holds requests back while their pool is saturated. A request that waited gets the endpoint that is best when it
leaves."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from pointsman_contracts.agent import find_program
from pointsman_contracts.journey import Journey
from pointsman_contracts.priority import BATCH_PRIORITY
from pointsman_contracts.reply import Decision, Parked, Rejection
from pointsman_contracts.service_level import REFUSE
from pointsman_core.refusal import Refusal
from pointsman_journey.heartbeat import Heartbeat
from pointsman_journey.hop import Hop
from pointsman_plugins.scheduling.request import RequestKey
from pointsman_runtime.telling.logs import Log
from pointsman_scheduler.binding import Binding
from pointsman_scheduler.demand import DemandPublisher
from pointsman_scheduler.domain.flow_control import (
    LOOK_AGAIN_S,
    Capacity,
    Dispatch,
    Drop,
    Dropped,
    Figures,
    FlowController,
    FlowPolicy,
    Item,
    Unserved,
)
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.domain.serving import count_endpoints
from pointsman_scheduler.foreseen_times import in_time_left, is_foreseen_in_time, plans_by_slack
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.waiting_room import PoolTimers, finish_waiting

WOKEN_AT_ONCE: Final = 16
"""Requests that leave in one turn of the event loop: each costs a decision."""
ROOMY: Final = 0.5
"""Up to this saturation, one more request for each endpoint doesn't fill the pool, so one measurement serves as many
for `LOOK_AGAIN_S`."""
FRESH_S: Final = 0.01
"""How long it serves requests although the pool's workers reported since."""

_log = Log("gate")


class WaitingJourney(NamedTuple):
    """The data that a waiting request needs to continue."""

    journey: Journey
    hop: Hop[Journey]


class _Queue:
    def __init__(self, pool: PoolScheduler, policy: FlowPolicy) -> None:
        self.pool: Final = pool
        self.flow: Final = FlowController[WaitingJourney](policy)
        self.capacity = Capacity(0, 0.0)
        """By the last measurement."""
        self._measured_at = float("-inf")
        self._serves_for = LOOK_AGAIN_S
        self._serves_below = 0
        """Requests on the books from which on the measurement is out of date."""
        self._passing: int | None = None
        """Priority of a request that went to an engine at once by the last measurement."""
        self.last_drop: Drop | None = None
        """Why the last request that left was dropped; None where it went to an engine."""

    def lets_pass(self, priority: int, now: float) -> bool:
        """Whether a request of this priority goes to an engine at once. While none waits and the pool has room, by the
        last measurement: one costs a fifth of a decision."""
        flow = self.flow
        fresh = now - self._measured_at <= self._serves_for and len(self.pool.books) < self._serves_below
        if fresh and priority == self._passing and flow.is_quiet:
            return True
        if not fresh or flow.waiting or self.capacity.saturation > ROOMY:
            self.measure(now)
        passes = flow.lets_pass(priority, now, self.capacity)
        self._passing = priority if passes and self.capacity.saturation <= ROOMY else None
        return passes

    def measure(self, now: float) -> Capacity:
        """The pool's capacity by a new measurement."""
        fleet = self.pool.fleet
        fleet.refresh(now)
        endpoints, asleep = count_endpoints(fleet, now, waking=self.flow.policy.settings.wake.enabled)
        saturation = self.flow.policy.detector.saturation(fleet, now) if endpoints else 0.0
        if self.pool.binder.is_overfull:
            saturation = math.inf
        self.capacity = capacity = Capacity(endpoints, saturation, asleep)
        self._passing = None
        self._measured_at = now
        self._serves_for = LOOK_AGAIN_S
        self._serves_below = len(self.pool.books) + endpoints
        return capacity

    def changed(self) -> None:
        """The pool's workers reported, came, left or failed."""
        self._serves_for = FRESH_S

    def adopt(self, policy: FlowPolicy, now: float) -> None:
        """Go on by another policy."""
        self.flow.adopt_policy(policy, now)
        self._passing = None


class Gate:
    """One queue for each pool. `binding` decides for each request that goes to an engine."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        pools: Pools,
        metrics: SchedulerMetrics,
        binding: Binding,
        settle: Callable[[Journey], Journey],
        *,
        demand: DemandPublisher,
    ) -> None:
        """`settle`: settles the model of a journey that leaves it open, or that has to go elsewhere to keep its service
        level; may raise Refusal."""
        self._heartbeat: Final = heartbeat
        self._pools: Final = pools
        self._metrics: Final = metrics
        self._binding: Final = binding
        self._settle: Final = settle
        self._demand: Final = demand
        self.decide_dry_run: Callable[[Journey, Hop[Journey]], Decision | Rejection] = _without_dry_runs
        self._queues: dict[str, _Queue] = {}
        self._parked: dict[RequestKey, _Queue] = {}
        """Each waiting request, with its queue."""
        self._timers: Final = PoolTimers(self._wake)

    def apply_policies(self, policies: Mapping[str, FlowPolicy]) -> None:
        """A revision came into force. Waiting requests stay, under the new policy. Those of a pool that the revision
        removes are decided at once, by the revision that each started with."""
        now = time.monotonic()
        for name in self._queues.keys() - policies.keys():
            removed = self._queues.pop(name)
            self._timers.cancel(name)
            for each in removed.flow.shut_down(now):
                self._parked.pop(_key(each.item.payload.journey), None)
                self._go_on(*each.item.payload, now - each.item.offered_at, None)
            removed.last_drop = Drop.SHUTTING_DOWN
            self._observe(removed, now)
        for name, policy in policies.items():
            queue = self._queues.get(name)
            if queue is None:
                self._queues[name] = _Queue(self._pools.of(name), policy)
            else:
                queue.adopt(policy, now)
                self.stirred(queue.pool)

    def has_room(self, pool: str, priority: int) -> bool:
        """Whether a request of this priority would go to an engine of the pool at once."""
        queue = self._queues.get(pool)
        return queue is None or not queue.flow.policy.settings.enabled or queue.lets_pass(priority, time.monotonic())

    def foresee_wait(self, pool: str, priority: int) -> float | None:
        """Seconds until a request of this priority would go to an engine of the pool; None when unknown."""
        if self.has_room(pool, priority):
            return 0.0
        return self._queues[pool].flow.foresee_wait(priority, time.monotonic())

    def enter(self, journey: Journey, hop: Hop[Journey]) -> Journey | Decision | Rejection | Parked:
        """The handler of the stage. A new request goes to an engine at once, waits, or is dropped. One whose model is
        open gets that first, and one with a service level is held to it; a provider's needs no engine, and goes on."""
        facts = journey.request
        if journey.joint is not None or facts.slo_ttft_ms is not None or facts.slo_itl_ms is not None:
            try:
                hop.message = journey = self._settle(journey)
            except Refusal as refusal:
                return hop.refuse(refusal)
            if journey.target is not None and journey.target.provider is not None:
                return journey
        if journey.request.dry_run:
            return self.decide_dry_run(journey, hop)
        queue = self._queues.get(journey.target.pool or "") if journey.target is not None else None
        if queue is None:
            return self._binding.decide(journey, hop, 0.0)
        key = (journey.edge, journey.request_id)
        books, flow = queue.pool.books, queue.flow
        if books.ended_before(key, journey.received_ms):
            # A reservation for it would take a place until its edge is asked about it.
            self._metrics.of(queue.pool.pool).count_drop(Drop.CANCELLED.name.lower())
            return hop.refuse(Drop.CANCELLED.build_refusal(retry_after_s=1.0))
        if not flow.policy.settings.enabled or books.find_reservation(key) is not None:
            return self._binding.decide(journey, hop, 0.0)
        if journey.request.priority <= BATCH_PRIORITY:
            # It doesn't wait for room here, but for an engine with capacity left.
            return self._binding.decide(journey, hop, 0.0)
        now = time.monotonic()
        if journey.request.is_refused_late and self._waits_for_engine(queue, journey):
            return self._binding.decide(journey, hop, 0.0)
        if queue.lets_pass(journey.request.priority, now) or queue.pool.known_bad(now):
            return self._binding.decide(journey, hop, 0.0)
        if journey.request.is_promised and self._is_in_time(queue, journey, now):
            return self._binding.decide(journey, hop, 0.0)
        outcome = flow.offer_request(_item(journey, hop, now), now, queue.capacity)
        if isinstance(outcome, Dispatch):
            return self._binding.decide(journey, hop, 0.0)
        self._plan(queue, now)
        if isinstance(outcome, Dropped):
            return self._dropped(queue, outcome)
        elsewhere = self._parked.get(key)
        if elsewhere is not None and elsewhere is not queue:
            self._cancel(elsewhere, key)  # sent again, to another pool: only the later journey is answered
        self._parked[key] = queue
        self._metrics.of(queue.pool.pool).parked()
        if flow.unserved:
            self._observe(queue, now)
        return hop.park(outcome.reason)

    def _waits_for_engine(self, queue: _Queue, journey: Journey) -> bool:
        """Whether late binding holds the request back instead of flow control: it plans by the times that requests have
        left, and refuses those that would be late. Requests of a higher priority go first."""
        target, policy = journey.target, queue.pool.policies[-1] if queue.pool.policies else None
        if target is None or target.lora is not None or policy is None or journey.attempt > 1:
            return False
        waits = plans_by_slack(policy, journey.request)
        return waits and not queue.flow.has_above(journey.request.priority)

    def _is_in_time(self, queue: _Queue, journey: Journey, now: float) -> bool:
        """Whether the request keeps its service level if it waits for its engine only: then flow control doesn't hold
        it either, since it would be late behind those that are late already."""
        target, pool = journey.target, queue.pool
        if target is None or not self._waits_for_engine(queue, journey):
            return False
        return is_foreseen_in_time(pool, pool.policies[-1], in_time_left(journey, 0.0), target.model, now)

    def changed(self, pool: PoolScheduler) -> None:
        """The pool's workers reported, came, left or failed."""
        queue = self._queues.get(pool.pool)
        if queue is not None:
            queue.changed()
        self.stirred(pool)

    def stirred(self, pool: PoolScheduler) -> None:
        """Look at the pool in the next turn of the event loop: something happened that may let a request go."""
        if self._binding.kept and len(pool.binder):
            self._binding.stirred(pool)
        if self._parked:
            queue = self._queues.get(pool.pool)
            if queue is not None and queue.flow.waiting:
                self._plan(queue, time.monotonic(), soon=True)

    def left(self, request: RequestKey) -> None:
        """The client hung up: drop its request."""
        if request in self._binding.kept:
            self._binding.forget(request)
        if self._parked and (queue := self._parked.get(request)) is not None:
            self._cancel(queue, request)

    def edge_gone(self, edge: str) -> None:
        """An edge died, and its clients' connections with it."""
        self._binding.edge_gone(edge)
        for request, queue in [each for each in self._parked.items() if each[0][0] == edge]:
            self._cancel(queue, request)

    def figures(self) -> Iterator[tuple[str, Figures]]:
        """Waiting requests, by pool."""
        for name, queue in self._queues.items():
            yield name, queue.flow.measure_queues()

    async def close(self) -> None:
        """Forward the waiting requests to another scheduler, or drop them."""
        self._binding.close()
        now = time.monotonic()
        for name, queue in self._queues.items():
            self._timers.cancel(name)
            dropped = queue.flow.shut_down(now)
            elsewhere = self._has_peer()
            for each in dropped:
                journey, hop = each.item.payload
                hop.finish(journey if elsewhere else self._dropped(queue, each))
            queue.last_drop = Drop.SHUTTING_DOWN
            self._observe(queue, now)
            if dropped:
                _log.info("queue_left", pool=name, requests=len(dropped), handed_over=elsewhere)

    def _has_peer(self) -> bool:
        table, now = self._heartbeat.table, asyncio.get_running_loop().time()
        me = self._heartbeat.process
        return any(
            peer != me.instance and table.is_addressable(me.service, peer, now)
            for peer in table.list_instances(me.service, now)
        )

    def _cancel(self, queue: _Queue, request: RequestKey) -> None:
        dropped = queue.flow.cancel_request(request, time.monotonic())
        if dropped is not None:  # no caller waits for an answer
            self._dropped(queue, dropped)

    def _dropped(self, queue: _Queue, dropped: Dropped[WaitingJourney]) -> Rejection:
        self._parked.pop(_key(dropped.item.payload.journey), None)
        queue.last_drop = dropped.drop
        self._metrics.of(queue.pool.pool).count_drop(dropped.drop.name.lower())
        return dropped.item.payload.hop.refuse(dropped.refusal)

    def _plan(self, queue: _Queue, now: float, soon: bool = False) -> None:
        """Look at the queue when it is due, or in the next turn."""
        due = now if soon else queue.flow.next_wake_at(now)
        if due is not None:
            self._timers.wake_after(queue.pool.pool, max(0.0, due - now))

    def _wake(self, pool: str) -> None:
        queue, now = self._queues[pool], time.monotonic()
        for outcome in queue.flow.wake_requests(now, lambda: queue.measure(now), most=WOKEN_AT_ONCE):
            journey, hop = outcome.item.payload
            if isinstance(outcome, Dispatch):
                self._parked.pop(_key(journey), None)
                queue.last_drop = None
                self._go_on(journey, hop, outcome.queued_s, outcome.unserved)
            else:
                hop.finish(self._dropped(queue, outcome))
        self._observe(queue, now)
        self._plan(queue, now)

    def _observe(self, queue: _Queue, now: float) -> None:
        self._demand.observe_queue(queue.pool, queue.flow, now, queue.last_drop)

    def _go_on(self, journey: Journey, hop: Hop[Journey], queued_s: float, unserved: Unserved | None) -> None:
        finish_waiting(journey, hop, lambda: self._binding.decide(journey, hop, queued_s, unserved))


def _without_dry_runs(journey: Journey, hop: Hop[Journey]) -> Rejection:
    del journey
    return hop.reject(501, "This scheduler takes no dry runs.", code="no_dry_runs")


def _key(journey: Journey) -> RequestKey:
    return journey.edge, journey.request_id


def _item(journey: Journey, hop: Hop[Journey], now: float) -> Item[WaitingJourney]:
    facts, wait_s = journey.request, hop.find_time_left(journey)
    slo_s = None if facts.slo_ttft_ms is None else facts.slo_ttft_ms / 1000
    late = slo_s is not None and facts.slo_late == REFUSE and slo_s < wait_s
    return Item(
        request=_key(journey),
        offered_at=now,
        flow=facts.fairness_id,
        program=find_program(facts.session, facts.attributes),
        priority=facts.priority,
        size=facts.body_bytes,
        prefill_tokens=facts.prompt_tokens,
        output_tokens=(facts.max_output_tokens or 0) * facts.answers,
        deadline=now + (slo_s if late and slo_s is not None else wait_s),
        slo_ttft_s=slo_s,
        late=late,
        payload=WaitingJourney(journey, hop),
    )
