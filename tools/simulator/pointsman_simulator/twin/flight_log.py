"""A flight log as a recording: the traffic of one pool, from the records of all its schedulers."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from pointsman_contracts.worker import WorkerRegistration
from pointsman_core.config import SchedulingPolicy
from pointsman_flight import records
from pointsman_flight.reader import Flight, open_log
from pointsman_simulator.twin.recording import (
    FleetChange,
    LoadReport,
    RecordedEngine,
    RecordedPool,
    RecordedRequest,
)

_SETTLING_MS: Final = 10_000.0
"""An engine that is first heard of this long after the log began has joined."""
_USUAL_BLOCK: Final = 64


@dataclass(slots=True)
class _Request:
    """A request while its records are read. Times in ms of the wall clock."""

    arrived: float
    logged: records.LoggedRequest
    seed: int
    sent: float | None = None
    engine: str = ""
    first: float | None = None
    ended: float | None = None
    output_tokens: int = 0
    ok: bool = True


@dataclass(slots=True)
class _Engine:
    registration: WorkerRegistration
    seen: float
    reports: list[LoadReport] = field(default_factory=list[LoadReport])
    kv_events: bool = False
    max_loras: int = 0


def read_recording(paths: Iterable[Path], pool: str | None = None) -> RecordedPool:
    """Read segments and folders of a flight log. Raises LogError for a log that can't be read, ValueError for a pool
    that isn't in it, or for one that is missing where there are several."""
    flights = open_log(paths)
    pools = sorted({flight.pool for flight in flights})
    if pool is None and len(pools) > 1:
        raise ValueError(f"the log is of several pools; name one with --pool: {', '.join(pools)}")
    if pool is not None and pool not in pools:
        raise ValueError(f"the log has no pool {pool!r}; it has: {', '.join(pools)}")
    reading = _Reading(pool or pools[0])
    for flight in flights:
        if flight.pool == reading.pool:
            reading.read(flight)
    return reading.build_recording()


