"""Passes signals and events to the pools; requests go to the gate directly."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseStarted
from pointsman_contracts.scheduling import Reservations, UnboundRequest
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_hosting.configuration import Revision
from pointsman_scheduler.domain.doubted_workers import DOUBTS
from pointsman_scheduler.domain.late_binding import PeerRequest
from pointsman_scheduler.domain.ledger import Disproved
from pointsman_scheduler.domain.outlier_detection import DOUBTED
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.gate import Gate
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.replica import Replica
from pointsman_scheduler.session_reports import SessionReporter

_CLIENT_ERROR: Final = 400
"""From this status on an answer is usually the client's fault."""
_SERVER_ERROR: Final = 500
_ABOUT_PATHS: Final = (404, 405)
"""Statuses that say which paths and models an engine has."""


class Handlers:
    """One method for each kind of message. All run to their end in one turn of the event loop."""

    def __init__(
        self,
        pools: Pools,
        gate: Gate,
        replica: Replica,
        metrics: SchedulerMetrics,
        sessions: SessionReporter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pools: Final = pools
        self._gate: Final = gate
        self._replica: Final = replica
        self._metrics: Final = metrics
        self._sessions: Final = sessions
        self._clock: Final = clock

    def registered(self, registration: WorkerRegistration) -> None:
        """Take a worker's registration or its renewal. ValueError when it is invalid."""
        pool = self._pools.of(registration.pool)
        pool.register(registration, self._clock())
        self._gate.changed(pool)

    def left(self, pool: str, worker: str) -> None:
        """A worker reported that it leaves, or its registration lapsed."""
        found = self._pools.of(pool)
        found.remove(worker, self._clock())
        self._gate.changed(found)

    def load(self, load: WorkerLoad) -> None:
        """A worker's load report."""
        pool = self._pools.of(load.pool)
        pool.hear(load, self._clock())
        self._gate.changed(pool)

    def started(self, event: ResponseStarted) -> None:
        """The first byte of an answer came."""
        pool = self._pools.get(event.pool)
        if pool is not None:
            request, now = (event.source, event.request_id), self._clock()
            pool.books.started(request, event.worker, event.ttft_ms, now, event.handed_ms, decision=event.decision)
            self._gate.stirred(pool)

    def failed(self, event: AttemptFailed) -> None:
        """An endpoint didn't answer."""
        pool = self._pools.get(event.pool)
        if pool is not None:
            pool.books.failed(event, self._clock())
            self._gate.changed(pool)

    def completed(self, event: ResponseCompleted) -> None:
        """A request is over. An edge whose client left before the decision doesn't know the pool. Its request may then
        wait here, or be on the books of any pool."""
        request = (event.source, event.request_id)
        self._gate.left(request)
        usage = event.usage
        tokens = usage.completion_tokens if usage is not None else None
        ok, now = event.outcome == "ok", self._clock()
        ending, disproved = "", ()
        doubt = _doubt(event)
        if not ok:
            ending = event.outcome if event.outcome == "cut_off" else doubt or _unsure(event)
        elif event.status >= _CLIENT_ERROR:
            ending = doubt or "client_error"
        else:
            ending = doubt
            if len(event.attempts) > 1:
                disproved = _disproved(event)
        named = self._pools.get(event.pool)
        if event.answer_blocks and ok and named is not None and event.worker is not None:
            named.books.add_answer(request, event.worker, event.answer_blocks, now)
        for pool in self._pools if named is None else (named,):
            pool.books.completed(
                request=request,
                now=now,
                ok=ok,
                output_tokens=tokens,
                # Of a cascade's last model it is the time of the others as well.
                duration_ms=None if event.unused else event.duration_ms,
                worker=event.worker,
                told_ms=event.at_ms,
                ending=ending,
                disproved=disproved,
            )
            self._gate.stirred(pool)
        if event.session is not None and named is not None:
            self._sessions.note_end(event, named)

    def reserved(self, message: Reservations) -> None:
        """Apply another scheduler's changes to the books."""
        if not self._replica.follows(message):
            return
        pool, now = self._pools.of(message.pool), self._clock()
        ignored = 0
        for change in message.changes:
            applied = pool.books.apply(change, message.scheduler, now)
            if not applied:
                ignored += 1
            if change.session is not None and change.op == "reserve":
                self._sessions.note_peer_turn(pool, change, now, applied=applied)
        if ignored:
            self._metrics.of(message.pool).ignored(ignored)
        binder, now_ms = pool.binder, now * 1000.0
        if message.unbound is not None:
            binder.peer(message.scheduler, [_peer_request(each, now_ms) for each in message.unbound], now_ms)
        elif binder.silent(message.scheduler, now_ms):
            binder.heard(message.scheduler, now_ms)
        self._gate.stirred(pool)

    def configured(self, revision: Revision[Mapping[str, Policy]]) -> None:
        """A revision came into force; earlier ones still decide for requests that started with them."""
        self._pools.use(revision.compiled, {name: pool.block_tokens for name, pool in revision.config.pools.items()})
        self._gate.apply_policies({name: policy.flow_control for name, policy in revision.compiled.items()})


def _unsure(event: ResponseCompleted) -> str:
    """Behind Envoy the edge can't tell a client that leaves from an answer that breaks off."""
    attempts = event.attempts
    return "unsure" if event.outcome == "client_gone" and attempts and attempts[-1].outcome == "cut_off" else ""


def _doubt(event: ResponseCompleted) -> str:
    """One of `DOUBTS` for an answer that may be its engine's fault or the request's, where no second engine was asked;
    else empty."""
    attempts, status = event.attempts, event.status
    if not attempts:
        return ""
    last = attempts[-1]
    doubt = last.outcome if last.outcome in DOUBTS else ""
    if _CLIENT_ERROR <= status < _SERVER_ERROR and status not in _ABOUT_PATHS and last.status == status:
        doubt = doubt or "refusing"
    if not doubt or last.worker != event.worker:
        return ""
    return "" if any(each.outcome in DOUBTED for each in attempts[:-1]) else doubt


def _disproved(event: ResponseCompleted) -> tuple[Disproved, ...]:
    """The attempts that refused a request as the client's fault, or had no word for it, and that a later one
    answered. None are disproved by an answer that is in doubt itself."""
    if event.attempts[-1].outcome in DOUBTS:
        return ()
    refused = [each for each in event.attempts if each.outcome in DOUBTED and each.worker != event.worker]
    target = event.target
    name = "" if target is None else target.lora or target.model
    return tuple([(each.worker, each.outcome, name) for each in refused])


def _peer_request(unbound: UnboundRequest, now_ms: float) -> PeerRequest:
    return PeerRequest(
        worker=unbound.worker, uncached=float(unbound.uncached_tokens), prompt=unbound.prompt_tokens,
        priority=unbound.priority, latest=now_ms + unbound.left_ms, edge=unbound.edge,
        request_id=unbound.request_id, since=now_ms - unbound.waited_ms,
        max_output=unbound.max_output_tokens, block_tokens=unbound.block_tokens, blocks=unbound.blocks,
    )  # fmt: skip
