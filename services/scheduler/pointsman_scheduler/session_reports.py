"""Explains sessions in events: the turn that each request is, why its engine stays or changes, and each change of a
session's engine. All of it is found once the edge has its decision."""

import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Final

from pointsman_contracts.identity import Identity
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import ReservationChange
from pointsman_contracts.session import RequestSession, SessionMoved, SessionTurn
from pointsman_plugins.scheduling.fleet import MATCHED
from pointsman_plugins.scheduling.request import RequestKey
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.session_turns import NO_FORECAST, ReturnForecast, SessionTurns, TurnSeen
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.scheduled_event import ScheduledEvent

GONE: Final = "gone"
FAILED: Final = "failed"
NO_ROOM: Final = "no-room"
FILTERED: Final = "filtered"
GIVEN: Final = "given"
TRIAL: Final = "trial"
EVICTED: Final = "evicted"
OUTSCORED: Final = "outscored"
_ROOM: Final = "cache-room"
"""The filter that stands for it in a run."""
_COMPUTED: Final = frozenset({"ok", "client_gone", "cut_off", "blocked"})
"""Outcomes of requests whose prompt an engine may have computed: it did where the answer began."""

_log = Log("sessions")


class SessionReporter:
    """Follows the sessions of all pools."""

    def __init__(self, bus: Bus, metrics: SchedulerMetrics) -> None:
        self._bus: Final = bus
        self._metrics: Final = metrics
        self._turns: Final = SessionTurns()
        self._sequences: Final[defaultdict[str, Iterator[int]]] = defaultdict(partial(count, 1))

    def report_turn(self, told: ScheduledEvent) -> SessionTurn | None:
        """The turn that a decided request is; publishes the change of its session's engine, if it is one. None for a
        request that is sent again after its turn ended."""
        journey, outcome = told.journey, told.outcome
        facts = journey.request
        change = next((hold.change for hold in outcome.holds if not hold.change.leg), None)
        pool = told.target.pool or ""
        if change is None:  # it is on the books already
            found = self._turns.find_open((journey.edge, journey.request_id))
            return None if found is None else _turn_of(told, found, ("", ""))
        waited_s = told.queued_s + (0.0 if told.bound is None else told.bound.waited_ms / 1000.0)
        seen = self._turns.begin_turn(pool, change, outcome.sight.now - waited_s)
        move, why = explain_place(told, seen)
        place = move or ("stayed" if seen.continues else "new")
        self._metrics.session_turns.labels(pool, place).inc()
        turn = _turn_of(told, seen, (move, why))
        if move and seen.last_worker is not None:
            self._publish_move(
                (journey.edge, journey.request_id),
                seen,
                pool=pool,
                at_ms=told.at_ms,
                session=RequestSession.from_facts(facts.session or "", facts.attributes),
                tenant=turn.tenant,
                model=journey.model,
                engines=(seen.last_worker, change.worker),
                place=(move, why),
                cached_tokens=outcome.cached_tokens,
                traceparent=told.traceparent,
            )
        return turn

    def note_peer_turn(self, pool: PoolScheduler, change: ReservationChange, now: float, *, applied: bool) -> None:
        """Another scheduler sent a request of a session to an engine. `applied`: it is on the books now."""
        request = change.edge, change.request_id
        if change.leg or not (applied or pool.books.ended(request)):
            return
        self._turns.begin_turn(pool.pool, change, now, mine=False)
        if not applied:
            # A short answer is over before its reservation comes.
            self._turns.end_turn(request, change.worker, change.boot_id, now, NO_FORECAST, answered=True)

    def note_end(self, event: ResponseCompleted, pool: PoolScheduler) -> None:
        """A request of a session is over, and off the books. Publishes the change of the session's engine where another
        one than the chosen one answered."""
        session, request, now = event.session, (event.source, event.request_id), time.monotonic()
        worker = None if event.worker is None else pool.fleet.find(event.worker)
        change = self._turns.end_turn(
            request,
            event.worker,
            "" if worker is None else worker.registration.boot_id,
            now,
            self._forecast(pool, event),
            answered=event.outcome in _COMPUTED and (event.outcome == "ok" or event.ttft_ms is not None),
        )
        if change is None or session is None:
            return
        seen = change.seen
        self._metrics.session_turns.labels(pool.pool, FAILED).inc()
        self._publish_move(
            request,
            seen,
            pool=pool.pool,
            at_ms=time.time_ns() // 1_000_000,
            session=session,
            tenant="" if event.identity is None else event.identity.tenant,
            model=event.model or "",
            engines=(change.last_worker, change.worker),
            place=(FAILED, f"{change.last_worker} didn't answer"),
        )

    def _forecast(self, pool: PoolScheduler, event: ResponseCompleted) -> ReturnForecast:
        room = pool.policies[-1].room if pool.policies else None
        prefix = self._turns.find_prefix((event.source, event.request_id))
        if room is None or prefix is None:
            return NO_FORECAST
        last_block, flow = prefix
        kept_for_s = room.room.find_kept_for_s(last_block)
        if kept_for_s is None:
            return NO_FORECAST
        return ReturnForecast(kept_for_s, room.room.returns.find_half_back_s(flow))

    def _publish_move(
        self,
        request: RequestKey,
        seen: TurnSeen,
        *,
        pool: str,
        at_ms: int,
        session: RequestSession,
        tenant: str,
        model: str,
        engines: tuple[str, str],
        place: tuple[str, str],
        cached_tokens: int = 0,
        traceparent: str | None = None,
    ) -> None:
        """`engines`: the last one and the one from now on. `place`: as of `explain_place`."""
        edge, request_id = request
        event = SessionMoved(
            request_id=request_id,
            source=self._bus.process.instance,
            sequence=next(self._sequences[pool]),
            at_ms=at_ms,
            edge=edge,
            pool=pool,
            session=session,
            turn=seen.number,
            tenant=tenant,
            model=model,
            last_worker=engines[0],
            worker=engines[1],
            reason=place[0],
            why=place[1],
            continued_tokens=seen.continued_tokens,
            cached_tokens=cached_tokens,
            gap_ms=_ms(seen.gap_s),
        )
        try:
            self._bus.publish(event, pool, traceparent=traceparent)
        except BusError as error:
            self._metrics.unpublished.labels(SessionMoved.__name__).inc()
            _log.debug("unpublished", reason=str(error))


