"""Messages with everything filled in that a test doesn't care about."""

import itertools
import time

from pointsman_contracts.journey import Journey, PreprocessRequest, RequestFacts, Stage, Target
from pointsman_contracts.message import read_fields
from pointsman_contracts.reply import ChosenEndpoint, Decision
from pointsman_contracts.scheduling import RequestScheduled

_numbers = itertools.count(1)


def unix_ms(after_s: float = 0.0) -> int:
    """Unix milliseconds, `after_s` seconds from the present."""
    return time.time_ns() // 1_000_000 + round(after_s * 1000)


def preprocess_request(**changes: object) -> PreprocessRequest:
    """A chat completion as an edge sends it."""
    fields: dict[str, object] = {
        "request_id": f"request-{next(_numbers)}",
        "edge": "edge-1",
        "received_ms": unix_ms(),
        "deadline_ms": unix_ms(60),
        "revision": 1,
        "method": "POST",
        "path": "/v1/chat/completions",
    }
    return read_fields(PreprocessRequest, fields | changes)


def journey(*stages: str | Stage, **changes: object) -> Journey:
    """A journey whose itinerary is `stages`, for model and pool `llama-8b`; the first stage is the receiver."""
    fields: dict[str, object] = {
        "request_id": f"request-{next(_numbers)}",
        "edge": "edge-1",
        "received_ms": unix_ms(),
        "deadline_ms": unix_ms(60),
        "revision": 1,
        "request": RequestFacts(api="chat.completions", prompt_tokens=100),
        "model": "llama-8b",
        "target": Target(model="llama-8b", pool="llama-8b"),
        "profile": "standard",
        "itinerary": tuple(Stage(service=stage) if isinstance(stage, str) else stage for stage in stages),
    }
    return read_fields(Journey, fields | changes)


def decision(request_id: str = "request-1", **changes: object) -> Decision:
    """A decision for one endpoint."""
    fields: dict[str, object] = {
        "request_id": request_id,
        "revision": 1,
        "profile": "standard",
        "model": "llama-8b",
        "target": Target(model="llama-8b", pool="llama-8b"),
        "endpoints": (ChosenEndpoint(worker="worker-1", url="http://127.0.0.1:8000"),),
        "scheduler": "scheduler-1",
    }
    return read_fields(Decision, fields | changes)


def scheduled(**changes: object) -> RequestScheduled:
    """A decision for the model `m` in the pool `p`, asked by `edge-1`, without runs."""
    fields: dict[str, object] = {
        "request_id": "r-1",
        "source": "scheduler-1",
        "sequence": 1,
        "at_ms": 0,
        "edge": "edge-1",
        "pool": "p",
        "model": "m",
        "target": Target(model="m", pool="p"),
        "profile": "standard",
        "primary": "default",
        "runs": (),
        "endpoints": (),
        "reason": "",
        "revision": 1,
    }
    return read_fields(RequestScheduled, fields | changes)
