"""`replay` compares policies: the same object that decides in the service, and those of other routers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pointsman_core.config import SchedulingPolicy
from pointsman_simulator.comparison import POLICIES, Compared, Setting, make_policy
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Lags, SimulatedFleet
from pointsman_simulator.replay import main
from pointsman_simulator.report import save
from pointsman_simulator.scheduler_policy import SchedulerPolicy
from pointsman_simulator.summary import Summary, summarize
from pointsman_simulator.trace import read_mooncake
from pointsman_simulator.workloads import generate_workload

CONVERSATION = Path(__file__).parents[1] / "traces" / "mooncake_conversation.jsonl.xz"
SUMMARY = Summary(1, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)


def test_every_policy_is_in_the_table_and_in_what_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trace", str(CONVERSATION), "--limit", "60", "--seeds", "2", "--out", str(tmp_path)]
    assert main(arguments, "replay") == 0
    table = capsys.readouterr().out
    assert all(f"\n{policy}" in table for policy in POLICIES)
    saved = json.loads((tmp_path / "results.json").read_text())
    assert list(saved["results"]) == list(POLICIES)
    assert all(len(runs) == 2 for runs in saved["results"].values())
    run = saved["results"]["round-robin"][0]
    assert run["requests"] == 60
    assert run["ttft_p50"] <= run["ttft_p90"] <= run["ttft_p99"]
    assert (tmp_path / "results.md").read_text().count("\n| ") == len(POLICIES) + 1
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


def test_the_policies_of_a_configuration_run_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("scheduling: {spread: {filters: [healthy], scorers: [{use: queue, weight: 1}]}}\n")
    arguments = ["--workload", "chat", "--requests", "40", "--config", str(config), "--policy", "mine:spread"]
    assert main(arguments, "replay") == 0
    assert "\nmine:spread" in capsys.readouterr().out


def test_seeds_that_make_no_difference_are_plotted_too(tmp_path: Path) -> None:
    runs = tuple(replace(SUMMARY, ttft_mean=0.1 + 0.2) for _ in range(7))
    assert len(save([Compared("same", runs)], {}, tmp_path)) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--workload", "chat", "--policy", "best"], "unknown policy 'best'; known: dynamo"),
        (["--workload", "chat", "--workers", "0"], "--workers is above 0"),
        (["--trace", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--trace", str(CONVERSATION), "--block-size", "100", "--limit", "5"], "no multiple of blocks of 100"),
        (["--workload", "chat", "--config", __file__], "test_comparison.py"),
        (["--workload", "rag", "--blocks", "20"], "never fits in 20 blocks of 64"),
        ([], "--trace --workload"),
    ],
)
def test_wrong_options_end_with_what_is_wrong(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments, "replay")
    assert says in capsys.readouterr().err


def test_the_same_seed_decides_alike() -> None:
    trace = generate_workload("bursts", 200, 4.0)
    chosen = [
        SimulatedFleet([EngineConfig()] * 3).replay(trace, make_policy("pointsman", Setting(3), seed)).workers
        for seed in (1, 1, 2)
    ]
    assert chosen[0] == chosen[1]
    assert len(chosen[2]) == 200


def test_the_default_policy_beats_dynamos_best_on_the_conversation_trace() -> None:
    """The whole trace takes too long for a test; on it the distance is greater."""
    trace = read_mooncake(CONVERSATION, limit=2000)
    ours, theirs = (
        summarize(SimulatedFleet([EngineConfig()] * 4, Lags()).replay(trace, make_policy(name, Setting(4), 0)), 4)
        for name in ("pointsman", "dynamo-scale-2")
    )
    assert ours.ttft_mean < 0.95 * theirs.ttft_mean
    assert ours.e2e_mean < 0.99 * theirs.e2e_mean


@pytest.mark.requirement("S2-39")
def test_the_scheduler_is_told_of_adapters_and_serves_them() -> None:
    trace = generate_workload("adapters", 200, 8.0)
    loras = sorted({request.lora for request in trace if request.lora})
    policy = SchedulerPolicy(2, SchedulingPolicy(), loras=loras)
    outcomes = SimulatedFleet([EngineConfig()] * 2).replay(trace, policy)
    assert all(request.finished_at > request.arrived_at for request in outcomes.requests)
