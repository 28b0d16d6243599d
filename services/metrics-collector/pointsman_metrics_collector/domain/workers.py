"""The table of workers: the registered ones, the last report of each, and the silent ones.

Times are seconds of a `ListeningClock`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from pointsman_contracts.pool import WorkerView
from pointsman_contracts.timing import TIMES
from pointsman_contracts.worker import DrainNotice, WorkerFinding, WorkerLoad, WorkerRegistration
from pointsman_engines.status import OPAQUE
from pointsman_metrics_collector.domain.drains import KnownWorker

STRANGER_KEPT_S: Final = 60.0
"""Seconds that a load report is kept without a registration."""
DEADLINES_DIFFER_S: Final = 0.5


class Joined(NamedTuple):
    """See `WorkerJoined`."""

    registration: WorkerRegistration
    why: str


class Silent(NamedTuple):
    """See `WorkerSilent`."""

    registration: WorkerRegistration
    silent_s: float


class Left(NamedTuple):
    """See `WorkerLeft`."""

    registration: WorkerRegistration
    state: str


Change = Joined | Silent | Left


@dataclass(slots=True)
class _Worker:
    registration: WorkerRegistration
    since: float
    """When it registered, or was heard last."""
    load: WorkerLoad | None = None
    findings: tuple[WorkerFinding, ...] = ()
    """Those of its agent."""
    silent: bool = False
    """Whether its silence was published."""
    moves_at: float | None = None
    """When the open requests of one that drains move."""

    def state(self, at: float) -> str:
        if self.load is None or at - self.since > TIMES.worker_silent_s:
            return "silent"
        return self.load.state


class _Pool:
    def __init__(self) -> None:
        self.workers: dict[str, _Worker] = {}
        self.strangers: dict[str, tuple[WorkerLoad, float]] = {}
        self.changed = True
        self.urgent = False
        """Whether a worker came, left, or changed its state."""


class WorkerTable:
    """Every worker of every pool."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._block_tokens: Mapping[str, int] = {}

    def set_block_tokens(self, block_tokens: Mapping[str, int]) -> None:
        """Tokens in a prefix block, by pool."""
        self._block_tokens = block_tokens
        for pool in self._pools.values():
            self._touch(pool, urgent=False)

    def set_findings(self, pool_name: str, worker_name: str, findings: tuple[WorkerFinding, ...]) -> None:
        """The worker's agent knows of these faults. No-op for an unknown worker."""
        pool = self._pools.get(pool_name)
        worker = pool.workers.get(worker_name) if pool is not None else None
        if pool is not None and worker is not None and worker.findings != findings:
            worker.findings = findings
            self._touch(pool, urgent=True)

    def add_registration(self, registration: WorkerRegistration, at: float) -> Joined | None:
        """A registration was written or renewed."""
        pool = self._pools.setdefault(registration.pool, _Pool())
        worker = pool.workers.get(registration.worker)
        if worker is not None:
            before, worker.registration = worker.registration, registration
            if before != registration:
                self._touch(pool, urgent=True)
            return Joined(registration, "restarted") if before.boot_id != registration.boot_id else None
        worker = pool.workers[registration.worker] = _Worker(registration, at)
        load, heard = pool.strangers.pop(registration.worker, (None, at))
        if load is not None:
            worker.load, worker.since = load, heard
            if load.draining is not None and load.draining.left_ms is not None:
                worker.moves_at = heard + load.draining.left_ms / 1000
        self._touch(pool, urgent=True)
        return Joined(registration, "registered")

    def remove_registration(self, pool_name: str, worker_name: str, at: float) -> Left | None:
        """A registration was removed, or expired."""
        pool = self._pools.get(pool_name)
        worker = pool.workers.pop(worker_name, None) if pool is not None else None
        if pool is None or worker is None:
            return None
        self._touch(pool, urgent=True)
        return Left(worker.registration, worker.state(at))

    def receive_load(self, load: WorkerLoad, at: float) -> Joined | None:
        """A load report arrived."""
        pool = self._pools.setdefault(load.pool, _Pool())
        worker = pool.workers.get(load.worker)
        if worker is None:
            pool.strangers[load.worker] = (load, at)
            return None
        before = worker.load
        was_silent = worker.silent
        changed_state = was_silent or before is None or before.state != load.state or before.boot_id != load.boot_id
        moves_at = None if load.draining is None or load.draining.left_ms is None else at + load.draining.left_ms / 1000
        if before is not None and _drains_otherwise(before, worker.moves_at, load, moves_at):
            changed_state = True
        worker.moves_at = moves_at
        worker.load, worker.since, worker.silent = load, at, False
        if changed_state or before is None or _figures(before) != _figures(load):
            self._touch(pool, urgent=changed_state)
        return Joined(worker.registration, "heard") if was_silent else None

    def find_silent(self, at: float) -> list[Silent]:
        """Find those that fell silent since the last tick."""
        found: list[Silent] = []
        for name, pool in list(self._pools.items()):
            if not (pool.workers or pool.strangers or pool.changed):
                del self._pools[name]
                continue
            for worker in pool.workers.values():
                if not worker.silent and at - worker.since > TIMES.worker_silent_s:
                    worker.silent = True
                    self._touch(pool, urgent=True)
                    found.append(Silent(worker.registration, at - worker.since))
            if pool.strangers:
                pool.strangers = {
                    name: kept for name, kept in pool.strangers.items() if at - kept[1] <= STRANGER_KEPT_S
                }
        return found

    def list_pools(self) -> list[str]:
        """Pools that have a registered worker."""
        return [name for name, pool in self._pools.items() if pool.workers]

    def is_complete(self, at: float) -> bool:
        """Whether every registered worker was heard, or is known to be silent."""
        return all(
            worker.load is not None or at - worker.since > TIMES.worker_silent_s
            for pool in self._pools.values()
            for worker in pool.workers.values()
        )

    def take_change(self, pool_name: str) -> tuple[bool, bool]:
        """Whether anything in the pool changed since the last call, and whether more than numbers changed."""
        pool = self._pools.get(pool_name)
        if pool is None:
            return False, False
        taken = pool.changed, pool.urgent
        pool.changed = pool.urgent = False
        return taken

    def view_pool(self, pool_name: str, at: float) -> tuple[WorkerView, ...]:
        pool = self._pools.get(pool_name)
        if pool is None:
            return ()
        block_tokens = self._block_tokens.get(pool_name)
        return tuple(_view(pool.workers[name], at, block_tokens) for name in sorted(pool.workers))

    def known_workers(self, at: float) -> Iterator[KnownWorker]:
        """Every registered worker."""
        for pool in self._pools.values():
            for worker in pool.workers.values():
                yield KnownWorker(worker.registration, _view(worker, at, None))

    def find_known_worker(self, pool_name: str, worker_name: str, at: float) -> KnownWorker | None:
        """A registered worker; None for any other one."""
        pool = self._pools.get(pool_name)
        worker = None if pool is None else pool.workers.get(worker_name)
        return None if worker is None else KnownWorker(worker.registration, _view(worker, at, None))

    def find_unreached(self, pool_name: str, at: float) -> dict[str, str]:
        """Engines that the pool names and that have never answered, by name → why."""
        pool = self._pools.get(pool_name)
        if pool is None:
            return {}
        return {
            name: load.reason
            for name, (load, heard) in sorted(pool.strangers.items())
            if not load.boot_id and at - heard <= TIMES.worker_silent_s
        }

    def has_model(self, pool_name: str, model: str) -> bool:
        """Whether a registered worker of the pool has this model or adapter."""
        pool = self._pools.get(pool_name)
        return pool is not None and any(
            model in worker.registration.models or model in worker.registration.loras
            for worker in pool.workers.values()
        )

    def _touch(self, pool: _Pool, *, urgent: bool) -> None:
        pool.changed = True
        pool.urgent = pool.urgent or urgent


