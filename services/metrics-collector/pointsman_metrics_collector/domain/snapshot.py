"""The state of a pool in one message."""

from collections.abc import Sequence
from typing import Final

from pointsman_contracts.pool import PoolDiscovery, PoolSnapshot, WorkerView

QUEUE_THRESHOLD: Final = 5
KV_THRESHOLD: Final = 0.8
"""A worker is saturated with 5 requests waiting, or with 80 % of its KV cache in use (the utilization detector of
llm-d-router 0.10)."""


def saturation(workers: Sequence[WorkerView]) -> float:
    """Mean over serving workers of how close each is to its thresholds; 1.0 with none."""
    serving = [worker for worker in workers if worker.state == "serving"]
    if not serving:
        return 1.0
    return sum(max(w.waiting / QUEUE_THRESHOLD, w.kv_usage / KV_THRESHOLD) for w in serving) / len(serving)


def _taking_requests(workers: Sequence[WorkerView]) -> list[WorkerView]:
    """As in decisions: the serving ones, or while there is none, those about which only a signal is missing."""
    serving = [worker for worker in workers if worker.state == "serving"]
    return serving or [worker for worker in workers if worker.state in ("not_ready", "silent")]


def snapshot(
    pool: str,
    workers: tuple[WorkerView, ...],
    *,
    source: str,
    sequence: int,
    at_ms: int,
    unreached: dict[str, str] | None = None,
    discovery: PoolDiscovery | None = None,
) -> PoolSnapshot:
    """The message of one pool."""
    serving = _taking_requests(workers)
    return PoolSnapshot(
        pool=pool,
        source=source,
        sequence=sequence,
        at_ms=at_ms,
        workers=workers,
        saturation=round(saturation(workers), 4),
        models=tuple(dict.fromkeys(name for worker in serving for name in (*worker.models, *worker.loras))),
        unreached=unreached or {},
        discovery=discovery,
    )
