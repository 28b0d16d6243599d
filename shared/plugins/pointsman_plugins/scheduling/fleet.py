"""The workers of one pool as columns: entry `i` of every column belongs to `workers[i]`.

Rows are sorted by name, so that replicas that know the same facts decide alike. The truth is in the `Worker`s;
columns mirror it, one write for each change, and are laid out again when a worker joins or leaves.
"""

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

import numpy as np
from msgspec.structs import replace

from pointsman_contracts.timing import TIMES
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_plugins.scheduling.adapters import AdapterColumns
from pointsman_plugins.scheduling.arrays import Bools, Floats
from pointsman_plugins.scheduling.worker import NEVER, Worker

REMEMBER_DEPARTED_S: Final = 120.0
"""A worker that comes back in the same life within this time finds its books and its prefix entries again: a
registration also lapses when the bus was away."""

HEARD: Final = 0
KV_USAGE: Final = 1
RUNNING: Final = 2
WAITING: Final = 3
MATCHED: Final = 4
"""Prompt tokens that each worker is believed to hold."""
_MODELS: Final = 1024
"""Models whose workers are remembered between two registrations."""
_FIGURES: Final = 5
"""Rows of `Fleet.figures`."""


class Fleet:
    """Columns are float64. Call `refresh` before reading them."""

    def __init__(self) -> None:
        self.epoch = 0
        """Changes whenever a worker joins, leaves or registers other facts: what depends only on those may be kept."""
        self.adapters: Final = AdapterColumns()
        self._by_name: dict[str, Worker] = {}
        self._departed: dict[str, Worker] = {}
        self._ejected: set[Worker] = set()
        self._lacking: dict[str, set[Worker]] = {}
        """Models and adapters that some workers answer 404 for."""
        self._unlisted: dict[str, list[int]] = {}
        """Rows by model, since the columns were laid out."""
        self._unsettled: Final[set[Worker]] = set()
        """Workers whose books changed since the columns were last read."""
        self.settle: Final = self._unsettled.add
        """Call it when the worker's books changed: `refresh` writes what depends on them, once for all changes until
        then."""
        self._heard_at = NEVER
        """When any worker was last heard."""
        self._lay_out()

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Worker]:
        """Every worker that is registered, or left a while ago."""
        yield from self._by_name.values()
        yield from self._departed.values()

    @property
    def present(self) -> Collection[Worker]:
        """Every worker that is registered, also one that no column has yet."""
        return self._by_name.values()

    @property
    def heard_of_all(self) -> bool:
        """Whether every registered worker has reported."""
        return all(worker.report is not None for worker in self._by_name.values())

    def find(self, name: str) -> Worker | None:
        """The worker of this name, also one that left a while ago."""
        return self._by_name.get(name) or self._departed.get(name)

    def register(self, registration: WorkerRegistration) -> Worker | None:
        """Add a worker or renew its facts. Returns the former life when this is a new one."""
        name = registration.worker
        worker = self.find(name)
        former: Worker | None = None
        if worker is None or worker.registration.boot_id != registration.boot_id:
            former = worker
            worker = Worker(registration)
            if former is not None:
                self._forget(former)
        elif worker.present and _facts(worker.registration) == _facts(registration):
            return None
        else:
            worker.register(registration)
        worker.present = True
        self._departed.pop(name, None)
        self._by_name[name] = worker
        self._changed()
        return former

    def remove(self, name: str, now: float) -> None:
        """The worker's registration is gone."""
        worker = self._by_name.get(name)
        if worker is not None:
            self._forget(worker)
            worker.departed_at = now
            self._departed[name] = worker
            self._changed()

    def sweep(self, now: float) -> list[Worker]:
        """Forget those that left long ago. Returns them."""
        gone = [worker for worker in self._departed.values() if now - worker.departed_at > REMEMBER_DEPARTED_S]
        for worker in gone:
            del self._departed[worker.name]
        return gone

    def hear(self, report: WorkerLoad, now: float) -> Worker | None:
        """Take a load report in. None when the worker, or this life of it, isn't registered."""
        worker = self._by_name.get(report.worker)
        if worker is None or worker.registration.boot_id != report.boot_id:
            return None
        if now - self._heard_at > TIMES.worker_silent_s:
            self._excuse(now)
        self._heard_at = now
        was_opaque = worker.opaque
        worker.hear(report, now)
        if worker.opaque is not was_opaque and not self._stale_layout:
            self.opaque ^= {worker.row}
        self.judge(worker)
        return worker

    def _excuse(self, now: float) -> None:
        """No worker was heard for a while: the bus or this process was away. Workers that were present before get time
        to be heard again, so that the first one heard isn't taken for the only one."""
        for worker in self._by_name.values():
            if worker.heard >= self._heard_at - TIMES.worker_silent_s:
                worker.excused_until = now + TIMES.worker_silent_s
                self.mirror(worker)

    def judge(self, worker: Worker) -> None:
        """The worker's standing may have changed."""
        if worker.standing.ejected and worker.present:
            self._ejected.add(worker)
        else:
            self._ejected.discard(worker)
        self.mirror(worker)

    @property
    def ejected(self) -> AbstractSet[Worker]:
        """Workers that get trial requests only."""
        return self._ejected

    def trial(self, now: float) -> Worker | None:
        """The ejected worker that has waited longest for its trial, if one is due."""
        due = [worker for worker in self._ejected if worker.standing.retry_at <= now]
        return min(due, key=lambda worker: (worker.standing.retry_at, worker.name), default=None)

    def lack(self, worker: Worker, name: str, until: float) -> None:
        """The worker gets no requests for this model or adapter until then, while a peer serves it."""
        worker.lacking[name] = until
        self._lacking.setdefault(name, set()).add(worker)

    def lacking(self, name: str, now: float) -> list[int]:
        """Rows of the workers that lack this model or adapter."""
        workers = self._lacking.get(name) if self._lacking else None
        if not workers:
            return []
        for worker in [each for each in workers if not each.present or each.lacking[name] <= now]:
            workers.discard(worker)
            worker.lacking.pop(name, None)
        if not workers:
            del self._lacking[name]
        return sorted([worker.row for worker in workers])

    def unlisted(self, model: str) -> list[int]:
        """Rows of the workers that list other models and not this one, which a peer lists. Where none lists it, its
        engines may list it by another name, and serve it."""
        rows = self._unlisted.get(model)
        if rows is None:
            if len(self._unlisted) >= _MODELS:
                self._unlisted.clear()
            models = [worker.registration.models for worker in self.workers]
            told = any(model in each for each in models)
            rows = [row for row, each in enumerate(models) if told and each and model not in each]
            self._unlisted[model] = rows
        return rows

    def mirror(self, worker: Worker) -> None:
        """Something about the worker changed: write its figures into the columns."""
        if worker.present and not self._stale_layout:
            self._write(worker)

    def _forget(self, worker: Worker) -> None:
        worker.present = False
        self._by_name.pop(worker.name, None)
        self._departed.pop(worker.name, None)
        self._ejected.discard(worker)

    def _changed(self) -> None:
        self._stale_layout = True
        self.epoch += 1

    def relaid(self) -> None:
        """The workers were replaced: columns are laid out anew at the next `refresh`."""
        self._unsettled.clear()
        self._stale_layout = True

    def refresh(self, now: float) -> None:
        """Bring the columns to `now`: lay them out again if need be, let ejected workers be tried, weigh by age."""
        if self._stale_layout:
            self._lay_out()
        while self._unsettled:
            worker = self._unsettled.pop()
            if worker.present:
                self._write_books(worker)
                if worker.lora_holds or self.adapters.seen[worker.row]:
                    self.adapters.mirror(worker)
        for worker in self._ejected:
            if worker.standing.retry_at <= now:
                self.eligible_until[worker.row] = _serves_until(worker)
        if now > self._aged_bound and self.workers:
            self._aged_bound = float(self.heard.min()) + TIMES.load_aged_s
            if now > self._aged_bound:
                self._weigh_by_age(now)
                return
        if not self.fresh:
            self._count_in_full()

    def _count_in_full(self) -> None:
        self.fresh = True
        """Whether at the last `refresh` every worker's report was so young that its figures count in full."""
        self.waiting = self._waiting
        """Requests queued in the engine: reported, corrected by what happened since, weighed by age."""
        self.running = self._running
        """Sequences in the running batch, in the same way."""
        self.kv_usage = self._kv_usage
        """Used part of the KV cache in [0,1], in the same way."""

    def _weigh_by_age(self, now: float) -> None:
        age = now - self.heard
        trust = np.clip((TIMES.load_worthless_s - age) / (TIMES.load_worthless_s - TIMES.load_aged_s), 0.0, 1.0)
        self.fresh = False
        self.waiting = _weighed(trust, self._waiting, self.reported_waiting)
        self.running = _weighed(trust, self._running, self.reported_running)
        self.kv_usage = _weighed(trust, self._kv_usage, self._reported_kv_usage)

    def all_eligible(self, now: float) -> bool:
        """Whether every worker serves, was heard recently, and isn't ejected."""
        if now > self._eligible_bound:
            self._eligible_bound = float(self.eligible_until.min()) if self.workers else NEVER
        return now <= self._eligible_bound

    def figures(self) -> Floats:
        """A copy of what candidates are judged by, [5, workers]: `HEARD`, `KV_USAGE`, `RUNNING`, `WAITING`, and
        `MATCHED`, zeros, for the caller to fill."""
        taken = self._figures.copy()
        if not self.fresh:
            taken[KV_USAGE], taken[RUNNING], taken[WAITING] = self.kv_usage, self.running, self.waiting
        return taken

    def match_names(self, names: Collection[str]) -> Bools:
        """Which workers have one of these names, or are ranks of an engine that has."""
        return np.array(
            [each.name in names or each.registration.server in names for each in self.workers], dtype=np.bool_
        )

    def _lay_out(self) -> None:
        self.workers = sorted(self._by_name.values(), key=lambda worker: worker.name)
        self._unlisted.clear()
        self.names = tuple([worker.name for worker in self.workers])
        count = len(self.workers)
        self._figures: Floats = np.zeros((_FIGURES, count))
        self._kv_usage: Floats = self._figures[KV_USAGE]
        self._running: Floats = self._figures[RUNNING]
        self._waiting: Floats = self._figures[WAITING]
        self._count_in_full()
        self.reported_waiting: Floats = np.zeros(count)
        """Requests queued in the engine as its last report has it."""
        self.reported_running: Floats = np.zeros(count)
        """Sequences in the running batch as its last report has it."""
        self._reported_kv_usage: Floats = np.zeros(count)
        self.heard: Floats = self._figures[HEARD]
        """Monotonic time of each worker's last report; -inf when there was none."""
        self.eligible_until: Floats = np.zeros(count)
        """Monotonic time until which the worker may be chosen, as far as known; -inf when it may not."""
        self.open: Floats = np.zeros(count)
        """Requests on the books."""
        self.prefill_tokens: Floats = np.zeros(count)
        """Prompt tokens that requests on the books still have to compute."""
        self.context_tokens: Floats = np.zeros(count)
        """Prompt tokens of all requests on the books."""
        self.capacity_tokens: Floats = np.array([worker.capacity_tokens for worker in self.workers], dtype=np.float64)
        """Tokens that the KV cache holds; 0 when the engine didn't report it."""
        self.opaque = frozenset(row for row, worker in enumerate(self.workers) if worker.opaque)
        """Rows of workers that report no load."""
        self._aged_bound = NEVER
        self._eligible_bound = NEVER
        self._stale_layout = False
        for row, worker in enumerate(self.workers):
            worker.row = row
        self.adapters.lay_out(self.workers)
        for worker in self.workers:
            self._write(worker)

    def _write(self, worker: Worker) -> None:
        row = worker.row
        report = worker.report
        if report is not None:
            self.reported_waiting[row] = report.waiting
            self.reported_running[row] = report.running
            self._reported_kv_usage[row] = report.kv_usage
        self.heard[row] = worker.heard
        self._write_books(worker)
        self.adapters.mirror(worker)
        until = NEVER if worker.standing.ejected else _serves_until(worker)
        self.eligible_until[row] = until
        self._eligible_bound = min(self._eligible_bound, until)

    def _write_books(self, worker: Worker) -> None:
        row = worker.row
        self._waiting[row], self._running[row], self._kv_usage[row] = worker.load()
        self.open[row] = worker.open
        self.prefill_tokens[row] = worker.prefill_tokens
        self.context_tokens[row] = worker.context_tokens


def _weighed(trust: Floats, figures: Floats, reported: Floats) -> Floats:
    """Figures that move towards the mean of reports as their own report ages."""
    total = float(trust.sum())
    mean = float((trust * reported).sum()) / total if total else float(reported.mean())
    return np.maximum(figures + (1.0 - trust) * (mean - reported), 0.0)


def _serves_until(worker: Worker) -> float:
    return max(worker.heard + TIMES.worker_silent_s, worker.excused_until) if worker.state == "serving" else NEVER


def _facts(registration: WorkerRegistration) -> WorkerRegistration:
    """Everything but the time of the heartbeat."""
    return replace(registration, registered_ms=0)
