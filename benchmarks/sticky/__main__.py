"""The cost of a decision for a session that stays with its engine. Run: `python -m benchmarks.sticky`.

CPU time of one thread, the lowest decile of some thousand decisions (the machine does other work), of both kinds in
turn: `sticky` for a session with a live binding, `scored` for the same request without a session, by the same policy
with all its filters and scorers. `choice` is the way from the request to the engine; `decide` has the lookup of its
prefix and the reservation as well. The bar is for the choice, on a prompt of 32 blocks.
"""

import sys
import time
from typing import Final

import numpy as np

from benchmarks.machine import describe
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.dice import Dice
from pointsman_plugins.scheduling.fleet import MATCHED
from pointsman_plugins.scheduling.points import MATCHED_TOKENS
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run
from pointsman_scheduler.domain.selecting import select_endpoints
from pointsman_testing.scheduler_bench import Bench

BAR_US: Final = 15.0
SESSIONS: Final = 500
ROUNDS: Final = 4000


class Watch:
    """Collects CPU times."""

    def __init__(self) -> None:
        self.took: list[float] = []

    @property
    def us(self) -> float:
        return float(np.percentile(self.took, 10)) * 1e6


def choose(bench: Bench, request: ScheduleRequest, watch: Watch) -> None:
    """Time the choice alone, of a request whose prefix was looked up."""
    pool, policy = bench.pool, bench.policy
    everyone = Candidates(pool.fleet, bench.now, Dice(1))
    matched = pool.fleet.figures()[MATCHED]
    runs: list[Run] = []
    sticky = policy.sticky
    began = time.thread_time()
    if sticky is None or sticky.stay(request, everyone) is None:
        request.put(MATCHED_TOKENS, matched)
        for producer in policy.producers:
            producer.produce(request, everyone)
        select_endpoints(request, policy, everyone, everyone, runs)
    watch.took.append(time.thread_time() - began)


def decide(bench: Bench, request: ScheduleRequest, watch: Watch) -> None:
    """Time the whole decision, and let its answer begin and end."""
    began = time.thread_time()
    worker = bench.decide(request).endpoints[0].name
    watch.took.append(time.thread_time() - began)
    bench.pool.books.started(request.key, worker, 20.0, bench.now)
    bench.pool.books.completed(request.key, bench.now, ok=True, output_tokens=10)


def measure(workers: int) -> float:
    """Print a row; returns microseconds of a sticky choice."""
    bench = Bench({"sticky": {"for": "1h"}, "late_binding": {"enabled": False}})
    names = [f"worker-{number:04d}" for number in range(workers)]
    bench.join(*names, kv_blocks=16384)
    for number in range(SESSIONS):
        decide(bench, bench.prompt(number, blocks=32, session=f"s{number}"), Watch())
    watches = [Watch() for _ in range(4)]
    for number in range(ROUNDS):
        bench.now += 0.001
        if not number % 300:
            for name in names:
                bench.hear(name)
        family = number % SESSIONS
        for place, session in enumerate((f"s{family}", None)):
            choose(bench, bench.prompt(family, blocks=32, session=session), watches[2 * place])
            decide(bench, bench.prompt(family, blocks=32, session=session), watches[2 * place + 1])
    sticky, whole, scored, all_of_it = [watch.us for watch in watches]
    print(f"| {workers:,} | {sticky:.1f} | {scored:.1f} | {whole:.1f} | {all_of_it:.1f} |", flush=True)
    return sticky


def main() -> int:
    """Exit status 0 when the bar is met."""
    print(describe())
    print("| workers | choice sticky, us | choice scored, us | decide sticky, us | decide scored, us |")
    print("|---|---|---|---|---|")
    met = max(measure(workers) for workers in (8, 100, 1000)) <= BAR_US
    print(f"bar: {BAR_US:g} us for a sticky choice: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
