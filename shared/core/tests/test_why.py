"""Reasons in words, from the columns of a decision."""

from typing import Any

import pytest

from pointsman_contracts.scheduling import CandidateColumns, ProfileRun, RequestScheduled
from pointsman_core import why
from pointsman_testing.builders import scheduled

WEIGHTS = {"queue": 2.0, "prefix-cache": 3.0}


def _run(
    scores: dict[str, list[float | None]], *, filtered: dict[str, str] | None = None, **columns: Any
) -> ProfileRun:
    count = len(next(iter(scores.values())))
    workers = tuple(f"engine-{number}" for number in range(1, count + 1))
    totals: list[float | None] = []
    for row in range(count):
        values = [(WEIGHTS[name], column[row]) for name, column in scores.items()]
        totals.append(None if any(value is None for _, value in values) else sum(w * (v or 0) for w, v in values))
    chosen = sorted(
        (row for row in range(count) if totals[row] is not None), key=lambda row: totals[row] or 0.0, reverse=True
    )
    nothing = (0,) * count
    return ProfileRun(
        profile="default",
        chosen=tuple(workers[row] for row in chosen),
        weights=WEIGHTS,
        candidates=CandidateColumns(
            workers=workers,
            ages_ms=(5.0,) * count,
            running=nothing,
            waiting=columns.get("waiting", nothing),
            kv_usage=(0.1,) * count,
            matched_tokens=columns.get("matched", nothing),
            scores={name: tuple(column) for name, column in scores.items()},
            totals=tuple(totals),
            filtered=filtered or {},
        ),
    )


def _event(run: ProfileRun) -> RequestScheduled:
    return scheduled(runs=(run,), endpoints=run.chosen, reason="the scheduler's own words")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (
            _run({"queue": [0.5, 0.5, 1.0], "prefix-cache": [0.9, 0.0, 0.0]}, matched=(1024, 0, 0)),
            "1,024 prompt tokens cached",
        ),
        (
            _run({"queue": [0.0, 1.0], "prefix-cache": [0.0, 0.0]}, waiting=(4, 0)),
            "shorter queue: 0 waiting, engine-1 4",
        ),
        (_run({"queue": [1.0, 1.0, 1.0], "prefix-cache": [0.0, 0.0, 0.0]}), "all alike"),
        (_run({"queue": [1.0], "prefix-cache": [0.0]}), "the only candidate"),
        (
            _run({"queue": [1.0, None], "prefix-cache": [0.0, None]}, filtered={"engine-2": "healthy: silent"}),
            "the only candidate, 1 removed",
        ),
    ],
)
def test_the_winner_is_explained_by_its_largest_difference(run: ProfileRun, words: str) -> None:
    assert why.short(_event(run)) == words


def test_a_decision_without_columns_keeps_the_schedulers_words() -> None:
    run = ProfileRun(profile="default", chosen=("engine-9",))
    assert why.short(_event(run)) == "the scheduler's own words"


def test_every_loser_is_explained_by_its_deficit() -> None:
    run = _run(
        {"queue": [1.0, 0.5, None], "prefix-cache": [0.5, 0.6, None]},
        waiting=(0, 3, 9),
        matched=(512, 640, 0),
        filtered={"engine-3": "healthy: no load report for 1.4 s"},
    )
    assert [(verdict.worker, verdict.words) for verdict in why.verdicts(run)] == [
        ("engine-1", "chosen"),
        (
            "engine-2",
            "0.70 less: queue -1.00 (3 waiting, engine-1 0), prefix-cache +0.30 (640 tokens cached, engine-1 512)",
        ),
        ("engine-3", "removed by healthy: no load report for 1.4 s"),
    ]


def test_a_tie_is_said_to_be_one() -> None:
    run = _run({"queue": [1.0, 1.0], "prefix-cache": [0.0, 0.0]})
    assert why.verdicts(run)[1].words == "equal; the tie was broken by chance"
