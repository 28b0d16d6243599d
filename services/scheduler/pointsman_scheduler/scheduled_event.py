"""`RequestScheduled`, encoded directly from the columns that a decision was made by."""

from typing import NamedTuple

import orjson

from pointsman_contracts.journey import Journey, StageReport, Target
from pointsman_scheduler.domain.explanation import Fields, explain
from pointsman_scheduler.domain.late_binding import Bound
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.domain.policy import Policy


class ScheduledEvent(NamedTuple):
    """A decision, with all fields of its event."""

    journey: Journey
    target: Target
    policy: Policy
    revision: int
    outcome: Scheduled
    took_s: float
    queued_s: float
    report: StageReport
    traceparent: str | None
    at_ms: int
    bound: Bound | None
    """None for a request that didn't wait for its engine."""


def written(told: ScheduledEvent, source: str, sequence: int, shown: int) -> bytes:
    """The event, with at most `shown` candidates of each run."""
    journey, outcome = told.journey, told.outcome
    runs, reason = explain(outcome, shown)
    return to_json(
        {
            "request_id": journey.request_id,
            "attempt": journey.attempt,
            "source": source,
            "sequence": sequence,
            "at_ms": told.at_ms,
            "edge": journey.edge,
            "pool": told.target.pool or "",
            "model": journey.model,
            "target": told.target,
            "profile": journey.profile or "",
            "primary": outcome.selection.primary.profile,
            "runs": runs,
            "endpoints": [worker.name for worker in outcome.endpoints],
            "reason": reason,
            "legs": {leg: outcome.sight.names[run.chosen[0]] for leg, run in outcome.selection.legs.items()},
            "stream": journey.request.stream,
            "prompt_tokens": journey.request.prompt_tokens,
            "cached_tokens": outcome.cached_tokens,
            "prefix": outcome.prefix,
            "queued_ms": round(told.queued_s * 1000, 1),
            "unbound_ms": 0.0 if told.bound is None else round(told.bound.waited_ms, 1),
            "bound_because": "" if told.bound is None else told.bound.because,
            "decided_us": round(told.took_s * 1e6, 1),
            "revision": told.revision,
            "policy_hash": told.policy.hash,
            "seed": outcome.seed,
            "level": "degraded" if outcome.reasons else journey.level,
            "reasons": (*journey.reasons, *outcome.reasons),
            "trail": (*journey.trail, told.report),
        }
    )


def to_json(fields: Fields) -> bytes:
    """The JSON document of a message with these fields. A model among them is replaced by its fields, none of which is
    bytes."""
    return orjson.dumps(fields, default=vars, option=orjson.OPT_SERIALIZE_NUMPY)