class _Reading:
    def __init__(self, pool: str) -> None:
        self.pool = pool
        self._requests: dict[tuple[str, str], _Request] = {}
        self._engines: dict[str, _Engine] = {}
        self._changes: list[FleetChange] = []
        self._policies: dict[str, list[tuple[float, records.PolicyDefined]]] = {}
        self._block_tokens = 0
        self._began = float("inf")
        self._lost = self._elsewhere = 0
        self._warm = False

    def read(self, flight: Flight) -> None:
        """Add the records of one scheduler."""
        header = flight.segments[0].header
        began = header.unix_ns / 1e6
        self._began = min(self._began, began)
        self._lost += sum(segment.header.missed for segment in flight.segments)
        self._warm = self._warm or not header.empty
        defined: dict[int, records.PolicyDefined] = {}

        def wall(at: float) -> float:
            return began + (at - header.monotonic) * 1000.0

        for entry in flight.read_entries():
            record = entry.record
            match record:
                case records.PolicyDefined():
                    defined[record.number] = record
                case records.BlocksMeasured():
                    self._block_tokens = record.block_tokens
                case records.WorkerRegistered():
                    self._registered(record, wall(record.at))
                case records.WorkerRemoved():
                    self._changes.append(FleetChange(wall(record.at), f"{record.worker} left"))
                case records.LoadReported() if record.load.worker in self._engines:
                    self._reported(record, wall(record.at))
                case records.KvTold() if record.worker in self._engines:
                    self._engines[record.worker].kv_events = True
                case records.Decided():
                    self._decided(record, wall(record.at), defined.get(record.policy))
                case records.AnswerStarted():
                    self._started(record, wall(record.at))
                case records.AttemptLost():
                    lost = self._requests.get((record.edge, record.request_id))
                    if lost is not None:
                        lost.ok = False
                case records.RequestCompleted():
                    self._completed(record, wall(record.at))
                case records.SegmentEnded():
                    self._lost += record.dropped
                case _:
                    pass

    def _registered(self, record: records.WorkerRegistered, at: float) -> None:
        registration = WorkerRegistration.decode(record.registration)
        known = self._engines.get(registration.worker)
        if known is None:
            if at - self._began > _SETTLING_MS:
                self._changes.append(FleetChange(at, f"{registration.worker} joined"))
            self._engines[registration.worker] = _Engine(registration, at)
        elif known.registration.boot_id != registration.boot_id and at > known.seen:
            self._changes.append(FleetChange(at, f"{registration.worker} restarted"))
            known.registration, known.seen = registration, at

    def _reported(self, record: records.LoadReported, at: float) -> None:
        load = record.load
        engine = self._engines[load.worker]
        engine.max_loras = max(engine.max_loras, load.max_loras)
        engine.reports.append(LoadReport(at, load.running, load.waiting, load.kv_usage))

    def _decided(self, record: records.Decided, at: float, policy: records.PolicyDefined | None) -> None:
        key = (record.edge, record.request_id)
        request = self._requests.get(key)
        if request is None and record.request is not None:
            request = self._requests[key] = _Request(at - record.queued_s * 1000.0, record.request, record.seed)
        if request is None:
            return
        outcome = record.outcome
        if outcome.kind == "scheduled" and not outcome.held:
            if request.sent is None:
                request.sent, request.engine = at, outcome.endpoints[0]
            else:
                request.ok = False  # decided again: an earlier attempt failed
            if outcome.legs:
                request.ok = False  # two engines shared the work
            if policy is not None:
                self._policies.setdefault(policy.hash, []).append((at, policy))
        elif outcome.kind in ("refused", "failed"):
            self._elsewhere += 1
            if request.sent is None:
                del self._requests[key]

    def _started(self, record: records.AnswerStarted, at: float) -> None:
        request = self._requests.get((record.edge, record.request_id))
        if request is not None and request.first is None:
            request.first = at
            request.ok = request.ok and record.worker == request.engine

    def _completed(self, record: records.RequestCompleted, at: float) -> None:
        request = self._requests.get((record.edge, record.request_id))
        if request is not None and request.ended is None:
            request.ended = at
            request.output_tokens = record.output_tokens or 0
            request.ok = request.ok and record.ok and record.worker in (None, request.engine)

    def build_recording(self) -> RecordedPool:
        began = self._began
        sent = [request for request in self._requests.values() if request.sent is not None]
        sizes = {request.logged.facts.block_tokens for request in sent} or {self._block_tokens or _USUAL_BLOCK}
        name, policy, hashes = self._policy()
        changes = [FleetChange(change.at_ms - began, change.what) for change in self._changes]
        changes += [FleetChange(at - began, f"the policy changed to {named!r}") for at, named in hashes[1:]]
        return RecordedPool(
            pool=self.pool,
            block_tokens=max(sizes),
            engines=tuple(_engine(engine, began) for _, engine in sorted(self._engines.items())),
            requests=[_request(request, began) for request in sorted(sent, key=lambda request: request.arrived)],
            began_unix_ms=began,
            policy_name=name,
            policy=policy,
            changes=tuple(sorted(changes, key=lambda change: change.at_ms)),
            warm=self._warm,
            lost=self._lost,
            elsewhere=self._elsewhere,
        )

    def _policy(self) -> tuple[str, SchedulingPolicy | None, list[tuple[float, str]]]:
        """The policy that decided most, and when each one decided first."""
        if not self._policies:
            return "", None, []
        most = max(self._policies.values(), key=len)[0][1]
        firsts = sorted((min(at for at, _ in uses), uses[0][1].name) for uses in self._policies.values())
        return most.name, SchedulingPolicy.model_validate_json(most.settings), firsts


def _engine(engine: _Engine, began: float) -> RecordedEngine:
    registration = engine.registration
    tokens = None
    if registration.kv_blocks is not None and registration.block_tokens is not None:
        tokens = registration.kv_blocks * registration.block_tokens
    kind = repr(
        (
            registration.engine, registration.engine_version, registration.models, registration.role,
            sorted(registration.labels.items()), tokens,
        )
    )  # fmt: skip
    return RecordedEngine(
        name=registration.worker,
        models=registration.models,
        kv_tokens=tokens,
        kind=hashlib.sha256(kind.encode()).hexdigest()[:12],
        max_loras=engine.max_loras,
        reports=tuple(
            LoadReport(report.at_ms - began, report.running, report.waiting, report.kv_usage)
            for report in engine.reports
        ),
        kv_events=engine.kv_events,
    )


def _request(request: _Request, began: float) -> RecordedRequest:
    logged, facts = request.logged, request.logged.facts
    sent = request.arrived if request.sent is None else request.sent
    return RecordedRequest(
        arrived_ms=request.arrived - began,
        sent_ms=sent - began,
        engine=request.engine,
        prompt_tokens=max(facts.prompt_tokens, 1),
        blocks=np.frombuffer(logged.blocks, dtype="<u8").tolist(),
        output_tokens=request.output_tokens,
        max_tokens=facts.max_output_tokens,
        lora=logged.lora,
        streamed=facts.stream,
        first_ms=None if request.first is None or not facts.stream else request.first - began,
        ended_ms=None if request.ended is None else request.ended - began,
        ok=request.ok,
        seed=request.seed,
    )
