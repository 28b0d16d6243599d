"""Which of the endpoints that Envoy was sent to gave the answer, and how each of them did."""

import time
from collections.abc import Sequence
from typing import Final

from pointsman_core.refusal import Refusal
from pointsman_edge.sending.moving_on import FAILED, failure_of
from pointsman_edge.telling.following import begin_answer
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.domain.answer import Answer, Header
from pointsman_epp_adapter.domain.destination import Destination, served_by
from pointsman_epp_adapter.domain.envoy_events import ResponseHead
from pointsman_epp_adapter.domain.envoys_answers import unanswered
from pointsman_epp_adapter.domain.prefill_report import INTENDED, JUDGED, Prefiller, leg_report

_NO_ANSWER: Final = "no answer, or an error; Envoy doesn't report which"


class EngineAttempts:
    """The attempts of one request, from the moment at which Envoy learns where to send it."""

    def __init__(self, envoy: EnvoyEdge, record: RequestRecord, chosen: list[Destination]) -> None:
        """`chosen`: at least one."""
        self._envoy = envoy
        self._edge = envoy.edge
        self._record = record
        self._chosen = chosen
        self.judged = False
        """The answer is an error, and its attempt is recorded as a failed one."""
        self.sent_at: Final = time.monotonic()
        self.worker = record.worker = chosen[0].worker
        self._edge.load.begin_attempt(self.worker)

    def close(self) -> None:
        """The worker has one open request less."""
        self._edge.load.end_attempt(self.worker)

    def begin_answer(self, answer: Answer, headers: Sequence[Header]) -> None:
        """The head of the answer is here: response processors follow it from now on."""
        record = self._record
        record.stream = answer.stream
        if record.policy.response_processors:
            failures = self._edge.processor_failures
            answer.tail = begin_answer(record, failures, answer.status, answer.stream, headers)

    def tell_served(self, address: str) -> None:
        """Record the endpoints before the one that answered as failed: Envoy tries them in order."""
        index = served_by(self._chosen, address)
        if index == 0:
            return
        following = [*self._chosen[1:], None]
        for failed, then in zip(self._chosen[:index], following, strict=False):
            self._failed(failed.worker, FAILED, None, then)
        # Beyond the list Envoy chose by itself.
        worker = (self._envoy.worker_at(address) or address) if index is None else self._chosen[index].worker
        self._edge.load.end_attempt(self.worker)
        self.worker = self._record.worker = worker
        self._edge.load.begin_attempt(worker)

    def take_leg(self, prefiller: Prefiller, head: ResponseHead) -> bool:
        """Record the sidecar's report of the leg that was to compute the prompt. Whether it did otherwise."""
        record, edge = self._record, self._edge
        worker = self._envoy.worker_at(prefiller.address, prefiller.rank) or prefiller.address
        leg = leg_report(head.headers, worker, record.decided_s)
        if leg is None:
            return False
        record.legs = (leg,)
        edge.metrics.prefill_legs[leg.outcome] += 1
        if leg.outcome in JUDGED:
            edge.events.leg_failed(record, leg, edge.boot_of(record.pool, leg.worker))
        return leg.outcome not in INTENDED

    def record_unanswered(self, status: int) -> Refusal:
        """Record that no endpoint answered, but Envoy with this status, and return the client's error."""
        record = self._record
        # Envoy doesn't report how many endpoints it tried; its retry policy may allow only two.
        self._failed(self._chosen[0].worker, FAILED, None, self._chosen[1] if len(self._chosen) > 1 else None)
        refusal = unanswered(status)
        record.end("timeout" if refusal.status == 504 else "engine_error", refusal.status, refusal.message)
        return refusal

    def judge_status(self, status: int) -> None:
        """An error that no other endpoint did better than reaches the client, and counts against its engine. Whether a
        404 is about a model isn't known before its body."""
        outcome = failure_of(status)
        if outcome is not None:
            self.record_failure(outcome, status)

    def record_failure(self, outcome: str, status: int) -> None:
        """The engine that answered did so with this error, whatever the status of its head."""
        self.judged = True
        self._failed(self.worker, outcome, status, None)

    def record_end(self, status: int | None, *, cut_off: bool) -> None:
        """The answer has ended; `cut_off`: something of it may be missing."""
        if not self.judged:
            self._record.record_attempt(self.worker, "cut_off" if cut_off else "answered", status, self._took())

    def _failed(self, worker: str, outcome: str, status: int | None, following: Destination | None) -> None:
        record, edge = self._record, self._edge
        reason = _NO_ANSWER if status is None else f"answered {status}"
        record.record_attempt(worker, outcome, status, self._took(), reason=reason)
        edge.metrics.failed_attempts[outcome] += 1
        edge.load.record_failure(worker, time.monotonic())
        edge.events.attempt_failed(record, edge.boot_of(record.pool, worker), following.worker if following else None)

    def _took(self) -> float:
        return time.monotonic() - self.sent_at
