"""The manifest of requirements and the tests say the same."""

import ast
import runpy
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = runpy.run_path(str(ROOT / "tests/requirements.py"))
REQUIREMENTS, OPEN = set(MANIFEST["REQUIREMENTS"]), set(MANIFEST["OPEN"])


@cache
def _cited() -> frozenset[str]:
    # Environments are in folders that begin with a dot.
    files = [file for folder in ROOT.glob("[!.]*/") for file in folder.rglob("test_*.py")]
    return frozenset(
        str(argument.value)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requirement"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    )


def test_every_cited_id_stands_in_the_manifest() -> None:
    assert sorted((_cited() | OPEN) - REQUIREMENTS) == []


def test_every_requirement_is_shown_by_a_test_or_listed_as_open() -> None:
    assert sorted(REQUIREMENTS - _cited() - OPEN) == []


def test_nothing_is_listed_as_open_that_a_test_shows() -> None:
    assert sorted(_cited() & OPEN) == []


@pytest.mark.requirement("S0-79")
@pytest.mark.parametrize(("proposal", "points"), [("S0", 81), ("S2", 47), ("S4", 22)])
def test_every_point_of_a_proposal_stands_in_the_manifest(proposal: str, points: int) -> None:
    """S1 has gaps: what is about Envoy and Kubernetes is left out."""
    assert {name for name in REQUIREMENTS if name.startswith(f"{proposal}-")} == {
        f"{proposal}-{number}" for number in range(1, points + 1)
    }
    assert not [name for name in OPEN if name.startswith(f"{proposal}-")]
