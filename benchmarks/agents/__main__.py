"""Sessions of coding agents in a closed loop: the default policy against other routers' rules. Run:
`python -m benchmarks.agents`.

Generated traffic (`coding-agents`), another workload for each seed: 4 engines of 16,384 blocks of 64 tokens, with more
sessions than their caches hold. Beside the default policy stand llm-d's precise rule, Dynamo's, a hash of the
session, and the default policy without room in caches. Each bar is relative to the best of these four
in the mean over the seeds. Reuse is relative to one engine with all the memory and four times the speed. `oracle` and
`bound` show what is possible, and make no bar: the default policy that knows the future, and each request alone on an
idle engine that holds all earlier prompts. Cases:
`usual`; `lost` and `added`, an engine that is lost, or comes, at half of the time; `load`, half as many sessions again;
`schedulers`, three that share the requests, against one. Status 1 when a bar is missed.

`--trace FILE` takes a closed-loop trace instead; then seeds are those of ties.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np

from benchmarks.agents.oracle import OraclePolicy, bound_outcomes
from benchmarks.machine import describe
from pointsman_core.config import SchedulingPolicy
from pointsman_simulator.comparison import DEFAULT_POLICY, Setting, make_policy
from pointsman_simulator.disturbance import Disturbance
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import SimulatedFleet
from pointsman_simulator.policy import RoutingPolicy
from pointsman_simulator.summary import summarize
from pointsman_simulator.timing import Timing
from pointsman_simulator.trace import TraceRequest, read_mooncake, scale_arrivals
from pointsman_simulator.workloads import generate_workload

WITHOUT_ROOM: Final = "without room"
ONE_ENGINE: Final = "one engine"
ORACLE: Final = "oracle"
BOUND: Final = "bound"
OTHERS: Final = ("llm-d-precise", "dynamo", "session-hash", WITHOUT_ROOM)
CASES: Final = ("usual", "lost", "added", "load", "schedulers")
WORKERS: Final = 4
_NO_ROOM: Final = SchedulingPolicy.model_validate({"cache_room": {"enabled": False}})


class Workload(NamedTuple):
    trace: str
    """A file; empty for generated traffic."""
    requests: int
    rate: float


class Task(NamedTuple):
    case: str
    policy: str
    seed: int
    workload: Workload


class Figures(NamedTuple):
    """Times in ms."""

    ttft_mean: float
    ttft_p95: float
    session_p95: float
    reuse: float


class Bar(NamedTuple):
    title: str
    figure: str
    bar: float
    """Ours over the best of the others, at most."""


_BARS: Final = (
    Bar("TTFT mean", "ttft_mean", 0.85),
    Bar("TTFT p95", "ttft_p95", 0.85),
    Bar("session p95", "session_p95", 0.92),
)
_REUSE: Final = 0.97
"""Bar for the reuse, as a share of one engine's."""
_REPLICAS: Final = 1.03


@cache
def _requests(workload: Workload, seed: int, load: float) -> list[TraceRequest]:
    if workload.trace:
        return scale_arrivals(read_mooncake(Path(workload.trace), closed_loop=True, limit=workload.requests), load)
    return generate_workload("coding-agents", workload.requests, workload.rate * load, seed)


def _setting(task: Task, half_ms: float) -> Setting:
    engine = EngineConfig()
    if task.policy == ONE_ENGINE:
        whole = replace(
            engine,
            num_blocks=WORKERS * engine.num_blocks,
            max_num_seqs=WORKERS * engine.max_num_seqs,
            timing=Timing(speedup=float(WORKERS)),
        )
        return Setting(1, engine=whole)
    changes: tuple[Disturbance, ...] = ()
    if task.case == "lost":
        changes = (Disturbance(half_ms, 0, "lost"),)
    if task.case == "added":
        changes = (Disturbance(half_ms, WORKERS, "joins"),)
    return Setting(
        workers=WORKERS + (task.case == "added"),
        disturbances=changes,
        scheduling={WITHOUT_ROOM: _NO_ROOM},
        schedulers=3 if task.case == "schedulers" else 1,
    )


