"""When prefill on another engine pays: `always`, `never` and `pays` over two engines that compute prompts and two that
answer, in virtual time.

Half of the requests have prompts of 8,000 tokens, the others of 500; nothing is shared, and answers are long, so that
decoding is most of the work. A KV cache takes 5 ms and 131,072 bytes a token at 40 GB/s from one engine to another, one
prompt after the other from each engine; the policies don't know that, and learn it.
"""

import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Final, NamedTuple

import numpy as np

from pointsman_core.config import SchedulingPolicy
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import SimulatedFleet
from pointsman_simulator.scheduler_policy import SchedulerPolicy
from pointsman_simulator.trace import TraceRequest

ROLES: Final = ("prefill", "prefill", "decode", "decode")
RATES: Final = (1.0, 3.0, 6.0, 9.0)
"""Requests a second."""
LONG, SHORT = 8000, 500
LONG_PART: Final = 0.5
ANSWER: Final = 400
REQUESTS: Final = 1500
WARM: Final = 300
"""Requests from which the policies learn; their times don't count."""
CHOICES: Final = ("always", "never", "pays")
SLACK: Final = 1.05
"""A policy counts as good as the better one within 5 %: as much as seeds differ by."""
_NEVER: Final = "never"


class Figures(NamedTuple):
    """The figures of one run, in milliseconds."""

    ttft_mean: float
    ttft_p99: float
    itl_mean: float
    itl_p99: float
    """Over all gaps between two tokens of an answer."""
    apart: float
    """Share of the requests whose prompt another engine computed."""


def trace(rate: float, seed: int, block_size: int) -> list[TraceRequest]:
    """Poisson arrivals, `rate` a second."""
    chance = random.Random(seed)
    at, requests = 0.0, list[TraceRequest]()
    for number in range(REQUESTS):
        at += chance.expovariate(rate) * 1000.0
        prompt = LONG if chance.random() < LONG_PART else SHORT
        answer = max(1, min(4000, round(chance.lognormvariate(0.0, 0.7) * ANSWER)))
        first = (number + 1) << 24
        blocks = list(range(first, first + (prompt + answer) // block_size))
        requests.append(TraceRequest(at, prompt, answer, blocks))
    return requests


def policy(choice: str) -> SchedulingPolicy:
    """The policy with this decider; `never` asks for a header that no request has."""
    decider = {"use": "header", "header": _NEVER} if choice == _NEVER else {"use": choice}
    return SchedulingPolicy.model_validate(
        {
            "handler": {"use": "disaggregated", "prefill_when": decider["use"]},
            "deciders": [decider],
            "profiles": {
                name: {"filters": ["healthy", {"use": "role", "role": name}], "scorers": ["least-delay"]}
                for name in ("decode", "prefill")
            },
        }
    )


def run(choice: str, rate: float, seed: int) -> Figures:
    """Replay the trace with one choice."""
    engine = EngineConfig()
    fleet = SimulatedFleet([engine] * len(ROLES))
    fleet.count_gaps(after_ms=WARM / rate * 1000.0)
    router = SchedulerPolicy(len(ROLES), policy(choice), engine, seed, roles=ROLES)
    outcomes = fleet.replay_trace(trace(rate, seed, engine.block_size), router)
    requests = outcomes.requests[WARM:]
    waits = np.array([one.first_token_at for one in requests]) - np.array(outcomes.arrived[WARM:])
    gaps = fleet.gaps()
    return Figures(
        ttft_mean=float(waits.mean()),
        ttft_p99=float(np.quantile(waits, 0.99)),
        itl_mean=sum(tenths * count for tenths, count in gaps.items()) / gaps.total() / 10.0,
        itl_p99=_quantile(gaps, 0.99),
        apart=sum(one.carried for one in requests) / len(requests),
    )


def _quantile(gaps: Counter[int], part: float) -> float:
    """A quantile of gaps, which are in tenths of a millisecond."""
    left = part * gaps.total()
    for tenths in sorted(gaps):
        left -= gaps[tenths]
        if left <= 0:
            return tenths / 10.0
    return 0.0


def measure(seeds: int, processes: int) -> bool:
    """Print the table. Whether `pays` is as good as the better of the others everywhere, in the means over seeds."""
    print(f"2 engines for prompts, 2 for answers; {seeds} seeds, ms\n")
    print("| requests/s | prompt elsewhere | TTFT mean | TTFT p99 | ITL mean | ITL p99 | elsewhere |")
    print("|---|---|---|---|---|---|---|")
    kept = True
    with ProcessPoolExecutor(processes) as pool:
        started = {
            (rate, choice): [pool.submit(run, choice, rate, seed) for seed in range(seeds)]
            for rate in RATES
            for choice in CHOICES
        }
        for rate in RATES:
            means: dict[str, Figures] = {}
            for choice in CHOICES:
                runs = [each.result() for each in started[rate, choice]]
                means[choice] = mean = Figures(*np.mean(np.array(runs), axis=0).tolist())
                print(
                    f"| {rate:g} | {choice} | {mean.ttft_mean:.0f} | {mean.ttft_p99:.0f} | {mean.itl_mean:.1f} | "
                    f"{mean.itl_p99:.1f} | {mean.apart:.0%} |",
                    flush=True,
                )
            for figure in ("ttft_p99", "itl_p99"):
                best = min(getattr(means[choice], figure) for choice in CHOICES if choice != "pays")
                ours = getattr(means["pays"], figure)
                kept &= ours <= best * SLACK
                print(f"  {figure} {ours:.1f} of {best:.1f}: {'kept' if ours <= best * SLACK else 'MISSED'}")
    return kept
