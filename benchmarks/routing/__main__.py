"""The quality of the default policy's choices. Run: `python -m benchmarks.routing`.

One hour of a real chat service (tools/simulator/traces) in virtual time: 4 engines, and 8 with arrivals twice as fast,
with 16,384 blocks of 64 tokens each; first and last tokens are known 1 ms late, load reports are 50 ms old. The policy
learns the engine's coefficients in the run and never knows the length of an answer. The policies of other routers run
for comparison. Five seeds; status 1 when any of them misses a bar. `--fast`: one seed, and only our policy.
`--adverse`: sudden changes of engines and of traffic instead (`adverse`).
`--oracle`: the same hour, by the default policy with pass times known and nothing heard late (`oracle`).
`--live [--seconds 120] [--warm-up 60] [--seeds 5]`: real processes and engines in real time instead, against
round-robin (`live`).
`--disaggregated`: when prefill on another engine pays (`disaggregated`).
`--replicas`: three schedulers against one over the same hour, two seeds (`replicas`).
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from benchmarks.machine import describe
from benchmarks.routing import adverse, disaggregated, live, oracle, replicas
from pointsman_simulator import report
from pointsman_simulator.comparison import DEFAULT_POLICY, POLICIES, Compared, Setting, compare
from pointsman_simulator.trace import read_mooncake, scale_arrivals

TRACE: Final = Path(__file__).parents[2] / "tools" / "simulator" / "traces" / "mooncake_conversation.jsonl.xz"
SEEDS: Final = 5
REPLICA_SEEDS: Final = 2
DISAGGREGATED_SEEDS: Final = 3


class Case(NamedTuple):
    workers: int
    arrivals: float
    ttft_bar_ms: float
    p99_bar_ms: float
    """Bar for the 99th percentile of the times to the first token."""
    e2e_bar_ms: float


CASES: Final = (Case(4, 1.0, 310.0, 2050.0, 3740.0), Case(8, 2.0, 222.0, 1850.0, 3400.0))


def measure(case: Case, policies: tuple[str, ...], seeds: int) -> bool:
    """Print the table. Whether the worst seed of our policy is within all bars."""
    trace = scale_arrivals(read_mooncake(TRACE), case.arrivals)
    print(f"\n{case.workers} engines, arrivals times {case.arrivals:g}; means over {seeds} seeds, ms")
    print(report.heading())

    def show(compared: Compared) -> None:
        print(report.row(compared), flush=True)

    results = compare(trace, policies, Setting(case.workers), seeds, os.cpu_count() or 1, show)
    for compared in results:
        print(report.ranges(compared))
    ours = next(compared for compared in results if compared.policy == DEFAULT_POLICY)
    kept = True
    for title, figure, bar in (
        ("TTFT mean", "ttft_mean", case.ttft_bar_ms),
        ("TTFT p99", "ttft_p99", case.p99_bar_ms),
        ("E2E mean", "e2e_mean", case.e2e_bar_ms),
    ):
        worst = ours.spread_of(figure)[1]
        kept &= worst <= bar
        print(f"bar: {title} {worst:.1f} of {bar:g}: {'kept' if worst <= bar else 'MISSED'}")
    return kept


def main() -> int:
    """Exit status 0 when every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="one seed, and only our policy")
    parser.add_argument("--adverse", action="store_true", help="sudden changes of engines and of traffic")
    parser.add_argument("--live", action="store_true", help="real processes, against round-robin")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the trace for each live run")
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds of the trace before each live run")
    parser.add_argument("--speed", type=float, default=1.0, help="of engines and arrivals in live runs")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of live runs")
    parser.add_argument("--replicas", action="store_true", help="three schedulers against one")
    parser.add_argument("--disaggregated", action="store_true", help="prefill on another engine: always, never, pays")
    parser.add_argument("--oracle", action="store_true", help="our policy with pass times known and nothing heard late")
    options = parser.parse_args()
    print(describe())
    if options.live:
        length = live.Length(options.seconds, options.warm_up, options.speed)
        measured = live.measure(read_mooncake(TRACE), options.seeds, length)
        return 0 if uvloop.run(measured) else 1
    if options.adverse:
        return 0 if adverse.measure() else 1
    if options.disaggregated:
        return 0 if disaggregated.measure(DISAGGREGATED_SEEDS, os.cpu_count() or 1) else 1
    if options.replicas:
        return 0 if replicas.measure(read_mooncake(TRACE), REPLICA_SEEDS) else 1
    if options.oracle:
        for case in CASES:
            print(f"\n{case.workers} engines, arrivals times {case.arrivals:g}; one seed, ms")
            print(report.heading())
            trace = scale_arrivals(read_mooncake(TRACE), case.arrivals)
            print(report.row(oracle.run(trace, case.workers)), flush=True)
        return 0
    policies, seeds = ((DEFAULT_POLICY,), 1) if options.fast else (POLICIES, SEEDS)
    kept = [measure(case, policies, seeds) for case in CASES]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
