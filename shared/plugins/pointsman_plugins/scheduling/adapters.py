"""The LoRA adapters of each worker, as columns. An adapter's column is made when first asked for."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pointsman_plugins.scheduling.arrays import Floats, Ints
from pointsman_plugins.scheduling.worker import Worker

ABSENT: Final = 0
WAITING: Final = 1
"""The engine is about to load it."""
ACTIVE: Final = 2
"""Loaded, or a request for it was sent there: affinity must not wait for the next report."""


class AdapterColumns:
    """Kept by the fleet, one write for each change."""

    def __init__(self) -> None:
        self.free_slots: Floats = np.empty(0)
        """Adapters that the engine could load beside those that it has."""
        self._columns: dict[str, Ints] = {}
        self.seen: list[frozenset[str]] = []
        """The adapters of each worker, when it was last mirrored."""

    def lay_out(self, workers: Sequence[Worker]) -> None:
        """The rows are other workers."""
        self._columns.clear()
        self.free_slots = np.zeros(len(workers))
        self.seen = [frozenset()] * len(workers)
        for worker in workers:
            self.mirror(worker)

    def mirror(self, worker: Worker) -> None:
        """Bring one row to what the worker reported and holds."""
        report = worker.report
        seen = self.seen[worker.row]
        if not (worker.lora_holds or seen or (report is not None and report.max_loras)):
            return
        used = frozenset(worker.lora_holds)
        if report is not None:
            used = used.union(report.running_loras, report.waiting_loras)
        row = worker.row
        self.free_slots[row] = max(0, (report.max_loras if report is not None else 0) - len(used))
        for lora in used | seen:
            column = self._columns.get(lora)
            if column is not None:
                column[row] = _state(worker, lora)
        self.seen[row] = used

    def states(self, lora: str, workers: Sequence[Worker]) -> Ints:
        """For each row `ACTIVE`, `WAITING` or `ABSENT`."""
        column = self._columns.get(lora)
        if column is None:
            column = np.array([_state(worker, lora) for worker in workers], dtype=np.int64)
            self._columns[lora] = column
        return column


def _state(worker: Worker, lora: str) -> int:
    report = worker.report
    if lora in worker.lora_holds or (report is not None and lora in report.running_loras):
        return ACTIVE
    return WAITING if report is not None and lora in report.waiting_loras else ABSENT
