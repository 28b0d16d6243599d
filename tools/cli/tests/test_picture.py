"""A decision as a picture."""

from pathlib import Path

import numpy as np
import pytest

from pointsman_cli.explain.picture import draw
from pointsman_cli.words import CommandError
from pointsman_contracts.regret import JudgedChoice, JudgedRequest
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import CandidateColumns, ProfileRun
from pointsman_testing.builders import scheduled

# The extra `plot` installs it.
imread = pytest.importorskip("matplotlib.image").imread

WORKERS = ("engine-1", "engine-2", "engine-3")
COLUMNS = CandidateColumns(
    workers=WORKERS, ages_ms=(1.0,) * 3, running=(0,) * 3, waiting=(0,) * 3, kv_usage=(0.0,) * 3,
    matched_tokens=(0,) * 3, scores={"queue": (1.0, 0.5, None)}, totals=(2.0, 1.0, None),
    filtered={"engine-3": "healthy: unreachable"},
)  # fmt: skip
DECISION = scheduled(
    runs=(ProfileRun(profile="default", chosen=WORKERS[:2], weights={"queue": 2.0}, candidates=COLUMNS),),
    endpoints=WORKERS[:2],
)
END = ResponseCompleted(
    request_id="r-1", source="edge-1", sequence=1, at_ms=9, pool="p", status=200, outcome="ok", ttft_ms=40.0,
    duration_ms=90.0, decided_ms=2.0,
)  # fmt: skip
CHOICE = JudgedChoice(profile="default", worker="engine-1", cost_us=5, regret_us=0)
JUDGED = JudgedRequest(
    request_id="r-1", edge="edge-1", at_ms=1, prompt_tokens=9, output_tokens=9,
    costs_us={"engine-1": 5000, "engine-2": 7000}, choices=(CHOICE,),
)  # fmt: skip


@pytest.mark.parametrize(("dark", "brightness"), [(False, 1.0), (True, 0.1)])
def test_it_is_drawn_on_the_ground_that_was_asked_for(tmp_path: Path, dark: bool, brightness: float) -> None:
    file = tmp_path / "decision.png"
    draw(file, [DECISION, END], JUDGED, dark=dark)
    pixels = np.asarray(imread(file))
    assert pixels[0, 0, :3].mean() == pytest.approx(brightness, abs=0.02)
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 20


def test_a_request_that_was_not_judged_or_has_not_ended_has_a_smaller_picture(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.png", tmp_path / "part.png"
    draw(whole, [DECISION, END], JUDGED, dark=False)
    draw(part, [DECISION], None, dark=False)
    assert np.asarray(imread(part)).shape[0] < np.asarray(imread(whole)).shape[0]


def test_without_a_decision_the_command_says_so(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no scheduler's decision"):
        draw(tmp_path / "no.png", [END], None, dark=False)
