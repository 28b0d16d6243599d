"""The time to read and write the ten most frequent messages, against pydantic. Run: `python -m benchmarks.messages`.

Each message is compared with a pydantic model of the same fields, as messages were until they became structs, in turn
with it: the ratio is of the shortest of many bursts.
"""

import sys
import time
from collections.abc import Callable
from functools import cache
from types import GenericAlias, UnionType
from typing import Any, Union, cast, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo, fields
from pydantic import BaseModel, ConfigDict, Field, create_model

from pointsman_contracts.journey import Journey, PreprocessRequest
from pointsman_contracts.limits import LimitAsks
from pointsman_contracts.message import Blob, Message, Part, read_fields
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.reply import Decision
from pointsman_contracts.response import ResponseCompleted, ResponseStarted
from pointsman_contracts.scheduling import RequestScheduled, Reservations
from pointsman_contracts.worker import WorkerLoad

BAR = 0.5
"""Of pydantic's time, for reading and writing together."""
TARGET = {"model": "meta-llama/Llama-3.1-8B-Instruct", "pool": "llama-8b"}
IDENTITY = {"tenant": "acme", "subject": "ci", "plan": "gold", "key": "k-1"}
REPORT = {"stage": "profile-picker", "instance": "profile-picker-7f9c", "took_ms": 0.4, "note": "rule 2"}
HEADERS = {"content-type": "application/json", "user-agent": "OpenAI/Python 2.0", "accept": "*/*"}
ENVELOPE = {"request_id": "6f1a-77", "edge": "frontend-1", "received_ms": 1_790_000_000_000, "revision": 12}
EVENT = {"request_id": "6f1a-77", "source": "frontend-1", "sequence": 71_231, "at_ms": 1_790_000_000_123}
EDIT = {"field": "model", "value": "meta-llama/Llama-3.1-8B-Instruct"}
USAGE = {"prompt_tokens": 1834, "completion_tokens": 211, "cached_tokens": 1024}
WORKERS = [f"worker-{number}" for number in range(8)]
CANDIDATES = {
    "workers": WORKERS,
    "ages_ms": [12.5] * 8,
    "running": [3] * 8,
    "waiting": [0] * 8,
    "kv_usage": [0.4375] * 8,
    "matched_tokens": [64] * 8,
    "scores": {name: [0.5] * 8 for name in ("prefix", "queue", "delay")},
    "totals": [1.25] * 8,
}
CHANGE = {
    "op": "reserve",
    "request_id": "6f1a-77",
    "worker": "worker-3",
    "boot_id": "b7",
    "edge": "frontend-1",
    "prompt_tokens": 1834,
    "uncached_tokens": 810,
    "output_tokens": 200,
    "blocks": bytes(range(200)),
}
ASK = {
    "edge": "frontend-1",
    "request_id": "6f1a-77",
    "limit": "tokens",
    "shard": 17,
    "scope": "acme",
    "windows": [{"unit": "tokens", "amount": 1e6, "period_s": 60.0}],
    "cost": 2045.0,
    "until_ms": 1_790_000_600_000,
    "open_s": 600.0,
}
SAMPLES: dict[type[Message], dict[str, object]] = {
    PreprocessRequest: {
        **ENVELOPE,
        "deadline_ms": 1_790_000_600_000,
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": HEADERS,
        "client": "10.0.0.9",
    },
    Journey: {
        **ENVELOPE,
        "deadline_ms": 1_790_000_600_000,
        "model": "llama",
        "target": TARGET,
        "profile": "standard",
        "itinerary": [{"service": "scheduler"}],
        "body": [EDIT],
        "trail": [REPORT, REPORT],
        "request": {
            "api": "chat.completions",
            "path": "/v1/chat/completions",
            "stream": True,
            "body_bytes": 7400,
            "prompt_tokens": 1834,
            "max_output_tokens": 512,
            "blocks": bytes(range(224)),
            "features": ["tools"],
            "headers": HEADERS,
            "fields": {"model": "llama", "temperature": 0.2, "stream": True},
            "attributes": {"identity": IDENTITY},
        },
    },
    Decision: {
        "request_id": "6f1a-77",
        "revision": 12,
        "profile": "standard",
        "model": "llama",
        "target": TARGET,
        "endpoints": [{"worker": name, "url": f"http://10.0.0.{at}:8000"} for at, name in enumerate(WORKERS[:3])],
        "body": [EDIT],
        "scheduler": "scheduler-1",
        "identity": IDENTITY,
        "prompt_tokens": 1834,
        "first_byte_within_ms": 812.5,
    },
    ResponseStarted: {**EVENT, "pool": "llama-8b", "worker": "worker-3", "ttft_ms": 88.125},
    ResponseCompleted: {
        **EVENT,
        "pool": "llama-8b",
        "worker": "worker-3",
        "model": "llama",
        "target": TARGET,
        "profile": "standard",
        "api": "chat.completions",
        "stream": True,
        "status": 200,
        "outcome": "ok",
        "attempts": [{"worker": "worker-3", "outcome": "answered", "status": 200, "took_ms": 88.125}],
        "decided_ms": 1.25,
        "ttft_ms": 89.5,
        "duration_ms": 2312.5,
        "usage": USAGE,
        "identity": IDENTITY,
        "served": "llama",
        "bytes_out": 41_231,
    },
    RequestScheduled: {
        **EVENT,
        "edge": "frontend-1",
        "pool": "llama-8b",
        "model": "llama",
        "target": TARGET,
        "profile": "standard",
        "primary": "default",
        "runs": [{"profile": "default", "chosen": WORKERS[:3], "weights": {"prefix": 2.0}, "candidates": CANDIDATES}],
        "endpoints": WORKERS[:3],
        "reason": "worker-3 scored 1.25 (prefix 2 * 0.50 + queue 1 * 0.25)",
        "revision": 12,
        "trail": [REPORT, REPORT, REPORT],
    },
    Reservations: {
        "pool": "llama-8b",
        "scheduler": "scheduler-1",
        "sequence": 71_231,
        "at_ms": 1_790_000_000_123,
        "changes": [CHANGE, CHANGE | {"op": "release", "blocks": b""}],
    },
    WorkerLoad: {
        "worker": "worker-3",
        "pool": "llama-8b",
        "boot_id": "b7",
        "sequence": 90_112,
        "at_ms": 1_790_000_000_123,
        "running": 11,
        "waiting": 2,
        "kv_usage": 0.4375,
    },
    ServicePresence: {
        "service": "scheduler",
        "instance": "scheduler-1",
        "sequence": 90_112,
        "at_ms": 1_790_000_000_123,
        "version": "0.1.0",
        "revision": 12,
    },
    LimitAsks: {"asks": [ASK, ASK]},
}


