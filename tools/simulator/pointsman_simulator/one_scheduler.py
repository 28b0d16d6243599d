"""One scheduler in virtual time: the object that decides in the service, its knowledge passed in by hand."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from pointsman_contracts.kv import HOST
from pointsman_contracts.scheduling import ReservationChange
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration, rank_name
from pointsman_core.config import SchedulingPolicy
from pointsman_plugins.scheduling.arrays import Blocks
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.late_binding import TELL_AGAIN_MS, PeerRequest
from pointsman_scheduler.domain.outcome import Postponed, Refused, Scheduled
from pointsman_scheduler.domain.policy import compile_policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.plugins import registries
from pointsman_scheduler.plugins.handlers.disaggregated import PREFILL
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.policy import Completed, EngineReport, KvChanged, Load, Observation, Reported, Started

_POOL = "simulated"
_SWEEP_MS = 1000.0
_NAMES = 1 << 64


class OneScheduler:
    """A scheduler of one pool. Times are milliseconds."""

    def __init__(
        self,
        name: str,
        kv_blocks: Sequence[int],
        settings: SchedulingPolicy,
        engine: EngineConfig,
        loras: Iterable[str],
        kv_events: bool,
        roles: Sequence[str] = (),
        *,
        tiers: bool = True,
        ranks: int = 1,
    ) -> None:
        """`kv_blocks`: size of each engine's KV cache, or of each rank's where engines have several data-parallel
        `ranks`, one engine after the other. `kv_events`: whether engines publish what is in it, `tiers`:
        whether also what is in host memory. `roles`: of each engine, `both` where there are none."""
        self.name = name
        self.policy: Final = compile_policy(_POOL, settings, registries())
        self.pool = PoolScheduler(_POOL, name, PrefixIndex(max_bytes=2**31))
        self.pool.use([self.policy])
        self.pool.measure(engine.block_size)
        self._names = [_name(index, ranks) for index in range(len(kv_blocks))]
        self._row = {name: index for index, name in enumerate(self._names)}
        self._max_loras = engine.max_loras
        self._load: Load | None = None
        self._reports = 0
        self._swept = 0.0
        self._told = 0
        """Version of the binder when the peers last got its waiting requests."""
        self._told_at = 0.0
        for row, (worker, blocks) in enumerate(zip(self._names, kv_blocks, strict=True)):
            registration = _registration(worker, engine.block_size, blocks, tuple(loras))
            if roles:
                registration = replace(registration, role=roles[row])
            if ranks > 1:
                registration = _rank(registration, row, ranks)
            self.pool.register(registration, 0.0)
        fleet = [worker for each in self._names if (worker := self.pool.fleet.find(each)) is not None]
        self._registrations = [worker.registration for worker in fleet]
        self._lives = [worker.life for worker in fleet]
        self._kv_events = kv_events
        self._tiers = tiers
        for name in self._names if kv_events else ():
            self._follow_cache(name)

    def receive_observation(self, observation: Observation, request: tuple[str, str], sent: float, now: float) -> None:
        """Take an observation as from the bus. `sent`: when the edge sent its request to the engine."""
        match observation:
            case Started():
                worker = self._names[observation.worker]
                ttft_ms, handed_ms = observation.at - sent, observation.handed_ms
                self.pool.books.started(request, worker, ttft_ms, now / 1000.0, handed_ms)
            case Completed():
                self.pool.books.completed(
                    request,
                    now / 1000.0,
                    ok=True,
                    output_tokens=observation.output_tokens,
                    duration_ms=observation.at - sent,
                )
            case Reported():
                self._report(observation.worker, observation.report, now)
            case KvChanged() if not self._kv_events:
                pass
            case KvChanged():
                life = self._lives[observation.worker]
                if observation.removed:
                    self.pool.index.removed(life, hashes(observation.removed), now / 1000.0)
                if observation.stored:
                    self.pool.index.stored(life, hashes(observation.stored), now / 1000.0)
                if self._tiers and observation.host_removed:
                    self.pool.index.remove_below(life, HOST, hashes(observation.host_removed), now / 1000.0)
                if self._tiers and observation.host_stored:
                    self.pool.index.store_below(life, HOST, hashes(observation.host_stored), now / 1000.0)

    def _follow_cache(self, name: str) -> None:
        worker = self.pool.fleet.find(name)
        if worker is not None:
            self.pool.index.describe(worker.life, None)
            worker.kv_told = worker.registration.boot_id

    def change_fleet(self, row: int, present: bool, now: float) -> list[int]:
        """An engine came, or is gone. Returns the requests that it had open."""
        pool, name, at = self.pool, self._names[row], now / 1000.0
        if present:
            registration = replace(self._registrations[row], boot_id=f"{row}-{now}")
            pool.register(registration, at)
            worker = pool.fleet.find(name)
            if worker is not None:
                self._registrations[row], self._lives[row] = registration, worker.life
            if self._kv_events:
                self._follow_cache(name)
            return []
        worker = pool.fleet.find(name)
        pool.remove(name, at)
        lost: list[int] = []
        if worker is not None:
            lost = [int(hold.change.request_id) for hold in worker.holds.values()]
            pool.books.drop_requests_on(worker, at)
        return lost

    def hear(self, load: Load, now: float) -> None:
        """Take load reports, unless they are the last ones, or were observed as they came in."""
        if load is self._load or load.observed:
            return
        self._load = load
        for row, report in enumerate(zip(load.running, load.waiting, load.kv_usage, load.running_loras, strict=True)):
            self._report(row, EngineReport(*report), now)

    def _report(self, row: int, report: EngineReport, now: float) -> None:
        running, waiting, kv_usage, loras = report
        self._reports += 1
        self.pool.hear(
            WorkerLoad(
                worker=self._names[row], pool=_POOL, boot_id=self._registrations[row].boot_id,
                sequence=self._reports, at_ms=int(now), state="serving",
                running=running, waiting=waiting, kv_usage=kv_usage,
                running_loras=loras, waiting_loras=(), max_loras=self._max_loras,
            ),
            now / 1000.0,
        )  # fmt: skip

    def decide(self, request: ScheduleRequest, now: float, seed: int) -> Scheduled | Postponed:
        """Decide as the service would. Raises Refusal when no engine may serve the request."""
        if now - self._swept >= _SWEEP_MS:
            self._swept = now
            self.pool.sweep(now / 1000.0)
        outcome = self.pool.decide(request, now / 1000.0, seed, self.policy)
        if isinstance(outcome, Refused):
            raise outcome.refusal
        return outcome

    def name_of(self, row: int) -> str:
        """The worker's name."""
        return self._names[row]

    def row_of(self, name: str) -> int:
        """The worker's row."""
        return self._row[name]

    def chosen_row(self, outcome: Scheduled) -> int:
        """The engine that was chosen."""
        return self._row[outcome.endpoints[0].name]

    def prefiller(self, outcome: Scheduled) -> int | None:
        """The engine that was chosen to compute the prompt; None where the one that answers does."""
        run = outcome.selection.legs.get(PREFILL)
        return None if run is None else self._row[outcome.sight.names[run.chosen[0]]]

    def apply_changes(self, changes: Sequence[ReservationChange], scheduler: str, now: float) -> None:
        """Take another scheduler's decision."""
        for change in changes:
            self.pool.books.apply(change, scheduler, now / 1000.0)
        self.pool.binder.heard(scheduler, now)

    def waiting(self, now: float) -> list[PeerRequest] | None:
        """The waiting requests for its peers; None when they know them."""
        binder = self.pool.binder
        if binder.version == self._told and not (len(binder) and now - self._told_at >= TELL_AGAIN_MS):
            return None
        self._told = binder.version
        self._told_at = now
        return [
            PeerRequest(
                worker=binder.worker_of(each),
                uncached=round(each.uncached),
                prompt=each.prompt,
                priority=each.request.facts.priority,
                latest=each.latest,
                edge=each.request.edge,
                request_id=each.request.request_id,
                since=each.since,
                max_output=each.request.longest_output,
                block_tokens=each.request.facts.block_tokens,
                blocks=each.request.blocks.tobytes(),
            )
            for each in binder.waiting
        ]

    def take_peer_report(self, scheduler: str, requests: Sequence[PeerRequest], now: float) -> None:
        """Take another scheduler's waiting requests."""
        self.pool.binder.peer(scheduler, requests, now)


def hashes(blocks: Sequence[int]) -> Blocks:
    """Names of prompt blocks. Blocks of answers have names beyond 64 bits, which no prompt has."""
    return np.array([block for block in blocks if block < _NAMES], dtype=np.uint64)


def _registration(worker: str, block_tokens: int, kv_blocks: int, loras: tuple[str, ...]) -> WorkerRegistration:
    return WorkerRegistration(
        worker=worker,
        pool=_POOL,
        url=f"http://{worker}",
        models=("model",),
        loras=loras,
        block_tokens=block_tokens,
        kv_blocks=kv_blocks,
        boot_id="1",
        agent="simulator",
        version="0",
        registered_ms=0,
    )


def _name(row: int, ranks: int) -> str:
    return f"worker-{row}" if ranks == 1 else rank_name(f"worker-{row // ranks}", row % ranks)


def _rank(registration: WorkerRegistration, row: int, ranks: int) -> WorkerRegistration:
    server = f"worker-{row // ranks}"
    return replace(registration, url=f"http://{server}", server=server, rank=row % ranks, ranks=ranks)
