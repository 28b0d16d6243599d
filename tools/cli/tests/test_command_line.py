"""Texts of the commands keep words whole on a terminal, and lines whole for a program."""

import io

from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from pointsman_cli.app import app
from pointsman_cli.command_line import print_wrapped

LONG = "unknown service 'schedulr'; did you mean 'scheduler'? known: " + ", ".join(["metrics-collector"] * 9)


def printed(*, terminal: bool) -> list[str]:
    to = io.StringIO()
    print_wrapped(Console(file=to, force_terminal=terminal, color_system=None, width=80), Text(LONG), indent=2)
    return to.getvalue().splitlines()


def test_a_long_text_is_broken_at_words_within_80_columns_on_a_terminal() -> None:
    lines = printed(terminal=True)
    assert max(map(len, lines)) <= 80
    assert all(line.startswith("  ") for line in lines)
    assert " ".join(line.strip() for line in lines) == LONG


def test_a_long_text_is_one_line_for_a_program() -> None:
    assert printed(terminal=False) == [f"  {LONG}"]


def test_the_help_breaks_the_sentences_about_commands_at_the_terminals_edge_alone() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "400"}).stdout
    rows = shown[shown.index(" Commands ") :].splitlines()[1:-1]
    assert [row for row in rows if row.startswith("\u2502  ")] == [], "a row without a command's name"
