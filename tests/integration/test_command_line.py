"""The command line as docs/command-line.md describes it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import typer
from typer.core import TyperGroup

from pointsman_cli.app import app

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
SCRIPT: Final = str(Path(sys.executable).with_name("pointsman"))
NOWHERE: Final = ("--nats", "nats://127.0.0.1:9")


def ran(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    # `--show-completion bash` names its shell; looking for one among the parent processes fails where none is.
    env = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", **env}
    return subprocess.run([SCRIPT, *arguments], env=env, check=False, capture_output=True, text=True, timeout=60)


def test_the_page_lists_every_command_and_no_other() -> None:
    commands: set[str] = set()
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    for name, command in root.commands.items():
        commands |= {f"{name} {each}" for each in command.commands} if isinstance(command, TyperGroup) else {name}
    table = PAGE.partition("## ")[0]
    listed = {each for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for each in re.findall("`(.+?)`", row)}
    assert listed == commands


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--version",), 0, "pointsman 0."),
        (("--show-completion", "bash"), 0, "_POINTSMAN_COMPLETE"),
        (("doctor", *NOWHERE), 1, "no NATS server answers"),
        (("usge",), 2, "Did you mean 'usage'?"),
        (("up", "--confg", "x"), 2, "--config"),
        (("up", "--replicas", "schedulr=2"), 1, "did you mean 'scheduler'?"),
        (("simulate", "--workload", "chatt"), 1, "did you mean 'chat'?"),
    ],
)
def test_the_exit_code_is_the_documented_one_and_the_words_help(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = ran(*arguments)
    assert (done.returncode, words in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert f"| {code} |" in PAGE


@pytest.mark.parametrize(("line", "word"), [("pointsman eng", "engines"), ("pointsman up --metr", "--metrics-port")])
def test_a_shell_completes_commands_and_options(line: str, word: str) -> None:
    done = ran(_POINTSMAN_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(line.count(" ")))
    assert word in done.stdout.split()


@pytest.mark.parametrize("command", ["", "up", "usage", "engines add", "keys create", "simulate"])
def test_help_fits_80_columns_without_colours(command: str) -> None:
    done = ran(*command.split(), "--help", COLUMNS="80", NO_COLOR="1", FORCE_COLOR="")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b[3" not in done.stdout
