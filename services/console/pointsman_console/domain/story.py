"""One request as a page tells it: the decision with every candidate, the stages in their order, the end. Pure.

Reasons are in the words of `pointsman explain` (`pointsman_core.why`).
"""

from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from pointsman_contracts.cascade import ESCALATED
from pointsman_contracts.journey import StageReport
from pointsman_contracts.message import fields_of
from pointsman_contracts.mirroring import MirrorCompared
from pointsman_contracts.money import dollars
from pointsman_contracts.response import (
    AttemptFailed,
    RequestAnswered,
    RequestRejected,
    ResponseCompleted,
    ResponseReviewed,
    ResponseStarted,
)
from pointsman_contracts.scheduling import ProfileRun, RequestScheduled
from pointsman_contracts.session import SessionMoved
from pointsman_core import why
from pointsman_core.request_events import Event

Document = dict[str, JsonValue]


def told(edge: str, events: Sequence[Event]) -> Document:
    """The events of one edge's request."""
    decisions = [event for event in events if isinstance(event, RequestScheduled)]
    end = next((event for event in reversed(events) if isinstance(event, ResponseCompleted)), None)
    given = next((event for event in events if isinstance(event, RequestAnswered | RequestRejected)), None)
    reviewed = [report for event in events if isinstance(event, ResponseReviewed) for report in event.stages]
    lines: list[JsonValue] = [{"at_ms": event.at_ms, "text": _line(event)} for event in events]
    each: list[JsonValue] = [_decision(event) for event in decisions]
    return {
        "edge": edge,
        "id": events[0].request_id,
        "over": end is not None,
        "events": lines,
        "decisions": each,
        "end": None if end is None else _end(end),
        "given": None if given is None else _given(given),
        "reviews": _reports([*(end.stages if end is not None else ()), *reviewed]),
        "timeline": _timeline(decisions[-1] if decisions else None, given, end),
    }


def _line(event: Event) -> str:
    match event:
        case RequestScheduled():
            return f"{event.source} chose {event.endpoints[0] if event.endpoints else 'no endpoint'}"
        case ResponseStarted():
            return f"{event.worker} sent the first byte after {event.ttft_ms:.1f} ms"
        case AttemptFailed():
            if event.outcome == ESCALATED:
                return f"the answer of {event.worker} wasn't given; the cascade's next model is asked"
            status = "" if event.status is None else f" with {event.status}"
            if event.leg:
                return f"{event.worker} {event.outcome}{status}; the endpoint that answers does the {event.leg}"
            onwards = f"next {event.next_worker}" if event.next_worker else "no endpoint is left"
            return f"{event.worker} {event.outcome}{status}; {onwards}"
        case ResponseCompleted():
            return f"{event.source} ended it: {event.status} {event.outcome}"
        case RequestRejected():
            return f"{event.stage} rejected it with {event.status}"
        case RequestAnswered():
            return f"{event.stage} answered it with {event.status}"
        case SessionMoved():
            return f"session {event.session.id} goes from {event.last_worker} to {event.worker}: {event.reason}"
        case ResponseReviewed():
            return "stages reviewed the response after its last byte"
        case MirrorCompared():
            return why.describe_copy(event)


def _decision(event: RequestScheduled) -> Document:
    runs: list[JsonValue] = [_run(run, used=run.profile == event.primary) for run in event.runs]
    return {
        "at_ms": event.at_ms,
        "pool": event.pool,
        "model": event.model,
        "target": event.target.lora or event.target.model,
        "provider": event.target.provider,
        "models": [fields_of(point) for point in event.models],
        "profile": event.profile,
        "endpoints": list(event.endpoints),
        "reason": event.reason,
        "short": why.short(event),
        "prompt": why.legs(event),
        "prelude": why.prelude(event),
        "session": list(why.describe_turn(event)),
        "scheduler": event.source,
        "attempt": event.attempt,
        "prompt_tokens": event.prompt_tokens,
        "cached_tokens": event.cached_tokens,
        "prefix": event.prefix,
        "queued_ms": event.queued_ms,
        "unbound_ms": event.unbound_ms,
        "bound_because": event.bound_because,
        "decided_us": event.decided_us,
        "revision": event.revision,
        "policy": event.policy_hash,
        "level": event.level,
        "degraded": list(event.reasons),
        "trail": _reports(event.trail),
        "runs": runs,
    }


def _run(run: ProfileRun, *, used: bool) -> Document:
    columns = run.candidates
    row_of = {worker: row for row, worker in enumerate(columns.workers)}
    candidates: list[JsonValue] = []
    for verdict in why.verdicts(run):
        row = row_of[verdict.worker]
        scores: dict[str, JsonValue] = {name: values[row] for name, values in columns.scores.items()}
        candidates.append(
            {
                "worker": verdict.worker,
                "words": verdict.words,
                "total": verdict.total,
                "chosen": verdict.words == "chosen",
                "removed": verdict.worker in columns.filtered,
                "age_ms": columns.ages_ms[row],
                "running": columns.running[row],
                "waiting": columns.waiting[row],
                "kv": columns.kv_usage[row],
                "matched": columns.matched_tokens[row],
                "fetched": columns.fetched_tokens[row] if columns.fetched_tokens else 0,
                "opaque": verdict.worker in columns.opaque,
                "scores": scores,
            }
        )
    return {
        "profile": run.profile,
        "used": used,
        "error": run.error,
        "chosen": list(run.chosen),
        "weights": {name: run.weights.get(name, 1.0) for name in columns.scores},
        "omitted": columns.omitted,
        "candidates": candidates,
    }


