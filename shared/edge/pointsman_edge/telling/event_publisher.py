"""Publishes the edge's events, numbered without gaps."""

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol

from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import StageReport
from pointsman_contracts.message import Message
from pointsman_contracts.reply import Answer, Rejection
from pointsman_contracts.response import (
    Attempt,
    AttemptFailed,
    LegReport,
    RequestAnswered,
    RequestRejected,
    ResponseCompleted,
    ResponseReviewed,
    ResponseStarted,
)
from pointsman_core.refusal import Refusal
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_runtime.bus.errors import MessageTooLarge, PayloadTooLarge
from pointsman_runtime.telling.counting import Counter
from pointsman_runtime.telling.logs import Log

_LONGEST_REASON = 1000

_log = Log("events")


class EventBus(Protocol):
    """The bus, as far as events need it."""

    def publish(self, message: Message, *route: str) -> None:
        """Send an event and hold it until the stream has it. Raises MessageTooLarge and PayloadTooLarge."""
        ...

    def hasten(self) -> None:
        """Let the events that were just published leave sooner, where a scheduler in another process waits for them."""
        ...

    def await_event(self, message: Message, *route: str, done: Callable[[], None]) -> None:
        """Write an event that was just published at once, and call `done` once the stream has it."""
        ...


class EventPublisher:
    """Publishes the events of requests."""

    def __init__(self, bus: EventBus, source: str, registry: CollectorRegistry) -> None:
        self._bus = bus
        self._source = source
        self._numbers: defaultdict[tuple[type[Message], str], count[int]] = defaultdict(partial(count, 1))
        self._too_large: set[type[Message]] = set()
        """Types that had an event too large for the bus."""
        self._dropped = Counter(
            "pointsman_edge_events_too_large", "Events that were too large for the bus", registry=registry
        )

    def publish_start(self, record: RequestRecord, worker: str, ttft_s: float) -> None:
        """The first byte of an answer arrived."""
        self._send(
            ResponseStarted(
                request_id=record.request_id,
                source=self._source,
                sequence=next(self._numbers[ResponseStarted, record.pool]),
                at_ms=_unix_ms(),
                pool=record.pool,
                worker=worker,
                attempt=len(record.attempts) + 1,
                ttft_ms=round(ttft_s * 1000, 3),
                handed_ms=handed_ms(record) if record.legs else None,
                decision=record.decisions,
            ),
            record.pool,
        )
        self._bus.hasten()

    def attempt_failed(self, record: RequestRecord, boot_id: str, next_worker: str | None) -> None:
        """The last attempt of the record failed."""
        self._publish_failure(record, record.attempts[-1], boot_id, next_worker=next_worker)

    def leg_failed(self, record: RequestRecord, report: LegReport, boot_id: str) -> None:
        """Another engine was to do a part of the work, and failed."""
        self._publish_failure(record, report, boot_id, leg=report.leg)

    def publish_rejection(self, record: RequestRecord, refusal: Refusal) -> None:
        """No endpoint was tried; `record.rejection` is set if a stage rejected the request."""
        stage = record.rejection.stage if record.rejection else "edge"
        sequence = next(self._numbers[RequestRejected, stage])
        self._send(describe_rejection(record, refusal, self._source, sequence), stage)

    def publish_answer(self, record: RequestRecord, answer: Answer) -> None:
        """A stage ended the request with an answer of its own."""
        sequence = next(self._numbers[RequestAnswered, answer.stage])
        self._send(describe_answer(record, answer, self._source, sequence), answer.stage)

    def publish_completion(self, record: RequestRecord, now: float) -> None:
        """The request has ended; `now` is monotonic."""
        pool = record.pool
        number = next(self._numbers[ResponseCompleted, pool])
        completed = record.make_completion(self._source, number, time.time_ns() // 1_000_000, now)
        published = self._send(completed, pool)
        # Until a scheduler has heard of the end of a stream, it takes the engine to be at work, and holds the next
        # request back for as long as a pass takes at least: 4 ms. It makes no such assumption of whole responses.
        if record.stream:
            self._bus.hasten()
        reported = record.reported
        if reported is not None:
            if published:
                self._bus.await_event(completed, pool, done=reported)
            else:
                reported()

    def publish_reviews(self, record: RequestRecord, stages: tuple[StageReport, ...]) -> None:
        """The stages that come after the last byte have answered."""
        self._send(
            ResponseReviewed(
                request_id=record.request_id,
                source=self._source,
                sequence=next(self._numbers[ResponseReviewed, record.pool]),
                at_ms=_unix_ms(),
                pool=record.pool,
                stages=stages,
            ),
            record.pool,
        )

    def _publish_failure(
        self,
        record: RequestRecord,
        failed: Attempt | LegReport,
        boot_id: str,
        next_worker: str | None = None,
        leg: str = "",
    ) -> None:
        self._send(
            AttemptFailed(
                request_id=record.request_id,
                source=self._source,
                sequence=next(self._numbers[AttemptFailed, record.pool]),
                at_ms=_unix_ms(),
                pool=record.pool,
                worker=failed.worker,
                boot_id=boot_id,
                outcome=failed.outcome,
                status=failed.status,
                next_worker=next_worker,
                leg=leg,
                decision=record.decisions,
            ),
            record.pool,
        )

    def _send(self, message: Message, route: str) -> bool:
        """Publish an event; False where it is too large for the bus."""
        try:
            self._bus.publish(message, route)
        except (MessageTooLarge, PayloadTooLarge) as error:
            self._dropped.inc()
            if type(message) not in self._too_large:
                self._too_large.add(type(message))
                _log.error("event_too_large", error)
            return False
        return True


def handed_ms(record: RequestRecord) -> float | None:
    """From the end of the leg that computed the prompt elsewhere until the first byte; None where the endpoint that
    answers computed it."""
    last, first_byte_at = record.legs[-1], record.first_byte_at
    if last.outcome != "answered" or first_byte_at is None:
        return None
    return max(0.0, round((first_byte_at - record.received_at) * 1000.0 - last.began_ms - last.took_ms, 3))


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


def describe_rejection(record: RequestRecord, refusal: Refusal, source: str, sequence: int = 0) -> RequestRejected:
    """The event of a request that no endpoint got; `record.rejection` is set if a stage rejected it."""
    rejection: Rejection | None = record.rejection
    return RequestRejected(
        request_id=record.request_id,
        source=source,
        sequence=sequence,
        at_ms=_unix_ms(),
        stage=rejection.stage if rejection else "edge",
        status=refusal.status,
        code=refusal.code,
        reason=refusal.message[:_LONGEST_REASON],
        dropped_reason=refusal.dropped_reason,
        model=rejection.target.model if rejection and rejection.target else record.model,
        profile=rejection.profile if rejection else None,
        identity=rejection.identity if rejection else None,
        trail=rejection.trail if rejection else (),
    )


def describe_answer(record: RequestRecord, answer: Answer, source: str, sequence: int = 0) -> RequestAnswered:
    """The event of a request that a stage answered."""
    return RequestAnswered(
        request_id=record.request_id,
        source=source,
        sequence=sequence,
        at_ms=_unix_ms(),
        stage=answer.stage,
        status=answer.status,
        model=answer.model,
        profile=answer.profile,
        target=answer.target,
        level=answer.level,
        reasons=answer.reasons,
        trail=answer.trail,
    )
