"""The doctor's lines about single workers."""

import pytest

from pointsman_cli.doctor.finding import Level
from pointsman_cli.doctor.worker_findings import (
    judged,
    other_models,
    reported_faults,
    seen_in,
    unknown_loads,
)
from pointsman_contracts.message import read_fields
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.worker import WorkerFinding


def view(worker: str, **changes: object) -> WorkerView:
    return read_fields(WorkerView, {"worker": worker, "url": f"http://{worker}", "models": ("m",), **changes})


def test_engines_whose_load_is_unknown_for_one_reason_are_one_line() -> None:
    reason = "no sample of vllm:num_requests_waiting"
    views = [
        view("b", load_unknown=reason),
        view("a", load_unknown=reason),
        view("well"),
        view("gone", load_unknown="connection refused", state="unreachable"),
        view("late", load_unknown="no answer from /metrics for 0.7 s"),
    ]
    late, renamed = unknown_loads("p", views)
    assert renamed.what == f"pool p: the load of a, b is unknown: {reason}"
    assert late.what == "pool p: the load of late is unknown: no answer from /metrics for 0.7 s"
    assert "own counts" in renamed.advice


@pytest.mark.requirement("SIGNAL-5")
@pytest.mark.parametrize(
    ("kind", "words", "advice"),
    [
        ("twin_name", "two agents have this name", "POINTSMAN_WORKER"),
        ("shared_url", "balancer", "headless Service"),
        ("kv_block_size", "KV events", "block_tokens"),
        ("load_values", "impossible figure", "another unit"),
        ("models_unknown", "which models", "its pool names"),
        ("health_unknown", "ready is unknown", "health page"),
        ("of a later version", "of a later version", "newer doctor"),
    ],
)
def test_each_fault_is_one_warning_that_names_the_worker_and_what_to_do(kind: str, words: str, advice: str) -> None:
    views = [view("w1", findings=(WorkerFinding(kind=kind, what="1 and 2"),)), view("w2")]
    (line,) = reported_faults("p", views)
    assert line.level is Level.WARN
    assert line.what.startswith("pool p: w1: ")
    assert words in line.what
    assert "(1 and 2)" in line.what
    assert advice in line.advice


def test_an_unknown_health_of_an_engine_that_is_known_not_to_serve_is_not_told_again() -> None:
    slow = (WorkerFinding(kind="health_unknown", what="/health takes more than 2 s"),)
    views = [view("hung", findings=slow, state="not_ready"), view("slow", findings=slow)]
    (line,) = reported_faults("p", views)
    assert line.what.startswith("pool p: slow: ")


@pytest.mark.parametrize("verdict", ["ejected", "suspect", "failing", "lacking", "unheeded", "of a later version"])
def test_an_engine_that_schedulers_find_unwell_is_named_with_the_reason(verdict: str) -> None:
    (line,) = judged("p", [view("w1", verdict=verdict, verdict_reason="5 of 5 failed with 500"), view("w2")])
    assert line.level is Level.WARN
    assert line.what.startswith("pool p: w1 ")
    assert line.what.endswith("5 of 5 failed with 500")


def test_for_an_engine_that_ignores_the_rank_the_settings_of_its_agent_are_named() -> None:
    (line,) = judged("p", [view("w1", verdict="unheeded", verdict_reason="20 of 20 signs")])
    assert "POINTSMAN_RANK_FIELD" in line.advice
    assert "POINTSMAN_RANKS=1" in line.advice


def test_an_engine_behind_a_balancer_is_one_line_and_its_unreadable_page_another() -> None:
    shared = WorkerFinding(kind="shared_url", what="start times 1 and 2 answer by turns")
    views = [view("w", load_unknown=f"its URL leads to several processes: {shared.what}", findings=(shared,))]
    assert list(unknown_loads("p", views)) == []
    assert len(list(reported_faults("p", views))) == 1
    views = [view("w", load_unknown="/metrics answers 404", findings=(shared,))]
    assert len(list(unknown_loads("p", views))) == 1


def test_a_worker_that_lists_none_of_the_pools_models_is_named() -> None:
    views = [view("w1", models=("other",)), view("w2", loras=("sql",)), view("w3", models=())]
    (line,) = other_models("p", ("m", "sql"), views)
    assert line.what == "pool p: w1 lists the models other, and none of the pool's"
    assert list(other_models("p", (), views)) == []


def test_a_worker_that_two_collectors_see_is_told_of_once() -> None:
    snapshots = [
        PoolSnapshot(pool=pool, source=source, sequence=1, at_ms=0, workers=(view("w2"), view("w1")))
        for pool in ("p", "q")
        for source in ("c1", "c2")
    ]
    assert [each.worker for each in seen_in("p", snapshots)] == ["w1", "w2"]
