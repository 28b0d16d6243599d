"""`pointsman simulate` compares policies in virtual time."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pointsman_cli.app import app
from pointsman_cli.words import CommandError
from pointsman_simulator.background import FILLINGS
from pointsman_simulator.comparison import ONE_TIER, POLICIES, SESSION_POLICIES
from pointsman_simulator.workloads import NAMES

ROOT = Path(__file__).resolve().parents[3]
CONVERSATION = ROOT / "tools" / "simulator" / "traces" / "mooncake_conversation.jsonl.xz"
CHAT = ("--workload", "chat", "--requests", "30", "--processes", "1")


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_every_policy_is_in_the_table_and_in_the_saved_files(tmp_path: Path) -> None:
    result = simulate("--trace", str(CONVERSATION), "--limit", "60", "--seeds", "2", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert all(f"\n{policy} " in result.stdout for policy in POLICIES)
    saved = json.loads((tmp_path / "results.json").read_text())
    assert list(saved["results"]) == list(POLICIES)
    assert all(len(runs) == 2 for runs in saved["results"].values())
    run = saved["results"]["round-robin"][0]
    assert run["requests"] == 60
    assert run["ttft_p50"] <= run["ttft_p90"] <= run["ttft_p99"]
    assert (tmp_path / "results.md").read_text().count("\n| ") == len(POLICIES) + 1
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


def test_only_the_named_policies_are_compared() -> None:
    result = simulate(*CHAT, "--policy", "round-robin")
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()[3:]] == ["round-robin"]
    assert "times in ms" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_sessions_in_a_closed_loop_are_compared_with_the_rules_for_sessions(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [1, 2], "answer_ids": [], "session": 0},
        {"timestamp": 1, "input_length": 900, "output_length": 9, "hash_ids": [1, 2], "session": 0, "parent": 0},
    ]
    trace = tmp_path / "agents.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)))
    result = simulate("--trace", str(trace), "--closed-loop", "--processes", "1")
    assert result.exit_code == 0, result.output
    names = [line.split()[0] for line in result.stdout.splitlines()[3:]]
    assert names == [*POLICIES, *SESSION_POLICIES]
    assert "session" in result.stdout
    refused = simulate("--trace", str(CONVERSATION), "--limit", "60", "--closed-loop")
    assert isinstance(refused.exception, CommandError)
    assert "no closed loop" in refused.exception.problem


def test_the_policies_of_a_configuration_run_beside_the_others(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("scheduling: {spread: {filters: [healthy], scorers: [{use: queue, weight: 1}]}}\n")
    result = simulate(*CHAT, "--config", str(config), "--policy", "mine:spread")
    assert "\nmine:spread" in result.stdout


def test_the_help_of_simulate_names_every_policy_and_workload() -> None:
    result = simulate("--help")
    assert result.exit_code == 0
    assert "Usage: pointsman simulate" in result.stdout
    words = result.stdout.replace(",", " ").replace(".", " ").replace(";", " ").split()
    assert {*POLICIES, *SESSION_POLICIES, *NAMES} <= set(words)


@pytest.mark.parametrize(
    ("option", "known"), [("--policy", (*POLICIES, *SESSION_POLICIES, ONE_TIER)), ("--workload", NAMES)]
)
def test_a_shell_completes_policies_and_workloads(option: str, known: tuple[str, ...]) -> None:
    told = {"_POINTSMAN_COMPLETE": "complete_bash", "COMP_WORDS": f"pointsman simulate {option} ", "COMP_CWORD": "3"}
    result = CliRunner().invoke(app, [], env=told, prog_name="pointsman")
    assert result.stdout.split() == list(known)


def test_a_wrong_option_is_refused_before_anything_is_simulated() -> None:
    result = simulate(*CHAT, "--policy", "pointman")
    assert isinstance(result.exception, CommandError)
    assert "unknown policy 'pointman'; did you mean 'pointsman'?" in result.exception.problem
    assert result.stdout == ""
    assert simulate(*CHAT, "--speedup", "0").exit_code == 2


def test_engines_of_other_speeds_and_more_schedulers_change_the_table() -> None:
    def table(*options: str) -> str:
        return simulate(*CHAT, "--policy", "pointsman", *options).stdout

    assert len({table(), table("--speeds", "0.5,1,1,2"), table("--schedulers", "3", "--peer-lag-ms", "20")}) == 3
    wrong = simulate(*CHAT, "--speeds", "1,fast")
    assert isinstance(wrong.exception, CommandError)
    assert "isn't a list of numbers above 0" in wrong.exception.problem


def test_a_folder_that_cannot_be_written_is_reported_before_anything_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = simulate(*CHAT, "--out", str(tmp_path / "file" / "results"))
    assert isinstance(result.exception, CommandError)
    assert f"Not a directory: '{tmp_path / 'file' / 'results'}'" in result.exception.problem
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--from", "/nowhere"), "/nowhere: no such file"),
        (("--from", "/nowhere", "--workers", "3"), "--workers is the log's with --from"),
        (("--workload", "chat", "--arrivals", "2"), "--arrivals is only for --from"),
        (("--from", "/nowhere", "--speed", "fast"), "--speed fast: write NAME=FACTOR"),
    ],
)
def test_options_of_a_twin_that_make_no_sense_are_refused(arguments: tuple[str, ...], says: str) -> None:
    result = simulate(*arguments)
    assert isinstance(result.exception, CommandError)
    assert says in result.exception.problem


@pytest.mark.requirement("TIERS-2")
def test_a_first_token_comes_sooner_where_host_memory_is_known_once_the_caches_overflow(tmp_path: Path) -> None:
    """In virtual time: no clock decides. The figures of docs/cache-tiers.md, with one seed."""
    overflowing = "--workload rag --requests 1000 --rate 2 --workers 4 --blocks 4096 --host-blocks 65536"
    policies = "--policy pointsman --policy pointsman-device --processes 1"
    result = simulate(*overflowing.split(), *policies.split(), "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    saved = json.loads((tmp_path / "results.json").read_text())["results"]
    known, unknown = (saved[policy][0]["ttft_mean"] for policy in ("pointsman", "pointsman-device"))
    assert known <= 0.85 * unknown


def test_an_endless_batch_shows_what_idle_capacity_holds() -> None:
    result = simulate("--workload", "chat", "--requests", "10", "--processes", "2", "--workers", "1", "--batch", "64,8")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    rows = {line.split()[0]: line.split() for line in lines[3:7]}
    assert list(rows) == list(FILLINGS)
    assert len(rows["none"]) == 5
    assert float(rows["pointsman"][5]) > 0
    assert "The idle capacity holds" in lines[7]
    assert all(len(line) <= 100 for line in lines)
    for wrong in ("64", "64,0", "a,b"):
        refused = simulate(*CHAT, "--batch", wrong)
        assert isinstance(refused.exception, CommandError)
    assert isinstance(simulate(*CHAT, "--batch", "64,8", "--ranks", "2").exception, CommandError)
