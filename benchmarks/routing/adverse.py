"""Sudden changes that no model foresees: late binding, and binding at once, on the same requests.

At 60 s of 1,200 requests in bursts, on four engines, one engine changes (`Disturbance`); or the requests come ten times
as fast for 5 s, or every twentieth answer is ten times as long. The bar is the loss against binding at once.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pointsman_core.config import SchedulingPolicy
from pointsman_simulator.comparison import DEFAULT_POLICY, Setting, compare
from pointsman_simulator.disturbance import Disturbance
from pointsman_simulator.trace import TraceRequest
from pointsman_simulator.workloads import generate_workload

AT_ONCE: Final = "at once"
WORST: Final = 1.05
"""Bar for each mean, relative to that of binding at once."""
_AT_MS: Final = 60_000.0
_BURST_MS: Final = 5_000.0

CASES: Final[dict[str, tuple[Disturbance, ...]]] = {
    "undisturbed": (),
    "twice as slow": (Disturbance(_AT_MS, 0, "slower", 2.0),),
    "four times as slow": (Disturbance(_AT_MS, 0, "slower", 4.0),),
    "lies about its queue": (Disturbance(_AT_MS, 0, "lies"),),
    "cache wiped": (Disturbance(_AT_MS, 0, "wiped"),),
    "a quarter of the pass": (Disturbance(_AT_MS, 0, "smaller-passes", 4.0),),
    "ten times the arrivals": (),
    "heavy-tailed answers": (),
}


def workload(case: str, requests: int, seed: int = 0) -> list[TraceRequest]:
    """The requests of a case."""
    trace = generate_workload("bursts", requests, 6.0, seed)
    if case == "ten times the arrivals":
        # The next 50 s of requests come within 5 s; all later ones come 45 s earlier.
        rest = _BURST_MS * 9.0
        return [replace(one, arrival_ms=_hurried(one.arrival_ms, rest)) for one in trace]
    if case == "heavy-tailed answers":
        return [
            replace(one, output_tokens=min(20_000, one.output_tokens * 10)) if number % 20 == 0 else one
            for number, one in enumerate(trace)
        ]
    return trace


def means(case: str, requests: int, seeds: int = 1) -> dict[str, tuple[float, float]]:
    """Means of the times to the first and to the last token, in ms, of late binding and of binding at once."""
    at_once = SchedulingPolicy.model_validate({"late_binding": {"enabled": False}})
    setting = Setting(4, disturbances=CASES[case], scheduling={AT_ONCE: at_once})
    results = compare(
        workload(case, requests), (DEFAULT_POLICY, AT_ONCE), setting, seeds, os.cpu_count() or 1, lambda _: None
    )
    return {each.policy: (each.mean_of("ttft_mean"), each.mean_of("e2e_mean")) for each in results}


def measure(cases: Sequence[str] = tuple(CASES), requests: int = 1200) -> bool:
    """Print the table. Whether every case is within the bar."""
    print(f"\n{'':24} {'late':>16} {'at once':>16}   means to the first and last token, ms; bar {WORST:g} of at once")
    kept = True
    for case in cases:
        found = means(case, requests)
        late, at_once = found[DEFAULT_POLICY], found[AT_ONCE]
        worst = max(ours / theirs for ours, theirs in zip(late, at_once, strict=True))
        kept &= worst <= WORST
        shown = "kept" if worst <= WORST else "MISSED"
        print(
            f"{case:24} {late[0]:7.0f} {late[1]:8.0f} {at_once[0]:7.0f} {at_once[1]:8.0f}   {worst:.3f} {shown}",
            flush=True,
        )
    return kept


def _hurried(at: float, rest: float) -> float:
    if at < _AT_MS:
        return at
    if at < _AT_MS + rest + _BURST_MS:
        return _AT_MS + (at - _AT_MS) / 10.0
    return at - rest
