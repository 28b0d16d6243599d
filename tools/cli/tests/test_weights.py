"""`pointsman weights` on events as `pointsman watch --json` prints them."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pointsman_cli.app import app
from pointsman_cli.explain.events import as_json
from pointsman_cli.flight.weights import show_weights
from pointsman_cli.words import CommandError
from pointsman_contracts.model_choice import ModelPoint
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.target import Target
from pointsman_testing.builders import scheduled

FAST = ModelPoint(model="fast", place="p", answer_ms=100.0, cost=1_000_000, total=1.0, verdict="chosen")
CHEAP = ModelPoint(model="cheap", place="p", answer_ms=300.0, cost=10_000, total=0.5)
TARGET = Target(model="fast", pool="p")


def recorded(file: Path, requests: int) -> Path:
    lines = ["no event", '{"type": "unheard-of"}', "[]"]
    for number in range(requests):
        end = ResponseCompleted(
            request_id=f"r-{number}", source="edge-1", sequence=1, at_ms=1, pool="p", status=200, outcome="ok",
            target=TARGET, duration_ms=150.0, decided_ms=30.0, cost_nanos=1_000_000,
        )  # fmt: skip
        lines += [as_json(scheduled(request_id=end.request_id, target=TARGET, models=(FAST, CHEAP))), as_json(end)]
    file.write_text("\n".join(lines))
    return file


@pytest.mark.requirement("CHOICE-3")
def test_weights_tells_the_regret_and_the_line_that_would_have_had_less(tmp_path: Path) -> None:
    console = Console(width=120, file=StringIO(), record=True)
    show_weights([recorded(tmp_path / "events.jsonl", 40)], 0.001, 0.01, console)
    page = console.export_text()
    assert "20 requests of fast would have gone to cheap" in page
    assert "joint: {weights: {time: " in page


@pytest.mark.requirement("CHOICE-3")
def test_the_documented_command_judges_a_recorded_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path / "events.jsonl", 40)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["weights", "events.jsonl", "--second", "0.001", "--quality", "0.01"])
    assert result.exit_code == 0, result.output
    assert "joint: {weights: {time: " in result.output


def test_weights_needs_enough_choices_and_files_that_exist(tmp_path: Path) -> None:
    console = Console(file=StringIO())
    with pytest.raises(CommandError, match="3 joint choices ended well; at least 40 are needed"):
        show_weights([recorded(tmp_path / "events.jsonl", 3)], 0.001, 0.01, console)
    with pytest.raises(CommandError, match="No such file"):
        show_weights([tmp_path / "none"], 0.001, 0.01, console)
