"""Flow control of one pool: a state machine that knows no clock and no bus."""

import math
from bisect import insort
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import Struct

from pointsman_scheduler.domain.flow_control.band import Band
from pointsman_scheduler.domain.flow_control.drain_rate import DrainRate
from pointsman_scheduler.domain.flow_control.item import Item
from pointsman_scheduler.domain.flow_control.outcome import (
    ASLEEP,
    ASLEEP_WORDS,
    EMPTY_WORDS,
    NONE,
    SATURATED_WORDS,
    Dispatch,
    Drop,
    Dropped,
    Parked,
    Unserved,
    describe_missing,
)
from pointsman_scheduler.domain.flow_control.policy import FlowPolicy
from pointsman_scheduler.domain.flow_control.queue import Queue, Waiting

T = TypeVar("T")

LOOK_AGAIN_S: Final = 0.05
"""While a request waits, the pool's capacity is measured at least this often: signals also age."""
MOST_BANDS: Final = 64
"""Priorities come from clients: beyond this many bands, a request joins the nearest band below its priority."""
BAND_IDLE_S: Final = 600.0
"""A band without requests for this long is forgotten, and the service of its flows with it."""
NO_ENDPOINT_RETRY_S: Final = 10.0
"""`Retry-After` of a pool without endpoints, whose start isn't known: engines take at least this long."""


class Capacity(Struct, frozen=True):
    """Workers and saturation of the pool at this moment."""

    endpoints: int
    """Workers that may get requests: registered, and not asleep. 0 while requests should wait until one serves."""
    saturation: float
    """The detector's saturation; without meaning while the pool has no endpoint."""
    asleep: int = 0
    """Registered workers that sleep."""


class Figures(NamedTuple):
    """Figures for metrics."""

    requests: int
    bytes: int
    by_band: dict[int, tuple[int, int, int]]
    """Priority → requests, bytes, flows that wait."""
    unserved: int = 0
    """Requests that wait while the pool has no endpoint."""


