"""Makes recorded decisions again, from the recorded inputs.

A `PoolScheduler` gets the calls that the recorded one got, in their order, with the same times, seeds and policies, and
must decide alike. Nothing here knows how a decision is made.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, cast

import numpy as np
from msgspec.structs import replace

from pointsman_contracts.kv import KvChange
from pointsman_contracts.message import NO_BYTES, Blob
from pointsman_contracts.worker import WorkerRegistration
from pointsman_core.config import SchedulingPolicy
from pointsman_flight import records
from pointsman_flight.reader import Flight, LoggedRecord, Segment
from pointsman_flight.records import Decided, RecordedOutcome
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_scheduler.domain.kv_following import Told
from pointsman_scheduler.domain.late_binding import Bound, PeerRequest
from pointsman_scheduler.domain.outcome import Outcome
from pointsman_scheduler.domain.policy import Instances, Policy, PolicyRegistries, compile_policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.domain.prefix_index.life import Dump
from pointsman_scheduler.flight import format_1, known_classes
from pointsman_scheduler.flight.outcomes import recorded
from pointsman_scheduler.flight.recorder import BLOCK_FIGURES, figures
from pointsman_scheduler.flight.thawing import SnapshotError, thaw, unpacked

_DIGESTS: Final = {
    "seen": "load signals or held prefixes",
    "scored": "scores",
    "signals": "load signals",
    "matched": "held prefixes",
    "scores": "scores",
}
"""The meaning of an outcome's digests."""


class Replayed(NamedTuple):
    """One record, replayed."""

    logged: LoggedRecord
    outcome: Outcome | Exception | None
    """A decision's outcome, as it was made again; otherwise None."""
    difference: str
    """How the result differs from the recorded one; empty when it doesn't."""


