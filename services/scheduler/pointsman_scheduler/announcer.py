"""Publishes reservations to peers and decisions to every reader, after the edges have their answers."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Final, TypeAlias

from pointsman_contracts.journey import Journey, Target
from pointsman_contracts.message import NO_BYTES, Blob, Message
from pointsman_contracts.scheduling import RequestScheduled, Reservations, UnboundRequest
from pointsman_journey.heartbeat import Heartbeat
from pointsman_journey.hop import Hop
from pointsman_plugins.scheduling.request import RequestKey
from pointsman_plugins.scheduling.worker import Hold
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError, MessageTooLarge
from pointsman_runtime.telling.logs import Log
from pointsman_scheduler.domain.flow_control import Unserved
from pointsman_scheduler.domain.late_binding import Binder, Bound, Unbound
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.scheduled_event import CANDIDATES_SHOWN, ScheduledEvent, describe_decision
from pointsman_scheduler.session_reports import SessionReporter

_log = Log("announcer")

_Change: TypeAlias = tuple[str, Sequence[Hold]]
"""A change of reservations on a pool's books (`op` as in `ReservationChange`), and these."""


class DecisionPublisher:
    """Publishes, once a turn of the event loop, one `Reservations` for each pool and one `RequestScheduled` for each
    request."""

    def __init__(self, bus: Bus, heartbeat: Heartbeat, pools: Pools, metrics: SchedulerMetrics) -> None:
        self._bus: Final = bus
        self._heartbeat: Final = heartbeat
        self._pools: Final = pools
        self._metrics: Final = metrics
        self.instance: Final = bus.process.instance
        self.sessions: Final = SessionReporter(bus, metrics)
        self._decisions: list[ScheduledEvent] = []
        self._changes: dict[str, list[_Change]] = {}
        """By pool, with an empty list where only waiting requests have changed."""
        self._sequences: Final[defaultdict[tuple[str, str], Iterator[int]]] = defaultdict(partial(count, 1))
        """The next number of each kind of message, for each pool."""
        self._waiting: set[str] = set()
        """Pools whose waiting requests have changed since they were last published."""
        self._told_waiting: dict[str, frozenset[RequestKey]] = {}
        """Pool → waiting requests that the peers know with their blocks."""
        self._others = False
        """Whether there are other schedulers."""
        self._planned = False
        self._too_large = False
        """Whether a decision was too large to publish even with a single candidate."""

    def record_decision(
        self,
        journey: Journey,
        target: Target,
        policy: Policy,
        revision: int,
        outcome: Scheduled,
        took_s: float,
        queued_s: float,
        hop: Hop[Journey],
        bound: Bound | None,
        unserved: Unserved | None = None,
    ) -> None:
        """Record a decision; it is published a turn later."""
        report = hop.report(note=f"{len(outcome.sight.workers)} workers")
        at_ms = time.time_ns() // 1_000_000
        self._decisions.append(
            ScheduledEvent(
                journey=journey,
                target=target,
                policy=policy,
                revision=revision,
                outcome=outcome,
                took_s=took_s,
                queued_s=queued_s,
                report=report,
                traceparent=hop.traceparent,
                at_ms=at_ms,
                bound=bound,
                unserved=unserved,
            )
        )
        self._changes.setdefault(target.pool or "", []).append(("reserve", outcome.holds))
        if not self._planned:
            self._plan()

    def record_change(self, pool: str, op: str, holds: Sequence[Hold]) -> None:
        """Record a change that this scheduler made to the books of a pool; `op` as in `ReservationChange`."""
        self._changes.setdefault(pool, []).append((op, holds))
        if not self._planned:
            self._plan()

    def _plan(self) -> None:
        self._planned = True
        loop = asyncio.get_running_loop()
        # Two turns later: the bus writes the answers to the edges at the end of this one.
        loop.call_soon(loop.call_soon, self.publish_recorded)

    def record_waiting(self, pool: str) -> None:
        """Record that the requests that wait for an engine in this pool have changed."""
        self._changes.setdefault(pool, [])
        self._waiting.add(pool)
        if not self._planned:
            self._plan()

    def publish_recorded(self) -> None:
        """Publish what was recorded since the last turn."""
        self._planned = False
        decisions, changes, waiting = self._decisions, self._changes, self._waiting
        self._decisions, self._changes, self._waiting = [], {}, set[str]()
        # A scheduler that joins later asks for the books.
        others = bool(self._heartbeat.table.has_others(self._bus.process.service))
        if others is not self._others:
            self._others = others
            # The others learn how long a pass takes from what an edge of this process publishes of first tokens and
            # ends: later than that, the engine seems slower than it is.
            self._bus.outside.allow_haste(others)
        if others:
            for pool, batch in changes.items():
                self._publish_changes(pool, batch, unbound=pool in waiting)
        for told in decisions:
            self._explain(told)

    def _explain(self, told: ScheduledEvent) -> None:
        """Publish one decision. While the event is too large, it shows fewer candidates."""
        pool = told.target.pool or ""
        sequence = next(self._sequences["scheduled", pool])
        shown, turn = CANDIDATES_SHOWN, None
        while shown:
            try:
                if turn is None and told.journey.request.session is not None:
                    turn = self.sessions.report_turn(told)
                event = describe_decision(told, self.instance, sequence, shown, turn).encode()
                self._bus.publish_written(
                    RequestScheduled, event, self.instance, sequence, pool, traceparent=told.traceparent
                )
            except MessageTooLarge:
                shown //= 4
            except BusError as error:
                self._note_unpublished(RequestScheduled, error)
                return
            except Exception as error:  # noqa: BLE001 - the words of one filter must not silence the other decisions
                self._metrics.unpublished.labels(RequestScheduled.__name__).inc()
                _log.error("not_explained", error, request_id=told.journey.request_id)
                return
            else:
                return
        self._note_too_large(told, pool)

    def _note_too_large(self, told: ScheduledEvent, pool: str) -> None:
        self._metrics.unpublished.labels(RequestScheduled.__name__).inc()
        if not self._too_large:
            self._too_large = True
            _log.error("decision_too_large", request_id=told.journey.request_id, pool=pool)

    def _publish_changes(self, pool: str, batch: Sequence[_Change], *, unbound: bool) -> None:
        sequence = next(self._sequences["reservations", pool])
        told = self._unbound(pool) if unbound else None
        at_ms = time.time_ns() // 1_000_000
        changes = tuple([hold.with_op(op) for op, holds in batch for hold in holds])
        message = Reservations(
            pool=pool, scheduler=self.instance, sequence=sequence, at_ms=at_ms, changes=changes, unbound=told
        )
        try:
            self._bus.publish_to_peers(message, pool)
        except BusError as error:
            self._note_unpublished(Reservations, error)

    def _unbound(self, pool: str) -> tuple[UnboundRequest, ...]:
        binder, now = self._pools.of(pool).binder, time.monotonic() * 1000.0
        known = self._told_waiting.get(pool, frozenset())
        waiting = binder.waiting
        self._told_waiting[pool] = frozenset(each.request.key for each in waiting)
        return tuple([_waiting(binder, each, now, known=each.request.key in known) for each in waiting])

    def _note_unpublished(self, message: type[Message], error: BusError) -> None:
        """Readers see the gap in the sequence and ask; this publisher can't send it again."""
        self._metrics.unpublished.labels(message.__name__).inc()
        _log.debug("unpublished", reason=str(error))


def _waiting(binder: Binder, each: Unbound, now_ms: float, *, known: bool) -> UnboundRequest:
    """`known`: the peers have its blocks."""
    request = each.request
    return UnboundRequest(
        worker=binder.worker_of(each),
        uncached_tokens=round(each.uncached),
        prompt_tokens=each.prompt,
        priority=request.facts.priority,
        left_ms=round(each.latest - now_ms),
        request_id=request.request_id,
        edge=request.edge,
        waited_ms=round(now_ms - each.since),
        max_output_tokens=request.longest_output,
        block_tokens=request.facts.block_tokens,
        blocks=NO_BYTES if known else Blob(request.blocks.tobytes()),
    )