def _policy(task: Task, setting: Setting, trace: Sequence[TraceRequest]) -> RoutingPolicy:
    if task.policy == ORACLE:
        return OraclePolicy(trace, setting, task.seed)
    return make_policy("round-robin" if task.policy == ONE_ENGINE else task.policy, setting, task.seed)


def run(task: Task) -> Figures:
    """One policy on one workload."""
    trace = _requests(task.workload, task.seed, 1.5 if task.case == "load" else 1.0)
    setting = _setting(task, max(request.arrival_ms for request in trace) / 2.0)
    if task.policy == BOUND:
        outcomes = bound_outcomes(trace, setting.engine)
    else:
        fleet = SimulatedFleet(setting.list_engines, setting.lags, setting.disturbances)
        outcomes = fleet.replay_trace(trace, _policy(task, setting, trace))
    summary = summarize(outcomes, setting.workers, engine=setting.engine, trace=trace, possible=1.0)
    waits = [each.first_token_at - at for each, at in zip(outcomes.requests, outcomes.arrived, strict=True)]
    return Figures(summary.ttft_mean, float(np.quantile(waits, 0.95)), summary.session_p95, summary.reuse)


def measure(case: str, workload: Workload, seeds: Sequence[int], pool: ProcessPoolExecutor) -> bool:
    """Print the table of a case. Whether every bar is met."""
    possible = (ORACLE, BOUND) if case == "usual" else ()
    policies = (DEFAULT_POLICY, *(() if case == "schedulers" else (*OTHERS, ONE_ENGINE, *possible)))
    started = {policy: [pool.submit(run, Task(case, policy, seed, workload)) for seed in seeds] for policy in policies}
    if case == "schedulers":
        started["one scheduler"] = [pool.submit(run, Task("usual", DEFAULT_POLICY, seed, workload)) for seed in seeds]
    print(f"\n{case}: times in seconds\n{'':16}{'TTFT mean':>10}{'p95':>8}{'session p95':>13}{'reuse':>8}   TTFT means")
    means: dict[str, Figures] = {}
    for policy, runs in started.items():
        found = [each.result() for each in runs]
        mean = means[policy] = Figures(*(fmean(column) for column in zip(*found, strict=True)))
        each = " ".join(f"{one.ttft_mean / 1000:.2f}" for one in found)
        print(
            f"{policy:<16}{mean.ttft_mean / 1000:10.3f}{mean.ttft_p95 / 1000:8.2f}{mean.session_p95 / 1000:13.0f}"
            f"{mean.reuse:8.3f}   {each}",
            flush=True,
        )
    if possible:
        print(
            "oracle: this policy, told when each session comes back, and the length of each answer below the mean\n"
            "bound: each request alone on an idle engine that holds all earlier prompts"
        )
    ours = means[DEFAULT_POLICY]
    kept = True
    for bar in _BARS:
        if case == "schedulers":
            best, most = getattr(means["one scheduler"], bar.figure), _REPLICAS
        else:
            best = min(getattr(means[other], bar.figure) for other in OTHERS)
            most = bar.bar if case == "usual" else 1.0
        ratio = getattr(ours, bar.figure) / best
        kept &= ratio <= most
        print(f"bar: {bar.title} {ratio:.3f} of {most:g}: {'kept' if ratio <= most else 'MISSED'}")
    if case == "usual":
        share = ours.reuse / means[ONE_ENGINE].reuse
        kept &= share >= _REUSE
        print(f"bar: reuse {share:.3f}, at least {_REUSE:g}: {'kept' if share >= _REUSE else 'MISSED'}")
    return kept


def main() -> int:
    """Exit status 0 when every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agents", description=__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="repeatable; default: all")
    parser.add_argument("--trace", default="", help="a closed-loop trace in Mooncake's form")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rate", type=float, default=3.6, help="generated requests a second")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    print(describe())
    workload = Workload(options.trace, options.requests, options.rate)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with ProcessPoolExecutor(options.processes) as pool:
        kept = [measure(case, workload, seeds, pool) for case in options.case or CASES]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
