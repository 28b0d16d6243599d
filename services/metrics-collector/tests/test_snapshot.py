"""A pool in one message."""

import pytest

from pointsman_contracts.message import read_fields
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_metrics_collector.domain.snapshot import saturation, snapshot


def view(worker: str = "w", **changes: object) -> WorkerView:
    return read_fields(WorkerView, {"worker": worker, "url": f"http://{worker}", **changes})


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ([], 1.0),
        ([view()], 0.0),
        ([view(waiting=5)], 1.0),
        ([view(kv_usage=0.4)], 0.5),
        ([view(waiting=1, kv_usage=0.8)], 1.0),
        ([view(waiting=10), view()], 0.5),
        ([view(waiting=10**9), view(kv_usage=0.4), view()], 0.5),
        ([view(waiting=10), view(waiting=20)], 2.0),
        ([view(waiting=10), view(opaque=True)], 2.0),
        ([view(opaque=True)], 0.0),
        ([view(waiting=10), view(verdict="ejected")], 2.0),
        ([view(waiting=10), view(verdict="lacking")], 0.5),
        ([view(verdict="suspect", waiting=2)], 0.4),
        ([view(state="not_ready", waiting=2), view(state="unreachable")], 0.4),
        ([view(waiting=5), view(state="draining"), view(state="unreachable", waiting=50)], 1.0),
        ([view(state="silent", waiting=9), view(state="draining")], 0.0),
    ],
)
def test_a_pool_is_saturated_only_when_each_worker_that_gets_requests_is(
    workers: list[WorkerView], expected: float
) -> None:
    assert saturation(workers) == pytest.approx(expected)


def test_a_snapshot_names_the_models_that_engines_serve() -> None:
    workers = (
        view("w1", models=("m",), loras=("sql",)),
        view("w2", models=("m",), loras=("legal",)),
        view("w3", models=("old",), state="silent"),
    )
    assert snapshot("p", workers, source="c-1", sequence=4, at_ms=7) == PoolSnapshot(
        pool="p",
        source="c-1",
        sequence=4,
        at_ms=7,
        workers=workers,
        saturation=0.0,
        models=("m", "sql", "legal"),
    )


@pytest.mark.parametrize("state", ["not_ready", "silent"])
def test_a_pool_in_which_none_serves_has_the_models_of_those_that_take_requests_all_the_same(state: str) -> None:
    workers = (view("w1", models=("m",), state=state), view("w2", models=("gone",), state="unreachable"))
    assert snapshot("p", workers, source="c-1", sequence=4, at_ms=7).models == ("m",)
