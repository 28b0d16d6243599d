"""One line of the page of decisions, from an event. Pure."""

from pydantic import JsonValue

from pointsman_console.domain.sampling import DecisionFilter
from pointsman_contracts.response import RequestAnswered, RequestRejected, ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_core import why
from pointsman_core.request_events import Event, edge_of

Row = dict[str, JsonValue]


def row_of(event: Event) -> Row | None:
    """The line of an event; None for one that has none. Lines with one `key` are of one request."""
    match event:
        case RequestScheduled():
            return _head(event) | {
                "kind": "scheduled",
                "pool": event.pool,
                "model": event.model,
                "target": event.target.lora or event.target.model,
                "profile": event.profile,
                "endpoint": event.endpoints[0] if event.endpoints else "",
                "level": event.level,
                "reason": why.short(event),
                "degraded": "; ".join(event.reasons),
                "prompt": event.prompt_tokens,
                "cached": event.cached_tokens,
                "waited_ms": round(event.queued_ms + event.unbound_ms, 1),
            }
        case RequestRejected():
            return _head(event) | {
                "kind": "rejected",
                "model": event.model,
                "status": event.status,
                "outcome": "rejected",
                "endpoint": event.stage,
                "reason": event.reason,
                "tenant": event.identity.tenant if event.identity is not None else "",
            }
        case RequestAnswered():
            return _head(event) | {
                "kind": "answered",
                "model": event.model,
                "status": event.status,
                "outcome": "answered",
                "endpoint": event.stage,
                "level": event.level,
                "reason": f"answered by {event.stage}",
                "degraded": "; ".join(event.reasons),
            }
        case ResponseCompleted():
            usage = event.usage
            return _head(event) | {
                "kind": "completed",
                "pool": event.pool,
                "model": event.model,
                "endpoint": event.worker or event.answered_by or "",
                "level": event.level,
                "status": event.status,
                "outcome": event.outcome,
                "ttft_ms": event.ttft_ms,
                "duration_ms": round(event.duration_ms, 1),
                "prompt": usage.prompt_tokens if usage is not None else None,
                "completion": usage.completion_tokens if usage is not None else None,
                "tenant": event.identity.tenant if event.identity is not None else "",
                "problem": event.reason,
            }
        case _:
            return None


def wants(wanted: DecisionFilter, row: Row) -> bool:
    """Whether a filter wants a row that begins a line: bytes may say yes where a value says no."""
    exact = ((wanted.level, "level"), (wanted.endpoint, "endpoint"), (wanted.tenant, "tenant"), (wanted.pool, "pool"))
    if any(value and row.get(name) != value for value, name in exact):
        return False
    if wanted.model and wanted.model not in (row.get("model"), row.get("target")):
        return False
    return not wanted.reason or wanted.reason.lower() in f"{row.get('reason', '')} {row.get('degraded', '')}".lower()


def _head(event: Event) -> Row:
    edge = edge_of(event)
    return {"key": f"{edge} {event.request_id}", "id": event.request_id, "edge": edge, "at_ms": event.at_ms}
