"""`pointsman simulate` is the simulator's replay under the name that people look for."""

from pathlib import Path

from typer.testing import CliRunner

from pointsman_cli.app import app


def test_simulate_compares_the_policies_that_are_named() -> None:
    arguments = ["simulate", "--workload", "chat", "--requests", "30", "--policy", "round-robin", "--processes", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "\nround-robin" in result.stdout
    assert "TTFT mean" in result.stdout


def test_the_help_of_simulate_names_its_own_options() -> None:
    result = CliRunner().invoke(app, ["simulate", "--help"])
    assert result.exit_code == 0
    assert "usage: pointsman simulate" in result.stdout
    assert "--load-age-ms" in result.stdout


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arguments = ["simulate", "--workload", "chat", "--requests", "30", "--out", str(tmp_path / "file" / "results")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert f"Not a directory: '{tmp_path / 'file' / 'results'}'" in result.stderr
    assert result.stdout == ""
