"""Whether the twin of a flight log predicts what really happens.

`python -m benchmarks.twin [--seconds 180] [--keep FOLDER]` sends the same requests (a synthetic workload of questions
about documents) to a gateway of real processes, once with each of four policies, in real time: three simulated engines,
flight log on. It makes the twin of each log and compares predicted with recorded times; the twin of the first log also
predicts the order of the four policies. A last run has an engine that slows down midway, which the verdict must name.
`--keep` keeps the logs, and `--read` reads kept ones instead of running anything. Exit status 0 when all bars are met.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import uvloop
from pydantic import JsonValue

from benchmarks.machine import describe
from benchmarks.twin.live import Slowdown, fly
from pointsman_core.config import SchedulingPolicy
from pointsman_simulator.trace import TraceRequest
from pointsman_simulator.twin import report
from pointsman_simulator.twin.anew import Anew, PolicyFigures, figures, ranked
from pointsman_simulator.twin.build import RECORDED, Twin, build, compare_policies
from pointsman_simulator.twin.flight_log import read_recording
from pointsman_simulator.twin.what_if import WhatIf
from pointsman_simulator.workloads import generate_workload
from pointsman_testing.stack import StackFactory

SAMPLE: Final = Path(__file__).resolve().parents[2] / "pointsman.yaml"
RATE: Final = 5.0
SEEDS: Final = 8
POLICIES: Final[Mapping[str, Mapping[str, JsonValue]]] = {
    "default": {},
    "prefix-and-load": {
        "filters": ["healthy"],
        "scorers": [
            {"use": "queue", "weight": 2},
            {"use": "kv-utilization", "weight": 2},
            {"use": "prefix-cache", "weight": 3},
        ],
    },
    "fewest-requests": {"filters": ["healthy"], "scorers": [{"use": "active-requests", "weight": 1}]},
    "random": {"filters": ["healthy"], "scorers": [], "picker": "random"},
}
"""By name; all with the scheduler of the service, live and in the twin."""
ATTEMPTS: Final = 12
MEANS_BAR: Final = 0.05
P99_BAR: Final = 0.15
LEAST_TOLD: Final = 3
"""Pairs of the six that run and twin must tell apart, so that a comparison in which all is a tie is none."""


def judge(met: bool, what: str) -> bool:
    print(f"{'met    ' if met else 'NOT met'}  {what}")
    return met


def twin_of(folder: Path) -> Twin:
    """The twin of a log, shown."""
    made = build(read_recording([folder]), SEEDS, os.cpu_count() or 1, lambda _what, _share: None)
    print(report.about(made))
    for check in made.checks:
        print(f"\n{report.check(check)}")
    print(f"\n{report.verdict(made)}", flush=True)
    return made


def predicted_well(name: str, made: Twin) -> list[bool]:
    """The bars of one run: predicted means and 99th percentiles, of the policy that ran."""
    met: list[bool] = []
    for check in made.checks:
        for figure in check.figures:
            if figure.name in ("mean", "p99"):
                bar = MEANS_BAR if figure.name == "mean" else P99_BAR
                what = (
                    f"{name}, {check.how}: {figure.of} {figure.name} predicted {figure.error:+.1%} (bar: {bar:.0%}; "
                    f"two runs differ by ±{figure.chance_ms / figure.recorded:.1%})"
                )
                met.append(judge(abs(figure.error) <= bar, what))
    met.append(judge(made.verdict.is_trusted, f"{name}: the verdict is trust"))
    return met


def order(twins: Mapping[str, Twin]) -> bool:
    """Whether the twin of the first run has the policies in the order in which the runs themselves have them. Two
    policies whose difference has an interval that reaches 0 are a tie, which contradicts no order."""
    first = next(iter(twins.values()))
    configured = {name: SchedulingPolicy.model_validate(settings) for name, settings in POLICIES.items()}
    # The runs have the same requests, but a log may lack the first ones. One that isn't judged in some run (a log whose
    # beginning is missing has its cold caches there) is compared in none.
    size = min(len(made.recorded.ttft) for made in twins.values())
    tails = {name: (made.recorded.ttft[-size:], made.recorded.e2e[-size:]) for name, made in twins.items()}
    judged = np.logical_and.reduce([np.isfinite(ttft) for ttft, _ in tails.values()])
    of_first = np.concatenate([np.zeros(len(first.recorded.ttft) - size, dtype=bool), judged])
    names = [RECORDED, *(name for name in twins if twins[name] is not first)]
    by_twin = compare_policies(
        first, names, configured, WhatIf(), SEEDS, os.cpu_count() or 1, lambda _what, _share: None, of_first
    )
    by_twin = [replace(figure, ttft_ties=tuple(map(_own_name, figure.ttft_ties))) for figure in by_twin]
    by_twin = [replace(figure, policy=name) for name, figure in zip(twins, by_twin, strict=True)]
    print(f"\n{report.comparison(by_twin, WhatIf())}")
    runs = {name: [Anew(ttft[judged], e2e[judged], reuse=0.0)] for name, (ttft, e2e) in tails.items()}
    by_run = figures(runs, first.recorded.arrived[of_first])
    print("\nTTFT mean, ms: recorded in its own run, and by the first twin")
    for real, predicted in zip(by_run, by_twin, strict=True):
        ours, theirs = predicted.ttft_mean, real.ttft_mean
        print(f"  {real.policy:<20}{theirs.value:>9.1f}{ours.value:>9.1f}{ours.value / theirs.value - 1:>+8.1%}")
    pairs = list(combinations(range(len(by_run)), 2))
    told = [pair for pair in pairs if not _tie(by_run, *pair) and not _tie(by_twin, *pair)]
    opposed = [pair for pair in told if _before(by_run, *pair) != _before(by_twin, *pair)]
    what = (
        f"order by TTFT: {ranked(by_run)}; the twin says {ranked(by_twin)} (= is a tie); of {len(pairs)} pairs both "
        f"tell {len(told)} apart (bar: {LEAST_TOLD}), {len(opposed)} in opposite order (bar: 0)"
    )
    return judge(not opposed and len(told) >= LEAST_TOLD, what)


def _own_name(policy: str) -> str:
    """The first policy is the one that its log recorded."""
    return next(iter(POLICIES)) if policy == RECORDED else policy


def _tie(compared: Sequence[PolicyFigures], one: int, other: int) -> bool:
    return compared[other].policy in compared[one].ttft_ties


def _before(compared: Sequence[PolicyFigures], one: int, other: int) -> bool:
    return compared[one].ttft_mean.value < compared[other].ttft_mean.value


async def record(folder: Path, requests: Sequence[TraceRequest], seconds: float) -> bool:
    """Run all of it; whether every request was answered."""
    met = True
    with TemporaryDirectory(prefix="pointsman-twin-") as scratch:
        factory = StackFactory(Path(scratch), SAMPLE)
        for name, settings in POLICIES.items():
            met &= await flown(factory, settings, requests, folder / name)
        slowdown = Slowdown(seconds / 2, 1, 2.0)
        met &= await flown(factory, POLICIES["default"], requests, folder / "slowed", slowdown)
    return met


async def flown(
    factory: StackFactory,
    settings: Mapping[str, JsonValue],
    requests: Sequence[TraceRequest],
    folder: Path,
    slowdown: Slowdown | None = None,
) -> bool:
    """One run; whether every request was answered. A run in which the machine stood still says nothing of the engines'
    speed, and is repeated."""
    for attempt in range(1, ATTEMPTS + 1):
        rmtree(folder, ignore_errors=True)
        print(f"running {folder.name}, attempt {attempt} …", flush=True)
        sent = await fly(factory, settings, requests, folder, slowdown)
        if not sent.stood_still_s:
            what = f"{folder.name}: {sent.answered} requests answered, {sent.failed} failed {sent.problem}"
            return judge(sent.failed == 0, what)
        print(f"  given up: the machine stood still for {sent.stood_still_s:.1f} s", flush=True)
    return judge(False, f"{folder.name}: the machine stood still in each of {ATTEMPTS} runs")


def conclude(folder: Path) -> bool:
    """Read the logs, and judge all bars."""
    met: list[bool] = []
    twins: dict[str, Twin] = {}
    for name in POLICIES:
        print(f"\n=== {name}")
        twins[name] = twin_of(folder / name)
    print("\n=== default, an engine slows down midway")
    slowed = twin_of(folder / "slowed")
    print("\n=== bars")
    for name, made in twins.items():
        met += predicted_well(name, made)
    met.append(order(twins))
    named = [change for change in slowed.changes if change.engine == "engine-2" and change.factor > 1]
    found = ", ".join(f"{change} from {change.at_ms / 1000:.0f} s on" for change in slowed.changes) or "no change"
    met.append(
        judge(not slowed.verdict.is_trusted and bool(named), f"slowed: not trusted, and engine-2 is named: {found}")
    )
    return all(met)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="of traffic for each of the five runs")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the logs here")
    where.add_argument("--read", type=Path, metavar="FOLDER", help="read kept logs instead of running anything")
    options = parser.parse_args()
    print(f"machine: {describe()}")
    if options.read is not None:
        return 0 if conclude(options.read) else 1
    requests = generate_workload("rag", round(RATE * options.seconds), RATE)
    with TemporaryDirectory(prefix="pointsman-twin-logs-") as scratch:
        folder = options.keep or Path(scratch)
        answered = uvloop.run(record(folder, requests, options.seconds))
        return 0 if conclude(folder) and answered else 1


if __name__ == "__main__":
    sys.exit(main())