def _figures(load: WorkerLoad) -> tuple[int, int, float, str]:
    return load.running, load.waiting, load.kv_usage, load.load_unknown


def _drains_otherwise(before: WorkerLoad, moved_at: float | None, load: WorkerLoad, moves_at: float | None) -> bool:
    """Whether a report says something new about the draining of its worker."""
    if before.draining is None or load.draining is None:
        return before.draining is not load.draining
    if moved_at is None or moves_at is None:
        return moved_at is not moves_at
    return before.draining.why != load.draining.why or abs(moved_at - moves_at) > DEADLINES_DIFFER_S


def _view(worker: _Worker, at: float, block_tokens: int | None) -> WorkerView:
    registration, load, state = worker.registration, worker.load, worker.state(at)
    view = WorkerView(
        worker=registration.worker,
        url=registration.url,
        boot_id=registration.boot_id,
        state=state,
        models=registration.models,
        loras=registration.loras,
        opaque=registration.engine == OPAQUE,
        findings=(*worker.findings, *_block_size(registration, block_tokens)),
        engine=registration.engine,
        server=registration.server,
        rank=registration.rank,
        rank_field=registration.rank_field,
    )
    if load is None:
        return view
    # A silent worker's reason is old.
    reason = load.reason if state == load.state else ""
    if load.draining is not None:
        left_ms = None if worker.moves_at is None else max(0, round((worker.moves_at - at) * 1000))
        view = replace(view, draining=DrainNotice(left_ms=left_ms, why=load.draining.why))
    view = replace(view, boot_id=load.boot_id, reason=reason, age_ms=_age_ms(worker, load, at))
    if load.load_unknown:
        return replace(view, opaque=True, load_unknown=load.load_unknown)
    return replace(view, running=load.running, waiting=load.waiting, kv_usage=load.kv_usage)


def _age_ms(worker: _Worker, load: WorkerLoad, at: float) -> float:
    since = (at - worker.since) * 1000
    return round(since if load.load_unknown else since + load.age_ms, 1)


def _block_size(registration: WorkerRegistration, block_tokens: int | None) -> tuple[WorkerFinding, ...]:
    """Schedulers can't use KV events about blocks of another size than the pool's."""
    reported = registration.kv_block_tokens
    if block_tokens is None or reported in (None, block_tokens):
        return ()
    what = f"its agent reports KV blocks of {reported} tokens, and the pool has block_tokens: {block_tokens}"
    return (WorkerFinding(kind="kv_block_size", what=what),)