class FlightReplay:
    """Replays one flight. After each step `pool` is as it was then."""

    def __init__(self, flight: Flight, registries: PolicyRegistries) -> None:
        self.flight: Final = flight
        self.pool = self.new_pool(PrefixIndex())
        self.policies: Final[dict[int, Policy]] = {}
        """By the log's number."""
        self._registries: Final = registries
        for registry in registries:
            for plugin in registry.types.values():
                known_classes.allow(plugin.__module__)
        self._instances = Instances()
        self._waiting: dict[RequestKey, ScheduleRequest] = {}
        """Requests that go to the engine that they waited for: the next decision about each is for it."""
        self._parts: list[bytes] = []
        self._fresh = False
        """Whether a snapshot follows that is to be taken over."""
        self._recorded: Callable[[Outcome | Exception], RecordedOutcome] = recorded
        self._takers: Final[Mapping[type, Callable[[LoggedRecord], str]]] = {
            records.PolicyDefined: self._define,
            records.PoliciesUsed: self._use,
            records.BlocksMeasured: self._measure,
            records.WorkerRegistered: self._register,
            records.WorkerRemoved: self._remove,
            records.LoadReported: self._hear,
            records.KvTold: self._hear_kv,
            records.Swept: self._sweep,
            records.BindAsked: self._bind_then,
            records.LookedAtWaiting: self._bind,
            records.AnswerStarted: self._start,
            records.AttemptLost: self._fail,
            records.AnswerAdded: self._add_answer,
            records.RequestCompleted: self._complete,
            records.PeerChanged: self._apply,
            records.PeerWaiting: self._peer,
            records.WaitEnded: self._end_waiting,
            records.IndexDumped: self._dump,
            records.IndexLoaded: self._load,
            records.StateChecked: self._check,
            records.SnapshotPart: self._part,
            records.SegmentEnded: lambda _: "",
        }

    def run(self) -> Iterator[Replayed]:
        """All records in order. Raises LogError for a log that can't be read, and SnapshotError."""
        segment: Segment | None = None
        for logged in self.flight.read_entries():
            if logged.segment is not segment:
                segment = self._enter(logged.segment, segment)
            record = logged.record
            if isinstance(record, Decided):
                outcome = self.decide(record)
                yield Replayed(logged, outcome, self.compare(record, outcome))
            else:
                yield Replayed(logged, None, self._takers[type(record)](logged))

    def _enter(self, segment: Segment, before: Segment | None) -> Segment:
        if before is None or not segment.header.follows:
            self._begin(segment)
        self._parts = []
        self._recorded = format_1.recorded_then if segment.header.format == format_1.FORMAT else recorded
        return segment

    def new_pool(self, index: PrefixIndex) -> PoolScheduler:
        """A pool that knows nothing."""
        return PoolScheduler(self.flight.pool, self.flight.scheduler, index)

    def _begin(self, segment: Segment) -> None:
        """Start from nothing; a snapshot follows where the recorded scheduler knew something."""
        header = segment.header
        self.pool = self.new_pool(PrefixIndex(max_bytes=header.index_bytes))
        self.policies.clear()
        self._instances = Instances()
        self._waiting.clear()
        self._fresh = not header.empty

    def _define(self, logged: LoggedRecord) -> str:
        record = cast("records.PolicyDefined", logged.record)
        if record.number not in self.policies:
            settings = SchedulingPolicy.model_validate_json(record.settings)
            self.policies[record.number] = self.compiled(record.name, settings)
        return ""

    def compiled(self, name: str, settings: SchedulingPolicy) -> Policy:
        """The policy that decides where this one was recorded. Plugins whose settings stay keep what they learnt."""
        return compile_policy(name, settings, self._registries, self._instances)

    def learnt(self) -> Mapping[int, Policy]:
        """The policies whose plugins take their state over from a snapshot."""
        return self.policies

    def _use(self, logged: LoggedRecord) -> str:
        record = cast("records.PoliciesUsed", logged.record)
        self.pool.use([self.policies[number] for number in record.policies])
        return ""

    def _part(self, logged: LoggedRecord) -> str:
        record = cast("records.SnapshotPart", logged.record)
        if not self._fresh:
            return ""  # the replay comes from the segment before: it has this state
        if not record.last:
            self._parts.append(record.content)
            return ""
        self._fresh = False
        thaw(unpacked(self._parts), self.pool, self.learnt())
        self._parts = []
        return ""

    def _measure(self, logged: LoggedRecord) -> str:
        self.pool.measure(cast("records.BlocksMeasured", logged.record).block_tokens)
        return ""

    def _register(self, logged: LoggedRecord) -> str:
        record = cast("records.WorkerRegistered", logged.record)
        try:
            self.pool.register(WorkerRegistration.decode(record.registration), record.at)
        except ValueError:
            return ""  # its URL is none, now as then
        return ""

    def _remove(self, logged: LoggedRecord) -> str:
        record = cast("records.WorkerRemoved", logged.record)
        self.pool.remove(record.worker, record.at)
        return ""

    def _hear(self, logged: LoggedRecord) -> str:
        record = cast("records.LoadReported", logged.record)
        return _differs("known", record.counted, self.pool.hear(record.load, record.at))

    def _hear_kv(self, logged: LoggedRecord) -> str:
        record = cast("records.KvTold", logged.record)
        changes = tuple([KvChange(op=op, blocks=Blob(blocks)) for op, blocks in record.changes])
        told = Told(record.everything, changes)
        self.pool.hear_kv(record.worker, record.boot_id, told, record.complete, record.at)
        return ""

    def _sweep(self, logged: LoggedRecord) -> str:
        record = cast("records.Swept", logged.record)
        return _differs("more to forget", record.more, self.pool.sweep(record.at, record.slack_s))

    def _bind(self, logged: LoggedRecord) -> str:
        record = cast("records.LookedAtWaiting", logged.record)
        found = tuple([str(each.because) for each in self._bound(record.at)])
        return _differs("bound requests", record.because, found)

    def _bind_then(self, logged: LoggedRecord) -> str:
        record = cast("records.BindAsked", logged.record)
        found = tuple([(*each.request.key, each.worker, str(each.because)) for each in self._bound(record.at)])
        return _differs("bound requests", record.bound, found)

    def _bound(self, at: float) -> list[Bound]:
        bound = self.pool.bind(at)
        for each in bound:
            self._waiting[each.request.key] = each.request
        return bound

    def compare(self, record: Decided, outcome: Outcome | Exception) -> str:
        """How the outcome differs from the recorded one; empty when it doesn't."""
        return difference(record.outcome, self._recorded(outcome))

    def decide(self, record: Decided) -> Outcome | Exception:
        """Make a recorded decision again."""
        request = self._waiting.pop((record.edge, record.request_id), None)
        if record.request is not None:
            request = request_of(record)
        if request is None:
            return LookupError("the recorded request waited, and doesn't wait here")
        try:
            return self.pool.decide(request, record.at, record.seed, self.policies[record.policy])
        except Exception as error:  # noqa: BLE001 - recorded as such
            return error

    def _start(self, logged: LoggedRecord) -> str:
        record = cast("records.AnswerStarted", logged.record)
        request = (record.edge, record.request_id)
        self.pool.books.started(
            request, record.worker, record.ttft_ms, record.at, record.handed_ms, decision=record.decision
        )
        return ""

    def _fail(self, logged: LoggedRecord) -> str:
        record = cast("records.AttemptLost", logged.record)
        self.pool.books.failed(record.event, record.at)
        return ""

    def _add_answer(self, logged: LoggedRecord) -> str:
        record = cast("records.AnswerAdded", logged.record)
        self.pool.books.add_answer((record.edge, record.request_id), record.worker, bytes(record.blocks), record.at)
        return ""

    def _complete(self, logged: LoggedRecord) -> str:
        record = cast("records.RequestCompleted", logged.record)
        self.pool.books.completed(
            request=(record.edge, record.request_id), now=record.at, ok=record.ok,
            output_tokens=record.output_tokens, duration_ms=record.duration_ms,
            worker=record.worker, told_ms=record.told_ms, ending=record.ending, disproved=record.disproved,
        )  # fmt: skip
        return ""

    def _apply(self, logged: LoggedRecord) -> str:
        record = cast("records.PeerChanged", logged.record)
        change = replace(record.change, blocks=Blob(record.blocks) if record.blocks else NO_BYTES)
        return _differs("counted", record.counted, self.pool.books.apply(change, record.scheduler, record.at))

    def _peer(self, logged: LoggedRecord) -> str:
        record = cast("records.PeerWaiting", logged.record)
        if record.requests is None:
            self.pool.binder.heard(record.scheduler, record.at_ms)
        else:
            requests = [PeerRequest(*request) for request in record.requests]
            self.pool.binder.peer(record.scheduler, requests, record.at_ms)
        return ""

    def _end_waiting(self, logged: LoggedRecord) -> str:
        record = cast("records.WaitEnded", logged.record)
        key = (record.edge, record.request_id)
        if record.at_ms is None:
            self.pool.binder.cancel(key)
            return ""
        bound: Bound | None = self.pool.binder.leave_now(key, record.at_ms)
        if bound is not None:
            self._waiting[key] = bound.request
        return ""

    def _dump(self, logged: LoggedRecord) -> str:
        record = cast("records.IndexDumped", logged.record)
        self.pool.index.dump(record.life, record.at)
        return ""

    def _load(self, logged: LoggedRecord) -> str:
        record = cast("records.IndexLoaded", logged.record)
        dump = Dump(
            np.frombuffer(record.blocks, dtype="<u8"),
            np.frombuffer(record.ages, dtype="<f8"),
            np.frombuffer(record.stored, dtype=np.uint8).astype(np.bool_),
        )
        self.pool.index.load(record.life, dump, record.at)
        return ""

    def _check(self, logged: LoggedRecord) -> str:
        record = cast("records.StateChecked", logged.record)
        found = figures(self.pool)
        counted_apart = len(record.figures) == len(found) or not self.pool.index.has_reports
        for place, (name, then, now) in enumerate(zip(records.CHECKED, record.figures, found, strict=False)):
            if then != now and (counted_apart or place >= BLOCK_FIGURES):
                return f"{name}: {then:g} recorded, {now:g} replayed"
        return ""


