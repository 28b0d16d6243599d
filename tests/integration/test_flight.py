"""`pointsman replay` on the golden log of the repository: it has every kind of input in two segments."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from pointsman_cli.app import app

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
OTHER = "{scorers: [{use: queue}, {use: kv-utilization}], picker: max-score}"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the golden log in `flight`."""
    shutil.copytree(GOLDEN / "flight", tmp_path / "flight")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "flight" / "llama"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.mark.requirement("FLIGHT-1")
def test_the_golden_log_is_replayed_bit_for_bit(log: Path) -> None:
    code, output = run("replay", "flight/llama")
    assert (code, "every decision is the same, bit for bit" in output) == (0, True), output
    assert re.search(r"\b[1-9]\d\d decisions", output), output


@pytest.mark.requirement("FLIGHT-1")
@pytest.mark.parametrize("processor", ["Prescott", "Haswell", "SkylakeX"])
@pytest.mark.usefixtures("log")
def test_the_golden_log_is_replayed_bit_for_bit_with_another_processors_linear_algebra(processor: str) -> None:
    script = str(Path(sys.executable).with_name("pointsman"))
    env = {**os.environ, "OPENBLAS_CORETYPE": processor, "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"}
    done = subprocess.run([script, "replay", "flight/llama"], env=env, capture_output=True, text=True, check=False)
    assert "every decision is the same, bit for bit" in done.stdout, done.stdout + done.stderr


@pytest.mark.requirement("FLIGHT-1")
def test_a_replay_of_its_second_segment_begins_with_the_snapshot(log: Path) -> None:
    code, output = run("replay", str(max(log.iterdir())))
    assert (code, "every decision is the same, bit for bit" in output) == (0, True), output


@pytest.mark.requirement("FLIGHT-5")
def test_another_policy_is_compared_from_a_snapshot_on(log: Path) -> None:
    Path("other.yaml").write_text(OTHER)
    _, output = run("replay", str(max(log.iterdir())), "--policy", "other.yaml", "--allow", "100%", "--json")
    (result,) = json.loads(output)
    assert 0 < result["different"] < result["compared"]


@pytest.mark.requirement("FLIGHT-5")
def test_another_policy_is_counted_grouped_and_explained(log: Path) -> None:
    Path("other.yaml").write_text(OTHER)
    code, output = run("replay", "flight/llama", "--policy", "other.yaml")
    assert code == 1
    assert "would differ" in output
    assert "scorer " in output
    assert "before, now" in output
    code, output = run("replay", "flight/llama", "--policy", "other.yaml", "--allow", "100%", "--json")
    assert code == 0
    (result,) = json.loads(output)
    assert 0 < result["different"] == sum(result["reasons"].values()) <= result["compared"]


@pytest.mark.requirement("FLIGHT-5")
def test_ci_gets_junit_and_a_status(log: Path) -> None:
    Path("pointsman.yaml").write_text(
        f"pools: {{llama: {{models: [llama]}}}}\nmodels: {{llama: {{pool: llama}}}}\nscheduling: {{default: {OTHER}}}\n"
        "profile-picker: {use: rules, rules: [], default: standard}\nprofiles: {standard: {request: [scheduler]}}\n"
    )
    code, _ = run("replay", "flight/llama", "--config", "pointsman.yaml", "--allow", "0.5%", "--junit", "replay.xml")
    assert code == 1
    suite = ElementTree.parse("replay.xml").getroot()  # noqa: S314 - made by this test
    assert suite.get("failures") == "1"
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "allowed 0.50%" in (failure.get("message") or "")


@pytest.mark.requirement("FLIGHT-2")
def test_a_changed_byte_is_named_by_segment_and_place(log: Path) -> None:
    path = min(log.iterdir())
    content = bytearray(path.read_bytes())
    content[40_000] ^= 4
    path.write_bytes(content)
    code, output = run("replay", "flight/llama")
    assert code == 1
    assert isinstance(output, str)


@pytest.mark.usefixtures("log")
def test_regret_judges_the_golden_log_and_counts_the_requests_that_it_cannot() -> None:
    code, output = run("regret", "--from", "flight/llama")
    assert code == 0, output
    assert re.search(r"llama +default +best choice +[1-9]", output), output
    for why in ("without a complete answer", "whose engine failed"):
        assert re.search(rf"Not judged: [1-9]\d* requests {why}\.", output), output
    code, output = run("regret", "--from", "flight/llama", "--by", "pool,hour", "--csv")
    assert code == 0, output
    assert re.fullmatch(r"pool,hour,requests,judged,regret_us,cost_us\nllama,1970-01-01T00,\d+,\d+,\d+,\d+\n", output)


def test_a_golden_log_is_small(log: Path) -> None:
    assert sum(path.stat().st_size for path in log.iterdir()) < 300_000