@cache
def model(kind: type[Part]) -> type[BaseModel]:
    """A pydantic model with the fields of this part."""
    config = ConfigDict(frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64")
    made = {field.name: (_type(field.type), _default(field)) for field in fields(kind)}
    if kind is Decision:
        made["kind"] = (str, "decision")
    return create_model(kind.__name__, __config__=config, **cast("dict[str, Any]", made))


def _type(annotation: object) -> object:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return model(annotation)
    if annotation is Blob:
        return bytes
    origin, arguments = get_origin(annotation), tuple(map(_type, get_args(annotation)))
    if origin is UnionType:
        return Union[arguments]  # noqa: UP007 - `|` takes no tuple
    if origin is tuple or origin is dict:
        return GenericAlias(cast("type", origin), arguments)
    return cast("object", annotation)


def _default(field: FieldInfo) -> object:
    if field.required:
        return ...
    if field.default is not msgspec.NODEFAULT:
        return field.default
    default = cast("object", field.default_factory())
    return Field(default_factory=dict) if default == {} else _converted(default)


def _converted(default: object) -> object:
    return model(type(default))() if isinstance(default, Part) else default


def burst_us(work: Callable[[], object]) -> float:
    """Microseconds of one call, of two hundred."""
    began = time.process_time_ns()
    for _ in range(200):
        work()
    return (time.process_time_ns() - began) / 200_000


def ratio(ours: Callable[[], object], theirs: Callable[[], object], bursts: int = 100) -> tuple[float, float]:
    """Microseconds of both: the shortest bursts, in turn."""
    pairs = [(burst_us(ours), burst_us(theirs)) for _ in range(bursts)]
    mine, other = zip(*pairs, strict=True)
    return min(mine), min(other)


def compared(kind: type[Message], sample: dict[str, object]) -> tuple[int, float, float, float, float]:
    """Bytes of the document; microseconds of reading it, and of pydantic's; the same of writing."""
    message = read_fields(kind, sample)
    document = message.encode()
    twin = model(kind)
    validate, serialize = twin.__pydantic_validator__.validate_json, twin.__pydantic_serializer__.to_json
    other = validate(document)
    read, their_read = ratio(lambda: kind.decode(document), lambda: validate(document))
    write, their_write = ratio(message.encode, lambda: serialize(other, exclude_none=True))
    return len(document), read, their_read, write, their_write


def main() -> int:
    """Print the figures, in microseconds; 1 when all together are above the bar."""
    print(
        f"{'message':20} {'bytes':>6}   {'read':>8} {'pydantic':>8} {'ratio':>5}   {'write':>8} {'pydantic':>8} ratio"
    )
    mine = theirs = 0.0
    for kind, sample in SAMPLES.items():
        size, read, their_read, write, their_write = compared(kind, sample)
        mine, theirs = mine + read + write, theirs + their_read + their_write
        reading = f"{read:8.2f} {their_read:8.2f} {read / their_read:5.2f}"
        writing = f"{write:8.2f} {their_write:8.2f} {write / their_write:5.2f}"
        print(f"{kind.__name__:20} {size:6}   {reading}   {writing}")
    print(f"together: {mine / theirs:.2f} of pydantic's time; bar {BAR}")
    return 0 if mine <= BAR * theirs else 1


if __name__ == "__main__":
    sys.exit(main())