def _end(event: ResponseCompleted) -> Document:
    usage, identity = event.usage, event.identity
    attempts: list[JsonValue] = [
        {
            "worker": attempt.worker,
            "outcome": attempt.outcome,
            "status": attempt.status,
            "took_ms": attempt.took_ms,
            "reason": attempt.reason,
        }
        for attempt in event.attempts
    ]
    legs: list[JsonValue] = [
        {
            "leg": leg.leg,
            "worker": leg.worker,
            "outcome": leg.outcome,
            "status": leg.status,
            "began_ms": leg.began_ms,
            "took_ms": leg.took_ms,
            "reason": leg.reason,
        }
        for leg in event.legs
    ]
    return {
        "at_ms": event.at_ms,
        "status": event.status,
        "outcome": event.outcome,
        "reason": event.reason,
        "worker": event.worker,
        "level": event.level,
        "api": event.api,
        "stream": event.stream,
        "decided_ms": event.decided_ms,
        "ttft_ms": event.ttft_ms,
        "duration_ms": event.duration_ms,
        "client": " / ".join(part for part in (identity.tenant, identity.subject, identity.plan) if part)
        if identity is not None
        else "",
        "usage": None if usage is None else fields_of(usage),
        "served": event.served,
        "cost": None if event.cost_nanos is None else dollars(event.cost_nanos),
        "attempts": attempts,
        "legs": legs,
        "seams": [
            {
                "worker": seam.worker,
                "next_worker": seam.next_worker,
                "form": seam.form,
                "at_ms": seam.at_ms,
                "gap_ms": seam.gap_ms,
                "kept_tokens": seam.kept_tokens,
                "computed_again": seam.computed_again,
            }
            for seam in event.seams
        ],
        "unresumed": event.unresumed,
        "confidence": None if event.confidence is None else fields_of(event.confidence),
        "unused": [
            {
                "model": each.served or each.target.model,
                "worker": each.worker,
                "judged": fields_of(each.judged),
                "began_ms": each.began_ms,
                "took_ms": each.took_ms,
                "usage": None if each.usage is None else fields_of(each.usage),
                "cost": None if each.cost_nanos is None else dollars(each.cost_nanos),
            }
            for each in event.unused or ()
        ],
        "promise": None if event.promise is None else fields_of(event.promise),
        "kept": event.kept,
    }


def _given(event: RequestAnswered | RequestRejected) -> Document:
    return {
        "stage": event.stage,
        "status": event.status,
        "rejected": isinstance(event, RequestRejected),
        "reason": event.reason if isinstance(event, RequestRejected) else "",
        "trail": _reports(event.trail),
    }


def _reports(reports: Iterable[StageReport]) -> JsonValue:
    return [
        {
            "stage": report.stage,
            "instance": report.instance,
            "outcome": report.outcome,
            "took_ms": report.took_ms,
            "note": report.note or "",
        }
        for report in reports
    ]


def _timeline(
    decision: RequestScheduled | None, given: RequestAnswered | RequestRejected | None, end: ResponseCompleted | None
) -> JsonValue:
    """Spans in milliseconds from the arrival of the request. Stages report how long they took, not when they began:
    they follow each other here, and the time between them is the bus's."""
    spans: list[JsonValue] = []
    at = 0.0

    def span(name: str, took_ms: float, kind: str) -> None:
        nonlocal at
        spans.append({"name": name, "from_ms": round(at, 3), "to_ms": round(at + took_ms, 3), "kind": kind})
        at += took_ms

    trail = decision.trail if decision is not None else given.trail if given is not None else ()
    for report in trail:
        # A processor's time is a part of the preprocessor's; the scheduler's comes behind the waits.
        if "/" in report.stage or (decision is not None and report.stage == "scheduler"):
            continue
        span(report.stage, report.took_ms, "stage")
    if decision is not None:
        if decision.queued_ms:
            span("queue", decision.queued_ms, "wait")
        if decision.unbound_ms:
            span("waits for its engine", decision.unbound_ms, "wait")
        span("scheduler", decision.decided_us / 1000.0, "stage")
    if end is not None:
        if end.decided_ms > at:
            span("bus and edge", end.decided_ms - at, "other")
        for leg in end.legs:
            # A leg beside the one that answers is part of the wait for the first token.
            until = leg.began_ms + leg.took_ms
            if leg.took_ms and until <= (end.duration_ms if end.ttft_ms is None else end.ttft_ms):
                span(f"{leg.leg} on {leg.worker}", max(0.0, until - at), "engine")
        if end.ttft_ms is not None and end.ttft_ms >= at:
            span("until the first token", end.ttft_ms - at, "engine")
        for seam in end.seams:
            if seam.at_ms >= at:
                span(f"answer of {seam.worker}", seam.at_ms - at, "answer")
                span(f"seam: {seam.next_worker} continues", seam.gap_ms, "wait")
        if end.duration_ms > at:
            span("answer" if end.ttft_ms is not None else "until the end", end.duration_ms - at, "answer")
    return spans
