"""An endless batch behind half an hour of a real chat service, in virtual time: the default policy, and rules of peers.

`python -m benchmarks.background [--seeds 2] [--half first|second]`: 4 engines, one half of the conversation trace, and
a batch of requests with 512 prompt tokens and 128 of the answer. The bounds were chosen on the first half; the second
is the default. For each rule it prints the times to the first token and between tokens, those relative to no batch, the
answers of the batch a second, the used part of the room that the bound allows, and how often requests were stopped.
Beside it: the priorities of the Gateway API Inference Extension (a batch's requests go while the pool isn't saturated),
and a plain second queue (64 places an engine). Exit status 1 when the 99th percentile of either time is more than 3 %
above that without a batch, or less than 85 % of the room is used.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.machine import describe
from pointsman_simulator.background import FILLINGS, Filled, Filling, run_filled
from pointsman_simulator.comparison import Setting
from pointsman_simulator.trace import TraceRequest, read_mooncake

TRACE: Final = Path(__file__).parents[2] / "tools" / "simulator" / "traces" / "mooncake_conversation.jsonl.xz"
MOST: Final = 1.03
LEAST_USED: Final = 0.85
FIRST_SEED: Final = 11


def half_of(trace: list[TraceRequest], half: str) -> list[TraceRequest]:
    """One half of the trace, beginning at 0."""
    middle = len(trace) // 2
    if half == "first":
        return trace[:middle]
    begins = trace[middle].arrival_ms
    return [replace(each, arrival_ms=each.arrival_ms - begins) for each in trace[middle:]]


def mean_of(runs: list[Filled], figure: str) -> float:
    """Over the seeds."""
    return float(np.mean([getattr(each, figure) for each in runs]))


def main() -> int:
    """Print a row for each rule."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.background", description=__doc__)
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--half", choices=("first", "second"), default="second")
    asked = options.parse_args()
    print(describe())
    trace = half_of(list(read_mooncake(TRACE)), asked.half)
    found: dict[Filling, list[Filled]] = {}
    good = True
    for filling in FILLINGS:
        runs = found[filling] = [
            run_filled(trace, Setting(4), filling, seed=FIRST_SEED + seed) for seed in range(asked.seeds)
        ]
        ttft, itl = (mean_of(runs, each) / mean_of(found["none"], each) for each in ("ttft_p99", "itl_p99"))
        used = mean_of(runs, "used")
        print(
            f"{filling:15} TTFT mean {mean_of(runs, 'ttft_mean'):.0f}, p99 {mean_of(runs, 'ttft_p99'):.0f} ms "
            f"({ttft - 1:+.1%}); ITL mean {mean_of(runs, 'itl_mean'):.1f}, p99 {mean_of(runs, 'itl_p99'):.1f} ms "
            f"({itl - 1:+.1%}); batch {mean_of(runs, 'background_per_s'):.1f}/s, {used:.0%} of the room, "
            f"{mean_of(runs, 'stops'):.0f} stops",
            flush=True,
        )
        if filling == "pointsman":
            good = ttft <= MOST and itl <= MOST and used >= LEAST_USED
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
