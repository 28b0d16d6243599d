"""The quality of the default policy's choices. Run: `python -m benchmarks.routing`.

One hour of a real chat service (tools/simulator/traces) in virtual time: 4 engines, and 8 with arrivals twice as fast,
with 16,384 blocks of 64 tokens each; first and last tokens are known 1 ms late, load reports are 50 ms old. The policy
learns the engine's coefficients in the run and never knows the length of an answer. The policies of other routers run
for comparison. Five seeds; status 1 when any of them misses a bar. `--fast`: one seed, and only our policy.
"""

import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.machine import describe

from pointsman_simulator import report
from pointsman_simulator.comparison import DEFAULT_POLICY, POLICIES, Compared, Setting, compare
from pointsman_simulator.trace import read_mooncake, scale_arrivals

TRACE: Final = Path(__file__).parents[2] / "tools" / "simulator" / "traces" / "mooncake_conversation.jsonl.xz"
SEEDS: Final = 5


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
        worst = ours.spread(figure)[1]
        kept &= worst <= bar
        print(f"bar: {title} {worst:.1f} of {bar:g}: {'kept' if worst <= bar else 'MISSED'}")
    return kept


def main() -> int:
    fast = sys.argv[1:] == ["--fast"]
    print(describe())
    policies, seeds = ((DEFAULT_POLICY,), 1) if fast else (POLICIES, SEEDS)
    kept = [measure(case, policies, seeds) for case in CASES]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
