"""docs/life-of-a-request.md names the files that a request enters: all of them, and no other."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs/life-of-a-request.md").read_text(encoding="utf-8")
LISTED: Final = re.findall(r"^\| `([\w./-]+\.py)` \|", PAGE, re.MULTILINE)
BY_TIMERS: Final = (
    *("shared/runtime/", "shared/engines/", "services/scheduler/pointsman_scheduler/plugins/detectors/"),
    "services/scheduler/pointsman_scheduler/domain/prefix_index/reported.py",
)
"""Timers run these too, many times a second: on a slow machine their share of a request's work is uncertain."""


@pytest.fixture(scope="module")
def entered() -> set[str]:
    """The files with a function that each request calls."""
    command = [sys.executable, "-m", "benchmarks.trace", "--seconds", "3"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    files = set(re.findall(r"^ +\d+ ([\w./-]+\.py)$", ran.stdout, re.MULTILINE))
    assert files, ran.stderr
    return files


def test_the_page_lists_no_file_twice() -> None:
    assert len(LISTED) == len(set(LISTED))


def test_a_part_of_the_page_has_at_most_40_files() -> None:
    assert max(part.count(".py` |") for part in PAGE.split("\n## ")) <= 40


def test_each_request_enters_every_file_of_the_page(entered: set[str]) -> None:
    assert [file for file in LISTED if file not in entered and not file.startswith(BY_TIMERS)] == []


def test_the_page_lists_every_file_that_each_request_enters(entered: set[str]) -> None:
    assert sorted(file for file in entered - set(LISTED) if not file.startswith(BY_TIMERS)) == []
