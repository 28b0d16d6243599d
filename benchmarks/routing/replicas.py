"""Three schedulers of one pool against one, on the same requests.

Each gets a third of them, and hears of the others 1 ms late.
"""

import os
from collections.abc import Sequence
from typing import Final

from pointsman_simulator import report
from pointsman_simulator.comparison import DEFAULT_POLICY, Setting, compare
from pointsman_simulator.trace import TraceRequest

WORKERS: Final = 4
SCHEDULERS: Final = 3
WORST: Final = 1.03
"""Bar for each mean, relative to that of one scheduler."""


def means(trace: Sequence[TraceRequest], schedulers: int, seeds: int) -> tuple[float, float]:
    """Means of the times to the first and to the last token, in ms."""
    setting = Setting(WORKERS, schedulers=schedulers)
    (found,) = compare(trace, (DEFAULT_POLICY,), setting, seeds, os.cpu_count() or 1, lambda _: None)
    print(f"{report.row(found)}   {schedulers} scheduler(s)", flush=True)
    return found.mean_of("ttft_mean"), found.mean_of("e2e_mean")


def measure(trace: Sequence[TraceRequest], seeds: int) -> bool:
    """Print the table. Whether both means are within the bar."""
    print(f"\n{WORKERS} engines; means over {seeds} seeds, ms; bar {WORST:g} of one scheduler")
    print(report.heading())
    one, several = means(trace, 1, seeds), means(trace, SCHEDULERS, seeds)
    kept = True
    for title, base, found in zip(("TTFT mean", "E2E mean"), one, several, strict=True):
        kept &= found <= WORST * base
        print(f"bar: {title} {found / base:.3f} of {WORST:g}: {'kept' if found <= WORST * base else 'MISSED'}")
    return kept
