"""docs/where-to-change.md names files that exist, no more of them than promised, and tests that hold the list."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/where-to-change.md").read_text()
MOST = {
    "a scorer": 3,
    "a fact of a request, which a scorer reads and a flight log records": 4,
    "a request header that becomes such a fact": 2,
    "a field of a reservation": 3,
    "a field of a request's end that the ledger keeps": 4,
    "a kind of provider": 2,
    "an API endpoint that passes through": 2,
    "an API endpoint whose answers are read": 3,
    "a field of the event `RequestScheduled`": 2,
    "a metric of a service": 2,
    "the shape of an error": 1,
    "the metrics of an engine": 1,
    "a unit of limits": 2,
    "a command of the CLI": 2,
    "a misbehaviour of engines": 3,
    "a stage": 0,
    "the time after which a silent worker is dead": 1,
    "a fast path beside a plain way to the same result": 1,
    "a value of the Helm chart": 1,
}
"""Task → files; those of a stage have a table of their own."""
STAGE = 10


def _rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


TASKS = {row[0]: row for row in _rows(TEXT.partition("## A stage")[0])}


def _paths(cell: str) -> list[str]:
    return re.findall(r"`([\w./<>-]+\.\w+)`", cell)


def test_every_promised_task_is_walked() -> None:
    assert set(TASKS) == set(MOST)


@pytest.mark.parametrize("task", sorted(MOST))
def test_a_task_touches_no_more_files_than_promised_and_they_exist(task: str) -> None:
    _, files, held = TASKS[task]
    paths = _paths(files)
    assert len(paths) <= MOST[task]
    for path in (*paths, *_paths(held)):
        place = ROOT / path
        named = ROOT / path.partition("<")[0].rpartition("/")[0]
        assert named.is_dir() if "<" in path else place.is_file(), path


def test_a_stage_touches_at_most_ten_files_outside_its_folder() -> None:
    files = [row[0].strip("`") for row in _rows(TEXT.partition("## A stage")[2])]
    assert len(files) <= STAGE
    assert [file for file in files if not (ROOT / file).is_file()] == []
