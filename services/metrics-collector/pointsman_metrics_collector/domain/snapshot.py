"""The state of a pool in one message."""

from collections.abc import Sequence
from typing import Final

from pointsman_contracts.pool import EnginePrice, PoolDiscovery, PoolSnapshot, WorkerView

QUEUE_THRESHOLD: Final = 5
KV_THRESHOLD: Final = 0.8
"""A worker is saturated with 5 requests waiting, or with 80 % of its KV cache in use (the utilization detector of
llm-d-router 0.10)."""
_TRIALS_ONLY: Final = ("ejected", "suspect")


def saturation(workers: Sequence[WorkerView]) -> float:
    """How close the workers that get requests are to their thresholds: 1.0 or more only when each of them is full, and
    when there is none. Those that report no load don't count; a pool of those isn't saturated.

    It is the mean, where no worker counts for more than 1, so that one with a long queue doesn't stand for idle ones.
    When all are full, it is that of the least full one."""
    used = _taking_requests(workers)
    if not used:
        return 1.0
    well = [each for each in used if each.verdict not in _TRIALS_ONLY] or used
    known = [each for each in well if not each.opaque and each.state != "silent"]
    values = [max(each.waiting / QUEUE_THRESHOLD, each.kv_usage / KV_THRESHOLD) for each in known]
    if not values:
        return 0.0
    return max(min(values), sum(min(value, 1.0) for value in values) / len(values))


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
    price: EnginePrice | None = None,
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
        price=price,
    )