def explain_place(told: ScheduledEvent, seen: TurnSeen) -> tuple[str, str]:
    """Why a turn goes to another engine than the one before, in a word, empty where it doesn't; and why it stays or
    goes, in a sentence."""
    outcome, facts = told.outcome, told.journey.request
    last, chosen = seen.last_worker, outcome.endpoints[0]
    if last is None:
        return "", _begins(seen)
    held, row = _held_by(outcome, last), _row_of(outcome, last)
    restarted = row is not None and outcome.sight.workers[row].registration.boot_id != seen.last_boot_id != ""
    continued = seen.continued_tokens
    tokens = f"{min(held, continued):,} of the {continued:,} prompt tokens that the session goes on with"
    if chosen.name == last:
        if restarted:
            return "", f"{last} restarted since"
        waited = "" if told.bound is None else f"; it waited {told.bound.waited_ms:,.0f} ms"
        return "", f"it stays with {last}, which holds {tokens}{waited}"
    here = _held_by(outcome, chosen.name)
    if seen.again:
        return FAILED, f"{last} didn't answer"
    if row is None or restarted:
        return GONE, f"{last} {'left the pool' if row is None else 'restarted since'}"
    if facts.workers is not None or facts.subset is not None:
        return GIVEN, f"a proxy chose among the engines; {last} holds {tokens}"
    if outcome.trial:
        return TRIAL, f"{chosen.name} gets this request as a trial; {last} holds {tokens}"
    for removed in outcome.selection.primary.removed:
        if row in removed.rows:
            why = removed.why if isinstance(removed.why, str) else removed.why(outcome.sight.workers[row])
            return NO_ROOM if removed.filter == _ROOM else FILTERED, f"{last} was removed by {removed.filter}: {why}"
    if held <= here:
        return EVICTED, f"{last} holds {tokens}, {chosen.name} {here:,}"
    waited = "" if told.bound is None else f" after {told.bound.waited_ms:,.0f} ms of waiting"
    return OUTSCORED, f"{last} holds {tokens}, {chosen.name} {here:,}, but {chosen.name} scored better in all{waited}"


def _begins(seen: TurnSeen) -> str:
    if seen.number == 1:
        return "the scheduler knows no earlier request of this session"
    shared = f", but for its first {seen.continued_tokens:,} tokens" if seen.continued_tokens else ""
    return f"its prompt goes on with none of the session's earlier ones{shared}"


def _row_of(outcome: Scheduled, worker: str) -> int | None:
    names = outcome.sight.names
    return names.index(worker) if worker in names else None


def _held_by(outcome: Scheduled, worker: str) -> int:
    row = _row_of(outcome, worker)
    return 0 if row is None else int(outcome.sight.figures.item(MATCHED, row))


def _turn_of(told: ScheduledEvent, seen: TurnSeen, place: tuple[str, str]) -> SessionTurn:
    attributes = told.journey.request.attributes
    identity = Identity.from_attributes(attributes) if attributes else None
    return SessionTurn(
        tenant="" if identity is None else identity.tenant,
        number=seen.number,
        continues=seen.continues,
        gap_ms=_ms(seen.gap_s),
        last_worker=seen.last_worker,
        continued_tokens=seen.continued_tokens,
        kept_for_ms=_ms(seen.kept_for_s),
        half_back_ms=_ms(seen.half_back_s),
        move=place[0],
        why=place[1],
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000.0, 1)
