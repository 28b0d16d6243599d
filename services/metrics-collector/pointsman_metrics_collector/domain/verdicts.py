"""The schedulers' verdicts on workers. Each scheduler judges for itself, so they may differ for a moment: a worker is
unwell while any scheduler finds it so, by the verdict of the first one by name."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from pointsman_contracts.pool import WorkerView
from pointsman_contracts.verdicts import WorkerVerdict, WorkerVerdicts

FORGOTTEN_S: Final = 3.0
"""Schedulers renew verdicts once a second."""


class JudgedWorkers(NamedTuple):
    """See `WorkerJudged`. `verdict` has an empty one where the worker is well."""

    pool: str
    verdict: WorkerVerdict


class VerdictTable:
    """The verdicts of all pools. Times are seconds of a `ListeningClock`."""

    def __init__(self) -> None:
        self._heard: Final[dict[tuple[str, str], tuple[WorkerVerdicts, float]]] = {}
        """Pool and scheduler → what it published last, and when."""
        self._current: Final[dict[str, dict[str, WorkerVerdict]]] = {}

    def receive_verdicts(self, verdicts: WorkerVerdicts, at: float) -> list[JudgedWorkers]:
        """Take a scheduler's verdicts; returns the workers whose verdict changed."""
        self._heard[verdicts.pool, verdicts.source] = verdicts, at
        return self._merge(verdicts.pool)

    def expire_verdicts(self, at: float) -> list[JudgedWorkers]:
        """Forget verdicts that weren't renewed; returns the workers whose verdict changed."""
        old = [key for key, (_, heard) in self._heard.items() if at - heard > FORGOTTEN_S]
        for key in old:
            del self._heard[key]
        return [judged for pool in {pool for pool, _ in old} for judged in self._merge(pool)]

    def add_verdicts(self, pool: str, views: Iterable[WorkerView]) -> tuple[WorkerView, ...]:
        verdicts = self._current.get(pool)
        if not verdicts:
            return tuple(views)
        return tuple([_with(view, verdicts.get(view.worker)) for view in views])

    def _merge(self, pool: str) -> list[JudgedWorkers]:
        before, now = self._current.get(pool, {}), dict[str, WorkerVerdict]()
        for (judged, _), (verdicts, _) in sorted(self._heard.items(), key=lambda each: each[0], reverse=True):
            if judged == pool:
                now.update({each.worker: each for each in verdicts.verdicts})
        self._current[pool] = now
        changed = [
            JudgedWorkers(pool, verdict)
            for worker, verdict in now.items()
            if worker not in before or _told(before[worker]) != _told(verdict)
        ]
        well = [
            JudgedWorkers(pool, replace(each, verdict="", reason=""))
            for name, each in before.items()
            if name not in now
        ]
        return changed + well


def _with(view: WorkerView, verdict: WorkerVerdict | None) -> WorkerView:
    if verdict is None or verdict.boot_id not in ("", view.boot_id):
        return view
    return replace(view, verdict=verdict.verdict, verdict_reason=verdict.reason)


def _told(verdict: WorkerVerdict) -> tuple[str, str]:
    """The part whose change is an event; reasons have figures that change with each failure."""
    return verdict.boot_id, verdict.verdict
