"""Reports the attempts of a request: spans, events, metrics, and one log line where an engine begins to fail."""

import time

from pointsman_contracts.journey import Target
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_edge.edge import Edge
from pointsman_edge.sending.moving_on import BLAMELESS
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_edge.telling.request_span import operation, server
from pointsman_frontend.adapters.engine_connection import EndpointFailed
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.telemetry import NO_SPAN, Span

_log = Log("engines")


class AttemptReports:
    """Those of one edge."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def begin_span(
        self, record: RequestRecord, traceparent: str | None, endpoint: ChosenEndpoint, target: Target
    ) -> Span:
        """The span of an attempt; none without a trace."""
        if traceparent is None:
            return NO_SPAN
        return self._edge.tracing.begin_span(
            f"{operation(record)} {target.model}",
            traceparent,
            "client",
            gen_ai__operation__name=operation(record),
            gen_ai__provider__name=target.provider,
            gen_ai__request__model=target.model,
            pointsman__endpoint=endpoint.worker,
            **server(endpoint.url),
        )

    def report_failure(self, record: RequestRecord, failure: EndpointFailed, following: ChosenEndpoint | None) -> None:
        """The last attempt of the record failed; `following` is asked next."""
        edge = self._edge
        worker = record.attempts[-1].worker
        next_worker = following.worker if following else None
        edge.metrics.failed_attempts[failure.outcome] += 1
        edge.events.attempt_failed(record, edge.boot_of(record.pool, worker), next_worker)
        if failure.outcome in BLAMELESS:
            return
        # One line when an engine begins to fail; the events have every request.
        if edge.load.record_failure(worker, time.monotonic()):
            _log.warning(
                "attempt_failed",
                request_id=record.request_id,
                worker=worker,
                outcome=failure.outcome,
                reason=failure.detail,
                next_worker=next_worker,
            )

    def report_cut_off(self, record: RequestRecord, worker: str, reason: str) -> None:
        """An answer broke off that had begun to leave for its client."""
        if self._edge.load.record_failure(worker, time.monotonic()):
            _log.warning("answer_cut_off", request_id=record.request_id, worker=worker, reason=reason)
