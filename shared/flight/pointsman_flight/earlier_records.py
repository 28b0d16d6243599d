"""Records of formats before 4, which have a copy of each field of a message. A reader gives today's records instead."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, fields

from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.message import NO_BYTES, Part
from pointsman_contracts.response import AttemptFailed
from pointsman_contracts.scheduling import ReservationChange
from pointsman_contracts.worker import WorkerLoad
from pointsman_flight.hashes import BlockHashes
from pointsman_flight.records import (
    AttemptLost,
    Decided,
    LoadReported,
    LoggedRequest,
    PeerChanged,
    Record,
    RecordedOutcome,
)

_Field = tuple[str, Any] | tuple[str, Any, Any]
_Values = dict[str, Any]


def _of(message: type[Part], *names: str) -> list[_Field]:
    types = {field.name: field.type for field in fields(message)}
    return [(name, types[name]) for name in names]


def _record(name: str, tag: int | None, *given: _Field) -> type[msgspec.Struct]:
    """A record with these fields, in this order."""
    return msgspec.defstruct(name, given, tag=tag, frozen=True, array_like=True, gc=False)


_FACTS: Final[list[_Field]] = [
    ("model", str),
    ("lora", str | None),
    *_of(RequestFacts, "prompt_tokens", "tokens_exact", "max_output_tokens", "stream"),
    ("blocks", BlockHashes),
    *_of(RequestFacts, "block_tokens", "blocks_precise"),
]
_MORE_FACTS: Final[list[_Field]] = [
    *_of(RequestFacts, "session", "priority", "fairness_id", "body_bytes", "slo_ttft_ms", "slo_itl_ms"),
    *_of(RequestFacts, "subset", "workers", "features"),
    ("attempt", int),
]
_ENTERED: Final[list[_Field]] = [
    ("at", float), ("seed", int), ("policy", int), ("edge", str), ("request_id", str),
]  # fmt: skip
_REQUEST: Final = _record(
    "EarlierRequest",
    None,
    ("edge", str),
    ("request_id", str),
    *_FACTS,
    ("affinity", int),
    ("headers", dict[str, str]),
    *_MORE_FACTS,
)
_LOAD: Final = _record(
    "EarlierLoad",
    6,
    ("at", float),
    *_of(WorkerLoad, "worker", "boot_id", "sequence", "at_ms", "age_ms", "state", "reason", "running", "waiting"),
    *_of(WorkerLoad, "kv_usage", "running_loras", "waiting_loras", "max_loras"),
    ("counted", bool),
    ("load_unknown", str, ""),
    ("worked_tokens", int | None, None),
)
_DECIDED: Final = _record(
    "EarlierDecision",
    8,
    *_ENTERED,
    ("facts", _REQUEST | None),
    ("bound", str | None),
    ("queued_s", float),
    ("outcome", RecordedOutcome),
)
_LOST: Final = _record(
    "EarlierLoss",
    11,
    ("at", float),
    ("edge", str),
    *_of(AttemptFailed, "request_id", "worker", "boot_id", "outcome", "status", "next_worker"),
    ("leg", str, ""),
)
_CHANGED: Final = _record(
    "EarlierChange",
    13,
    ("at", float),
    ("scheduler", str),
    *_of(ReservationChange, "op", "request_id", "worker", "boot_id", "edge", "leg", "attempt", "lora", "session"),
    *_of(ReservationChange, "rank", "prompt_tokens", "uncached_tokens", "output_tokens", "block_tokens"),
    ("blocks", BlockHashes),
    *_of(ReservationChange, "blocks_precise", "streamed"),
    ("counted", bool),
    ("media", bool, False),
)
_BRIEF: Final = _record(
    "BriefDecision",
    22,
    *_ENTERED,
    ("bound", str | None),
    ("queued_s", float),
    ("kind", str),
    ("endpoints", tuple[str, ...]),
    ("held", bool),
    ("rank", int | None),
    ("cached_tokens", int),
    ("reasons", tuple[str, ...]),
    ("seen", int),
    ("scored", int),
    *[(name, kind | None, None) for name, kind, *_ in (*_FACTS, *_MORE_FACTS)],
    ("special", tuple[int, dict[str, str]] | None, None),
)
"""Most decisions of format 3: the facts are absent where an earlier record has them."""

EARLIER: Final = (_LOAD, _DECIDED, _LOST, _CHANGED, _BRIEF)


def _request(values: _Values) -> LoggedRequest:
    own = {name: values.pop(name) for name in ("model", "lora", "attempt", "affinity", "blocks")}
    return LoggedRequest(**own, facts=RequestFacts(api="", **values))


def _load(values: _Values, pool: str) -> Record:
    at, counted = values.pop("at"), values.pop("counted")
    return LoadReported(at, WorkerLoad(pool=pool, **values), counted)


def _lost(values: _Values, pool: str) -> Record:
    at, source = values.pop("at"), values.pop("edge")
    return AttemptLost(at, AttemptFailed(source=source, sequence=0, at_ms=0, pool=pool, **values))


def _changed(values: _Values, _pool: str) -> Record:
    own = {name: values.pop(name) for name in ("at", "scheduler", "blocks", "counted")}
    return PeerChanged(**own, change=ReservationChange(blocks=NO_BYTES, **values))


def _decided(values: _Values, _pool: str) -> Record:
    facts = values.pop("facts")
    if facts is not None:
        facts = asdict(facts)
        del facts["edge"], facts["request_id"]
    return Decided(**values, request=None if facts is None else _request(facts))


def _brief(values: _Values, _pool: str) -> Record:
    names = ("kind", "endpoints", "held", "rank", "cached_tokens", "reasons", "seen", "scored")
    outcome = RecordedOutcome(**{name: values.pop(name) for name in names})
    own = {name: values.pop(name) for name in (*(name for name, *_ in _ENTERED), "bound", "queued_s")}
    special: tuple[int, dict[str, str]] = values.pop("special") or (0, {})
    values |= {"affinity": special[0], "headers": special[1]}
    facts = None if own["bound"] is not None else _request(values)
    return Decided(**own, request=facts, outcome=outcome)


_TODAY: Final[Mapping[type, Callable[[_Values, str], Record]]] = {
    _LOAD: _load, _DECIDED: _decided, _LOST: _lost, _CHANGED: _changed, _BRIEF: _brief,
}  # fmt: skip


def today(record: msgspec.Struct, pool: str) -> msgspec.Struct:
    """The record as this version writes it."""
    read = _TODAY.get(type(record))
    return record if read is None else read(asdict(record), pool)
