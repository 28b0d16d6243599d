"""Packages that `make demo` installs, and those that documents add, stay installed."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
UV: Final = ROOT / ".uv" / "bin" / "uv"
README: Final = (ROOT / "README.md").read_text()
FURTHER: Final = ("openai", "jsonschema")
OF_PACKAGES: Final = {"nats": "nats-py"}
"""Where a module has another name than its distribution."""


def uv(*arguments: str) -> str:
    return subprocess.run([UV, *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def imported(source: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names


def test_the_readme_names_the_installation_of_everything_that_documents_run_and_the_demo_lacks() -> None:
    left = uv("export", "--locked", "--no-dev", "--no-hashes", "--no-header", "--quiet", "--package", "pointsman-cli")
    there = set(re.findall(r"^[a-z0-9-]+", left, re.MULTILINE))
    sources = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    sources += [path.read_text() for path in (ROOT / "examples").glob("*.py")]
    needed = {OF_PACKAGES.get(name, name) for source in sources for name in imported(source)}
    assert needed - there == set(FURTHER)


@pytest.mark.parametrize(
    "command", [("pip", "install", "openai", "jsonschema"), ("pip", "install", "./examples/plugin")]
)
def test_a_documented_installation_is_one_that_the_environment_takes(command: tuple[str, ...]) -> None:
    uv(*command, "--dry-run", "--offline", "--python", sys.executable)


def test_packages_installed_by_hand_outlive_every_make_command() -> None:
    syncs = [line for line in (ROOT / "Makefile").read_text().splitlines() if "$(UV) sync" in line]
    assert len(syncs) == 1
    assert all("--inexact" in line for line in syncs)
