"""Promises kept at 1.4 times capacity, in virtual time: the default policy with service levels, and rules of peers.

`python -m benchmarks.goodput [--seeds 2] [--requests 1500] [--overload 1.4] [--levels usual]`: 4 engines and the first
requests of the conversation trace. Half of them are interactive, three in ten of agents, two in ten bulk, at random by
the seed; their levels are those of `LEVELS`: `usual`, `strict` with shorter times, or `tokens`, where interactive
requests alone are promised a time between tokens, a short one. The capacity is the rate at which
the engines end answers when all requests come at once, in the order of the trace. For each rule it prints
the share of the requests whose answer kept its level (goodput), that of each class, the refused share, and the seconds.

- `today`: the default policy and its flow control, without levels.
- `headroom`: the rule of llm-d's latency predictor. Engines that are predicted to be in time, the one with the least
  time to spare first; the queue in the order of due times, and requests whose time is over leave it. Its time between
  tokens is held to the shortest that is promised at the engine, that of the request or of one that runs there.
- `edf`: such a queue, and the default policy's placement. `edf-gie`: with the scorers of the Gateway API Inference
  Extension (queue 2, KV cache 2, prefix 3).
- `serve`, `refuse`: the default policy with `late: serve` and `late: refuse`.

Exit status 1 when `refuse` keeps less than 1.3 times what `today` does, or less than 1.15 times the best peer, or when
a class has less than 0.9 of its share: that of its weight, or of the requests if that is smaller.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.machine import describe
from pointsman_contracts.service_level import REFUSE, SERVE, ServicePromise
from pointsman_core.config import SchedulingPolicy
from pointsman_simulator.comparison import Setting
from pointsman_simulator.fleet import Outcomes, SimulatedFleet
from pointsman_simulator.gated import GatedPolicy
from pointsman_simulator.policy import REFUSED
from pointsman_simulator.trace import TraceRequest, read_mooncake, scale_arrivals

TRACE: Final = Path(__file__).parents[2] / "tools" / "simulator" / "traces" / "mooncake_conversation.jsonl.xz"
OVER_TODAY: Final = 1.3
OVER_PEERS: Final = 1.15
LEAST_SHARE: Final = 0.9
MIX: Final = {"interactive": 0.5, "agents": 0.3, "bulk": 0.2}
LEVELS: Final = {
    "usual": {"interactive": (2000.0, 100.0), "agents": (5000.0, 150.0), "bulk": (30_000.0, None)},
    "strict": {"interactive": (800.0, 40.0), "agents": (4000.0, 80.0), "bulk": (15_000.0, 200.0)},
    "tokens": {"interactive": (2000.0, 50.0), "agents": (5000.0, None), "bulk": (30_000.0, None)},
}
"""Milliseconds to the first token and between tokens. 0.1 s between tokens and 30 s to the first are the objectives
that the trace's own authors evaluate with (Qin et al., "Mooncake", FAST 2025)."""
BY_DUE: Final = {"flow_control": {"ttl": "60s", "default_band": {"ordering": {"use": "slo-deadline"}}}}
AT_ONCE: Final = {"late_binding": {"enabled": False}, "cache_room": {"enabled": False}}
_SETTING: Final = Setting(4)


class Result(NamedTuple):
    """Shares of requests."""

    kept: float
    by_class: Mapping[str, float]
    refused: float
    took_s: float


def make_rule(
    settings: Mapping[str, object], late: str | None, *, expires: bool = False
) -> Callable[[int], GatedPolicy]:
    """The maker of a rule, by seed."""
    compiled = SchedulingPolicy.model_validate(settings)
    return lambda seed: GatedPolicy(_SETTING.workers, compiled, _SETTING.engine, seed, late=late, expires=expires)


RULES: Final = {
    "today": make_rule({}, None),
    "headroom": make_rule(
        {"filters": ["healthy", "subset", "slo-headroom"], "scorers": ["latency"], **BY_DUE, **AT_ONCE},
        SERVE,
        expires=True,
    ),
    "edf": make_rule({**BY_DUE, **AT_ONCE}, None, expires=True),
    "edf-gie": make_rule(
        {
            "scorers": [
                {"use": "queue", "weight": 2},
                {"use": "kv-utilization", "weight": 2},
                {"use": "prefix-cache", "weight": 3},
            ],
            **BY_DUE,
            **AT_ONCE,
        },
        None,
        expires=True,
    ),
    "serve": make_rule({}, SERVE),
    "refuse": make_rule({}, REFUSE),
}
PEERS: Final = ("headroom", "edf", "edf-gie")


def with_levels(
    trace: Sequence[TraceRequest], levels: Mapping[str, tuple[float, float | None]], seed: int
) -> list[TraceRequest]:
    """The trace, each request with a class at random."""
    names = list(MIX)
    picks = np.random.default_rng(seed).choice(len(names), size=len(trace), p=list(MIX.values()))
    promises = [ServicePromise(service_class=name, ttft_ms=levels[name][0], itl_ms=levels[name][1]) for name in names]
    return [replace(request, promise=promises[pick]) for request, pick in zip(trace, picks.tolist(), strict=True)]


