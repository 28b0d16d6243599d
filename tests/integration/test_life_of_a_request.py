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


SECONDS: Final = (3, 10, 30)
"""For which requests are counted, in one run after another."""
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def runs() -> list[set[str]]:
    """The files with a function that each request calls, as each run has them. On a slow machine, with few requests, a
    run may count calls of timers as those of requests, or lose requests' calls among those of timers. So there are
    more runs until one has the files of the page."""
    found: list[set[str]] = []
    for seconds in SECONDS:
        command = [sys.executable, "-m", "benchmarks.trace", "--seconds", str(seconds)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        files = set(re.findall(r"^ +\d+ ([\w./-]+\.py)$", ran.stdout, re.MULTILINE))
        assert files, ran.stderr
        found.append({file for file in files if not file.startswith(BY_TIMERS)})
        if found[-1] == {file for file in LISTED if not file.startswith(BY_TIMERS)}:
            break
    return found


def test_the_page_lists_no_file_twice() -> None:
    assert len(LISTED) == len(set(LISTED))


def test_a_part_of_the_page_has_at_most_40_files() -> None:
    assert max(part.count(".py` |") for part in PAGE.split("\n## ")) <= 40


def test_each_request_enters_every_file_of_the_page(runs: list[set[str]]) -> None:
    entered = {file for files in runs for file in files}
    assert [file for file in LISTED if file not in entered and not file.startswith(BY_TIMERS)] == []


def test_the_page_lists_every_file_that_each_request_enters(runs: list[set[str]]) -> None:
    first, *others = runs
    assert sorted(first.intersection(*others) - set(LISTED)) == []