class FlowController(Generic[T]):
    """Every operation is O(log n) in the number of waiting requests.

    The caller chooses the endpoint of a `Dispatch` before it asks for the next one: its choice counts for the
    saturation that the next one is judged by.
    """

    def __init__(self, policy: FlowPolicy) -> None:
        self.policy = policy
        """Changed by `adopt` alone."""
        self._bands: dict[int, Band[T]] = {}
        self._order: list[int] = []
        """Negated priorities of the bands, ascending."""
        self.waiting: Final[dict[Hashable, Waiting[T]]] = {}
        """Waiting requests, by their identity. The caller only reads it."""
        self._bytes = 0
        self._sequence = 0
        self._by_age: Queue[T] = Queue()
        self._by_deadline: Queue[T] = Queue()
        self._drain: Final = DrainRate()
        self._displaced: dict[Hashable, Dropped[T]] = {}
        """Requests that gave way to others and haven't been reported yet."""
        self._empty: bool | None = None
        """Whether the pool had no endpoint at the last look."""
        self._asleep = 0
        """`Capacity.asleep` at the last look."""
        self._regime_since = -math.inf
        """Time of the last change of `_empty`."""
        self._empty_since: float | None = None
        """None while the pool has an endpoint."""
        self._empty_before = 0.0
        """Seconds that it had none, before that."""
        self.there = NONE
        """`PoolWanted.there`: now, or when the pool had no endpoint last."""
        self._closing = False

    @property
    def unserved(self) -> int:
        """Requests that wait while the pool has no endpoint; 0 while it has one."""
        return len(self.waiting) if self._empty else 0

    def find_oldest(self) -> float | None:
        """When the request came that has waited longest; None while none waits."""
        oldest = self._by_age.first_waiting()
        return None if oldest is None else oldest.item.offered_at

    @property
    def is_quiet(self) -> bool:
        """Whether no request waits or gave way, and new ones are taken."""
        return not (self.waiting or self._displaced or self._closing)

    def lets_pass(self, priority: int, now: float, capacity: Capacity) -> bool:
        """Whether a request of this priority can go at once. When False, `offer` decides."""
        if not self.is_quiet:
            return False
        if (capacity.endpoints <= 0) is not self._empty:
            self._observe(capacity, now)
        return self._may_go(self._bands.get(priority) or self._band_for(priority, now), capacity)

    def offer_request(self, item: Item[T], now: float, capacity: Capacity) -> Dispatch[T] | Parked[T] | Dropped[T]:
        """Offer a new request. One that waits already keeps its place and gets the new payload."""
        waiting = self.waiting.get(item.request)
        if waiting is not None:
            waiting.item.payload = item.payload
            return Parked(waiting.item, self._reason())
        displaced = self._displaced.pop(item.request, None)
        if displaced is not None:
            displaced.item.payload = item.payload
            return displaced
        self._observe(capacity, now)
        if self._closing:
            return self._dropped(item, Drop.SHUTTING_DOWN, now)
        if item.deadline <= now:
            return self._dropped(item, _passed(item), now)
        if not self.policy.settings.enabled:
            return Dispatch(item, 0.0)
        band = self._band_for(item.priority, now)
        if self._may_go(band, capacity) and not self._waits_at_or_above(band.priority):
            return Dispatch(item, 0.0)
        if self._empty and self.policy.no_endpoint_ttl <= 0:
            return self._dropped(item, Drop.NO_ENDPOINTS, now)
        if not band.has_room(item.size) or not self._make_room(item, band.priority, now):
            return self._dropped(item, Drop.NO_ENDPOINTS if self._empty else Drop.SATURATED, now)
        self._park(item, band, now)
        return Parked(item, self._reason())

    def wake_requests(
        self, now: float, gauge: Callable[[], Capacity], most: int = 64
    ) -> Iterator[Dispatch[T] | Dropped[T]]:
        """The requests that stop waiting now: those that timed out, then at most `most` that may go.

        `gauge` is asked again after each dispatch.
        """
        capacity = gauge()
        self._observe(capacity, now)
        while self._displaced:
            yield self._displaced.pop(next(iter(self._displaced)))
        yield from self._expire(now)
        for _ in range(most):
            band = self._highest()
            if band is None or not self._may_go(band, capacity):
                break
            self._drain.count_departure(now)
            waiting = band.take(now)
            self._forget(waiting, now)
            item = waiting.item
            unserved_s = self._empty_clock(now) - item.empty_clock
            unserved = Unserved(unserved_s, self.there) if unserved_s > 0 else None
            yield Dispatch(item, now - item.offered_at, unserved)
            capacity = gauge()
        self._forget_idle_bands(now)

    def has_above(self, priority: int) -> bool:
        """Whether a request of a higher priority waits."""
        return self._waits_at_or_above(priority + 1)

    def next_wake_at(self, now: float) -> float | None:
        """When to call `wake` even if nothing happens; None while no request waits."""
        if self._displaced:
            return now
        if not self.waiting:
            return None
        first, dead = self._by_age.first_waiting(), self._by_deadline.first_waiting()
        ends = [self._ends_at(waiting.item) for waiting in (first, dead) if waiting is not None]
        return max(now, min(*ends, now + LOOK_AGAIN_S))

    def cancel_request(self, request: Hashable, now: float) -> Dropped[T] | None:
        """The client hung up: remove its request. None when it doesn't wait here."""
        waiting = self.waiting.get(request)
        return self._displaced.pop(request, None) if waiting is None else self._drop(waiting, Drop.CANCELLED, now)

    def shut_down(self, now: float) -> list[Dropped[T]]:
        """Drop all waiting requests, and reject every later one."""
        self._closing = True
        displaced, self._displaced = list(self._displaced.values()), {}
        return displaced + [self._drop(waiting, Drop.SHUTTING_DOWN, now) for waiting in list(self.waiting.values())]

    def adopt_policy(self, policy: FlowPolicy, now: float) -> None:
        """Replace the policy. Waiting requests stay, in the order in which they came, even where the new limits are
        lower."""
        if policy.settings == self.policy.settings:
            return
        waiting = sorted(self.waiting.values(), key=lambda each: each.sequence)
        self.policy = policy
        self._bands, self._order = {}, []
        for each in waiting:
            band = self._band_for(each.item.priority, now)
            each.priority = band.priority
            band.put(each, policy.settings.ttl, now)

    def measure_queues(self) -> Figures:
        """The waiting requests, in figures."""
        return Figures(
            len(self.waiting),
            self._bytes,
            {band.priority: (band.requests, band.bytes, band.flows) for band in self._bands.values()},
            self.unserved,
        )

    def _may_go(self, band: Band[T], capacity: Capacity) -> bool:
        return capacity.endpoints > 0 and (
            not self.policy.settings.enabled or capacity.saturation < band.policy.settings.ceiling
        )

    def _waits_at_or_above(self, priority: int) -> bool:
        highest = self._highest()
        return highest is not None and highest.priority >= priority

    def _highest(self) -> Band[T] | None:
        """The highest band with a waiting request; lower bands wait until it is empty."""
        if self.waiting:
            for negated in self._order:
                band = self._bands[-negated]
                if band.requests:
                    return band
        return None

    def _park(self, item: Item[T], band: Band[T], now: float) -> None:
        self._sequence += 1
        item.empty_clock = self._empty_clock(now)
        waiting = Waiting(item, band.priority, item.flow, self._sequence)
        band.put(waiting, self.policy.settings.ttl, now)
        self.waiting[item.request] = waiting
        self._bytes += item.size
        self._by_age.push_waiting(item.offered_at, waiting)
        if item.deadline < math.inf:
            self._by_deadline.push_waiting(item.deadline, waiting)
        self._drain.note_busy(now)

    def _forget(self, waiting: Waiting[T], now: float) -> None:
        """Remove a request that has left its band from the totals."""
        del self.waiting[waiting.item.request]
        self._bytes -= waiting.item.size
        self._by_age.note_departure()
        if waiting.item.deadline < math.inf:
            self._by_deadline.note_departure()
        if not self.waiting:
            self._drain.note_idle(now)

    def _make_room(self, item: Item[T], priority: int, now: float) -> bool:
        """Whether the item fits under the pool's limits. If it must, it takes the place of the newest requests of lower
        bands."""
        settings = self.policy.settings
        requests = len(self.waiting) + 1 - settings.max_requests if settings.max_requests is not None else 0
        size = self._bytes + item.size - settings.max_bytes if settings.max_bytes is not None else 0
        if requests <= 0 and size <= 0:
            return True
        below = [self._bands[-negated] for negated in reversed(self._order) if -negated < priority]
        if sum(band.requests for band in below) < requests or sum(band.bytes for band in below) < size:
            return False
        for band in below:
            while (requests > 0 or size > 0) and (latest := band.latest()) is not None:
                requests -= 1
                size -= latest.item.size
                self._displaced[latest.item.request] = self._drop(latest, Drop.SATURATED, now)
        return True

    def _observe(self, capacity: Capacity, now: float) -> None:
        empty = capacity.endpoints <= 0
        self._asleep = capacity.asleep
        if empty:
            self.there = ASLEEP if capacity.asleep else NONE
        if empty is not self._empty:
            if self._empty is not None:
                self._regime_since = now
            self._empty = empty
            self._empty_before = self._empty_clock(now)
            self._empty_since = now if empty else None

    def _empty_clock(self, now: float) -> float:
        """Seconds that the pool has had no endpoint so far."""
        return self._empty_before + (0.0 if self._empty_since is None else now - self._empty_since)

    def _ends_at(self, item: Item[T]) -> float:
        """When the item times out. The budget restarts when the pool's last endpoint goes or its first one comes, but
        no wait is longer than the larger budget."""
        policy = self.policy
        budget = policy.no_endpoint_ttl if self._empty else policy.settings.ttl
        return min(
            max(item.offered_at, self._regime_since) + budget,
            item.offered_at + max(policy.settings.ttl, policy.no_endpoint_ttl),
            item.deadline,
        )

    def _expire(self, now: float) -> Iterator[Dropped[T]]:
        while (waiting := self._by_deadline.first_waiting()) is not None and waiting.item.deadline <= now:
            yield self._drop(waiting, _passed(waiting.item), now)
        # The older of two items times out first, in either case, so looking at the oldest is enough.
        while (waiting := self._by_age.first_waiting()) is not None and self._ends_at(waiting.item) <= now:
            yield self._drop(waiting, Drop.NO_ENDPOINTS if self._empty else Drop.EXPIRED, now)

    def _drop(self, waiting: Waiting[T], drop: Drop, now: float) -> Dropped[T]:
        self._bands[waiting.priority].remove(waiting)
        self._forget(waiting, now)
        return self._dropped(waiting.item, drop, now)

    def _dropped(self, item: Item[T], drop: Drop, now: float) -> Dropped[T]:
        waited_s = max(0.0, now - item.offered_at)
        detail = describe_missing(self._asleep, waited_s) if drop is Drop.NO_ENDPOINTS else ""
        refusal = drop.build_refusal(self._retry_after(item.priority, drop, now), detail)
        return Dropped(item, drop, refusal, waited_s)

    def _retry_after(self, priority: int, drop: Drop, now: float) -> float:
        """Seconds after which a retry of the same priority may find the requests that wait now gone."""
        if drop in (Drop.SHUTTING_DOWN, Drop.CANCELLED):
            return 1.0
        if self._empty:
            return NO_ENDPOINT_RETRY_S
        # When none are dispatched, the requests ahead leave by their time limit.
        return float(math.ceil(self.foresee_wait(priority, now) or max(1.0, self.policy.settings.ttl)))

    def foresee_wait(self, priority: int, now: float) -> float | None:
        """Seconds until one more request of this priority would leave the queue, at least 1; None when no request left
        it lately."""
        ahead = sum(band.requests for band in self._bands.values() if band.priority >= priority)
        return self._drain.wait_for(ahead + 1, now)

    def _reason(self) -> str:
        if self._empty:
            return ASLEEP_WORDS if self.there == ASLEEP else EMPTY_WORDS
        return SATURATED_WORDS

    def _band_for(self, priority: int, now: float) -> Band[T]:
        band = self._bands.get(priority)
        if band is not None:
            return band
        if priority not in self.policy.bands and len(self._bands) >= MOST_BANDS:
            below = [-negated for negated in self._order if -negated < priority]
            return self._bands[max(below) if below else min(self._bands)]
        band = self._bands[priority] = Band(priority, self.policy.policy_for(priority), now)
        insort(self._order, -priority)
        return band

    def _forget_idle_bands(self, now: float) -> None:
        for negated in list(self._order):
            band = self._bands[-negated]
            if not band.requests and now - band.used_at > BAND_IDLE_S:
                del self._bands[-negated]
                self._order.remove(negated)


def _passed(item: Item[T]) -> Drop:
    return Drop.LATE if item.late else Drop.DEADLINE
