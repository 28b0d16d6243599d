"""A replay under another policy: which decisions would differ on the state that really was, and why."""

from collections import Counter
from pathlib import Path

import pytest

from pointsman_core.config import SchedulingPolicy
from pointsman_flight.reader import open_log
from pointsman_flight.records import Decided
from pointsman_scheduler.flight.following import FollowingReplay, why_other
from pointsman_scheduler.plugins import registries
from pointsman_testing.recorded_traffic import POLICIES, RandomTraffic, RecordedBench

LEAST_LOADED: dict[str, object] = {"scorers": [{"use": "queue"}, {"use": "running"}], "picker": "max-score"}


def recorded(directory: Path, policy: dict[str, object], segments: int = 1) -> None:
    bench = RecordedBench(directory, policy)
    traffic = RandomTraffic(bench, 3, revisions=False)
    for segment in range(segments):
        if segment:
            bench.rotate()
        traffic.run(800)
    bench.end()


def followed(directory: Path, settings: dict[str, object] | None) -> tuple[int, Counter[str], list[str]]:
    """Decisions, reasons of those that differ, and their words."""
    policy = None if settings is None else SchedulingPolicy.model_validate(settings)
    decisions, reasons, words = 0, Counter[str](), list[str]()
    for flight in open_log([directory]):
        for step in FollowingReplay(flight, registries(), "other", policy).run():
            if isinstance(step.logged.record, Decided) and step.outcome is not None:
                decisions += 1
                if step.difference:
                    reasons[why_other(step.logged.record.outcome, step.outcome).reason] += 1
                    words.append(step.difference)
    return decisions, reasons, words


@pytest.mark.requirement("FLIGHT-5")
@pytest.mark.parametrize("policy", [0, 2])
def test_the_recorded_policy_would_decide_alike(tmp_path: Path, policy: int) -> None:
    recorded(tmp_path, POLICIES[policy], segments=2)
    decisions, reasons, words = followed(tmp_path, None)
    assert decisions > 300
    assert not reasons, words[:3]


@pytest.mark.requirement("FLIGHT-5")
def test_another_policy_differs_and_each_difference_has_a_reason(tmp_path: Path) -> None:
    recorded(tmp_path, LEAST_LOADED)
    decisions, reasons, words = followed(tmp_path, POLICIES[1])
    assert 0 < reasons.total() < decisions
    assert all(reason.startswith(("scorer ", "filter ", "a tie", "refused", "another leg")) for reason in reasons)
    assert any("before, now" in each for each in words)


@pytest.mark.requirement("FLIGHT-5")
def test_a_policy_whose_filter_removes_the_recorded_choice_names_the_filter(tmp_path: Path) -> None:
    recorded(tmp_path, {**LEAST_LOADED, "filters": []})
    strict = {**LEAST_LOADED, "filters": [{"use": "utilization", "limits": [{"metric": "kv-usage", "max": 0.4}]}]}
    _, reasons, _ = followed(tmp_path, strict)
    assert any(reason.startswith("filter ") for reason in reasons), reasons
