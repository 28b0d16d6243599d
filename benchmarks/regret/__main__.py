"""The regret of routing policies, all judged alike (docs/regret.md). Run: `python -m benchmarks.regret`.

One hour of a real chat service (tools/simulator/traces) in virtual time on 4 engines, as in `benchmarks.routing`. Each
policy routes the whole trace, and the judge sees no more than a recorder does: choices, first tokens, ends, and which
blocks engines hold. Status 1 unless the default policy's regret is below that of round-robin, GIE's and Dynamo's, also
with the wait for its engine added to it, and also without late binding. `--wide`: 8 engines and arrivals twice as fast
too. `--limit N`: only the first requests.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.machine import describe
from pointsman_core.config import SchedulingPolicy
from pointsman_simulator.comparison import DEFAULT_POLICY, Setting, make_policy
from pointsman_simulator.fleet import SimulatedFleet
from pointsman_simulator.judged import JudgedPolicy
from pointsman_simulator.trace import read_mooncake, scale_arrivals

TRACE: Final = Path(__file__).parents[2] / "tools" / "simulator" / "traces" / "mooncake_conversation.jsonl.xz"
ON_ARRIVAL: Final = "bound on arrival"
OTHERS: Final = ("round-robin", "gie", "dynamo")


class Row(NamedTuple):
    policy: str
    ttft_ms: float
    judged: int
    regret_ms: float
    waited_ms: float
    """Before its engine was chosen, mean over all requests."""
    share: float
    """Of the cost of the chosen engines."""


def run(policy: str, workers: int, arrivals: float, limit: int | None) -> Row:
    """One policy on the trace."""
    trace = scale_arrivals(read_mooncake(TRACE, limit=limit), arrivals)
    early = SchedulingPolicy.model_validate({"late_binding": {"enabled": False}})
    setting = Setting(workers, scheduling={ON_ARRIVAL: early})
    judged = JudgedPolicy(make_policy(policy, setting, seed=0), workers, setting.engine.block_size)
    outcomes = SimulatedFleet([setting.engine] * workers, setting.lags).replay_trace(trace, judged)
    regret = judged.sum_regret()
    ttft = float(np.mean([each.first_token_at - each.arrived_at for each in outcomes.requests]))
    waited = float(np.mean(outcomes.waited_ms))
    return Row(policy, ttft, regret.judged, regret.mean_ms, waited, regret.regret_us / max(1, regret.cost_us))


def measure(workers: int, arrivals: float, limit: int | None) -> bool:
    """Print the table and the bars; whether all are met."""
    print(f"\n{workers} engines, arrivals times {arrivals:g}; means of a request, in ms")
    print(f"{'policy':<18}{'TTFT':>9}{'judged':>9}{'regret':>9}{'of cost':>9}{'wait':>8}{'with wait':>11}")
    rows: dict[str, Row] = {}
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        started = [pool.submit(run, name, workers, arrivals, limit) for name in (DEFAULT_POLICY, ON_ARRIVAL, *OTHERS)]
        for each in started:
            row = each.result()
            rows[row.policy] = row
            print(
                f"{row.policy:<18}{row.ttft_ms:>9.1f}{row.judged:>9,}{row.regret_ms:>9.1f}{row.share:>9.1%}"
                f"{row.waited_ms:>8.1f}{row.regret_ms + row.waited_ms:>11.1f}",
                flush=True,
            )
    least = min(rows[name].regret_ms for name in OTHERS)
    met = True
    for title, figure in (
        ("regret of the default policy", rows[DEFAULT_POLICY].regret_ms),
        ("… with its wait for the engine", rows[DEFAULT_POLICY].regret_ms + rows[DEFAULT_POLICY].waited_ms),
        ("… bound on arrival", rows[ON_ARRIVAL].regret_ms),
    ):
        met &= figure < least
        print(
            f"{'met    ' if figure < least else 'NOT met'}  {title}: {figure:.1f} ms (least of the others {least:.1f})"
        )
    return met


def main() -> int:
    """Exit status 0 when every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regret", description=__doc__)
    parser.add_argument("--wide", action="store_true", help="8 engines and arrivals twice as fast too")
    parser.add_argument("--limit", type=int, help="only the first requests of the trace")
    options = parser.parse_args()
    print(describe())
    cases = [(4, 1.0), (8, 2.0)] if options.wide else [(4, 1.0)]
    met = [measure(workers, arrivals, options.limit) for workers, arrivals in cases]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
