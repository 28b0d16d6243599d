"""One choice of model and engine against selector-then-scheduler: cost at equal p95 latency.

`python -m benchmarks.joint_choice [--requests 600] [--workers 2,2] [--scale 1.3]`: one hour of a real chat service
(tools/simulator/traces) in virtual time, for two models on two pools. Every model may serve every request, and prompts
share prefixes at both. Each way is run with many settings; each setting is a point of cost and latency. The cost of a
way at a latency is that of its cheapest setting that is as fast, or between two settings, on the line that joins them.
Prints all points, the quotient of both ways' costs at several latencies, those where it loses included, and the bar.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.joint_choice.two_pools import TwoPools
from benchmarks.joint_choice.world import apart, configuration, together
from benchmarks.machine import describe
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import SimulatedFleet
from pointsman_simulator.trace import read_mooncake, scale_arrivals

TRACE: Final = Path(__file__).parents[2] / "tools" / "simulator" / "traces" / "mooncake_conversation.jsonl.xz"
BAR: Final = 0.8
SHARES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Where the latencies lie that are compared: between the fastest and the slowest that both ways reach."""


class Point(NamedTuple):
    """One setting's outcome."""

    setting: str
    cents: float
    """Per request."""
    first_p95_s: float
    answer_p95_s: float
    small: float
    """Share of the small model."""


def run(setting: str, selector: object, requests: int, workers: tuple[int, int], scale: float) -> Point:
    """One setting on the trace."""
    engine = EngineConfig()
    trace = scale_arrivals(read_mooncake(TRACE, engine.block_size, limit=requests), scale)
    policy = TwoPools(configuration({"s": selector}), "s", engine, workers)
    outcomes = SimulatedFleet([engine] * sum(workers)).replay_trace(trace, policy)
    arrived = np.array(outcomes.arrived)
    first = np.array([each.first_token_at for each in outcomes.requests], dtype=np.float64) - arrived
    answer = np.array([each.finished_at for each in outcomes.requests], dtype=np.float64) - arrived
    return Point(
        setting,
        100.0 * policy.expense.dollars / len(trace),
        float(np.quantile(first, 0.95)) / 1000.0,
        float(np.quantile(answer, 0.95)) / 1000.0,
        policy.expense.requests["small"] / len(trace),
    )


def cost_at(points: Sequence[tuple[float, float]], latency: float) -> float | None:
    """The least cost at this latency on the lower convex hull of (latency, cost): settings may be mixed by lot. None
    when no setting is as fast."""
    hull: list[tuple[float, float]] = []
    for point in sorted(points):
        if hull and point[1] >= min(cost for _, cost in hull):
            continue
        while len(hull) > 1 and _above(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    if latency < hull[0][0]:
        return None
    latencies, costs = zip(*hull, strict=True)
    return float(np.interp(latency, latencies, costs))


def _above(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    (x0, y0), (x1, y1), (x2, y2) = first, middle, last
    return (y1 - y0) * (x2 - x0) >= (y2 - y0) * (x1 - x0)


def compared(name: str, one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> list[float]:
    """Print the quotients of cost, joint over apart, at several latencies; returns them."""
    fastest = max(min(latency for latency, _ in one), min(latency for latency, _ in other))
    cheapest_at = [min(points, key=lambda point: (point[1], point[0]))[0] for points in (one, other)]
    slowest = min(max(cheapest_at), max(latency for latency, _ in (*one, *other)))
    found: list[float] = []
    print(f"\n{name}: cents a request at equal p95")
    print(f"{'p95, s':>10}{'together':>12}{'apart':>12}{'quotient':>12}")
    for share in SHARES:
        latency = fastest * (slowest / fastest) ** share
        mine, theirs = cost_at(one, latency), cost_at(other, latency)
        if mine is None or theirs is None:
            continue
        found.append(mine / theirs)
        print(f"{latency:>10.2f}{mine:>12.4f}{theirs:>12.4f}{mine / theirs:>12.2f}{'  loses' if mine > theirs else ''}")
    fast = [min(points)[0] for points in (one, other)]
    print(f"fastest p95: together {fast[0]:.2f} s, apart {fast[1]:.2f} s")
    return found


def main() -> int:
    """0 when the bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joint_choice", description=__doc__)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--workers", default="2,2", help="engines of the small and of the large model")
    parser.add_argument("--scale", type=float, default=1.3, help="arrivals, times as fast")
    options = parser.parse_args()
    small, large = (int(number) for number in options.workers.split(","))
    print(f"machine: {describe()}\n{options.requests} requests, {small} and {large} engines, x{options.scale:g}\n")
    ways = {"together": together(), "apart": apart()}
    points: dict[str, list[Point]] = {}
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        started = {
            way: [
                pool.submit(run, name, selector, options.requests, (small, large), options.scale)
                for name, selector in settings.items()
            ]
            for way, settings in ways.items()
        }
        print(f"{'setting':<58}{'cents':>8}{'TTFT p95':>10}{'E2E p95':>10}{'small':>8}")
        for way, runs in started.items():
            points[way] = []
            for each in runs:
                point = each.result()
                points[way].append(point)
                print(
                    f"{point.setting:<58}{point.cents:>8.4f}{point.first_p95_s:>10.2f}{point.answer_p95_s:>10.2f}"
                    f"{point.small:>8.0%}",
                    flush=True,
                )
    met = True
    for name, latency in (("time to the first token", 2), ("time to the last token", 3)):
        mine, theirs = ([(float(point[latency]), point.cents) for point in points[way]] for way in ways)
        quotients = compared(name, mine, theirs)
        middle = float(np.median(quotients)) if quotients else float("nan")
        reached = middle <= BAR
        if latency == 2:
            met = reached
        print(f"{'met    ' if reached else 'NOT met'}  cost at equal p95, median quotient: {middle:.2f} (bar {BAR})")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