def request_of(record: Decided) -> ScheduleRequest:
    """The recorded request. It must be in this record."""
    logged = record.request
    if logged is None:
        raise ValueError(f"request {record.request_id} is in an earlier record")
    return ScheduleRequest(
        request_id=record.request_id,
        facts=logged.facts,
        model=logged.model,
        lora=logged.lora,
        blocks=np.frombuffer(logged.blocks, dtype="<u8"),
        edge=record.edge,
        attempt=logged.attempt,
        queued_s=record.queued_s,
        beginning=logged.affinity if logged.blocks else None,
        bound=record.bound,
    )


def difference(then: RecordedOutcome, now: RecordedOutcome) -> str:
    """How two outcomes differ, in words; empty when they don't, to the last digit of each score."""
    if then == now:
        return ""
    if then.kind != now.kind:
        return f"{then.kind} ({_result(then)}) recorded, {now.kind} ({_result(now)}) replayed"
    if _result(then) != _result(now):
        return f"{_result(then)} recorded, {_result(now)} replayed"
    for name in ("rank", "held", "legs", "cached_tokens", "reasons"):
        if getattr(then, name) != getattr(now, name):
            return f"{name.replace('_', ' ')}: {getattr(then, name)} recorded, {getattr(now, name)} replayed"
    for name, words in _DIGESTS.items():
        if getattr(then, name) != getattr(now, name):
            return f"same choice, other {words}"
    return "other"


def _result(outcome: RecordedOutcome) -> str:
    return ", ".join(outcome.endpoints) or outcome.code


def _differs(what: str, then: object, now: object) -> str:
    return "" if then == now else f"{what}: {then} recorded, {now} replayed"


__all__ = ["FlightReplay", "Replayed", "SnapshotError", "difference", "request_of"]