def find_capacity(trace: Sequence[TraceRequest]) -> float:
    """Answers a second, between the first and the last fifth of them, when all requests come at once. They are bound at
    once, in their order: late binding takes the short ones first, so that its rate isn't that of the whole."""
    outcomes = SimulatedFleet(_SETTING.list_engines, _SETTING.lags).replay_trace(
        scale_arrivals(trace, 1e3), make_rule({"flow_control": {"enabled": False}, **AT_ONCE}, None)(0)
    )
    ends = np.sort([request.finished_at for request in outcomes.requests])
    first, last = int(0.2 * len(ends)), int(0.8 * len(ends))
    return 1000.0 * (last - first) / float(ends[last] - ends[first])


def judge(trace: Sequence[TraceRequest], outcomes: Outcomes, took_s: float) -> Result:
    """The answers that kept their levels."""
    kept = dict.fromkeys(MIX, 0)
    asked = dict.fromkeys(MIX, 0)
    for request, sequence, worker, arrived in zip(
        trace, outcomes.requests, outcomes.workers, outcomes.arrived, strict=True
    ):
        promise = request.promise
        if promise is None or promise.ttft_ms is None:
            continue
        asked[promise.service_class] += 1
        if worker == REFUSED or sequence.first_token_at - arrived > promise.ttft_ms:
            continue
        between_ms = sequence.finished_at - sequence.first_token_at
        if promise.itl_ms is None or between_ms <= promise.itl_ms * (sequence.output_tokens - 1):
            kept[promise.service_class] += 1
    return Result(
        sum(kept.values()) / len(trace),
        {name: kept[name] / max(1, asked[name]) for name in MIX},
        outcomes.workers.count(REFUSED) / len(trace),
        took_s,
    )


def run_rule(trace: Sequence[TraceRequest], policy: GatedPolicy) -> Result:
    """One run."""
    began = time.perf_counter()
    outcomes = SimulatedFleet(_SETTING.list_engines, _SETTING.lags).replay_trace(trace, policy)
    return judge(trace, outcomes, time.perf_counter() - began)


def find_starved(by_class: Mapping[str, float], kept: float) -> list[str]:
    """Classes that have less than their share of the kept promises. All weights are 1."""
    return [
        name for name, share in MIX.items() if by_class[name] * share < LEAST_SHARE * min(share, 1.0 / len(MIX)) * kept
    ]


def main() -> int:
    """Print a row for each rule."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.goodput", description=__doc__)
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--requests", type=int, default=1500)
    options.add_argument("--skip", type=int, default=0, help="requests of the trace to leave out at its beginning")
    options.add_argument("--overload", type=float, default=1.4, help="arrivals, as a multiple of the capacity")
    options.add_argument("--capacity", type=float, help="answers a second, where it was measured before")
    options.add_argument("--levels", choices=list(LEVELS), default="usual", help="times that are promised")
    options.add_argument("--rules", nargs="*", choices=list(RULES), default=list(RULES))
    asked = options.parse_args()
    print(describe())
    read = read_mooncake(TRACE, limit=asked.skip + asked.requests)[asked.skip :]
    begins = read[0].arrival_ms
    trace = [replace(request, arrival_ms=request.arrival_ms - begins) for request in read]
    capacity = asked.capacity or find_capacity(trace)
    rate = asked.overload * capacity * trace[-1].arrival_ms / 1000.0 / len(trace)
    print(f"capacity {capacity:.2f} answers/s; arrivals {asked.overload * capacity:.2f}/s, the trace's x {rate:.2f}")
    found: dict[str, float] = {}
    starved: list[str] = []
    for rule in asked.rules:
        runs = [
            run_rule(scale_arrivals(with_levels(trace, LEVELS[asked.levels], seed), rate), RULES[rule](seed))
            for seed in range(1, asked.seeds + 1)
        ]
        kept = found[rule] = float(np.mean([run.kept for run in runs]))
        by_class = {name: float(np.mean([run.by_class[name] for run in runs])) for name in MIX}
        if rule == "refuse":
            starved = find_starved(by_class, kept)
        shares = ", ".join(f"{name} {share:.2f}" for name, share in by_class.items())
        seeds = " ".join(f"{run.kept:.3f}" for run in runs)
        print(
            f"{rule:9} goodput {kept:.3f} ({seeds}); {shares}; refused {np.mean([run.refused for run in runs]):.2f}; "
            f"{sum(run.took_s for run in runs):.0f} s",
            flush=True,
        )
    best = max((found[peer] for peer in PEERS if peer in found), default=0.0)
    if not best or "today" not in found or "refuse" not in found:
        return 0
    over_today, over_peers = found["refuse"] / found["today"], found["refuse"] / best
    print(
        f"refuse: {over_today:.2f} of today (at least {OVER_TODAY}), {over_peers:.2f} of the best peer (at least "
        f"{OVER_PEERS}); starved classes: {', '.join(starved) or 'none'}"
    )
    return 0 if over_today >= OVER_TODAY and over_peers >= OVER_PEERS and not starved else 1


if __name__ == "__main__":
    sys.exit(main())
