"""The default policy against round-robin on real processes, with engines in real time.

One stretch of the trace for each seed, sent twice at the trace's own times: to a gateway with the default policy, and
to one with round-robin. Four simulated engines, with empty caches at the start; the policy learns the engines within
the run. Which of the two goes first changes from seed to seed. Times to the first token are the client's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from pydantic import JsonValue

from benchmarks.machine import describe
from benchmarks.twin.live import MODEL, send
from pointsman_simulator.comparison import DEFAULT_POLICY, Setting, compare
from pointsman_simulator.trace import TraceRequest
from pointsman_testing.stack import POOL, Stack, StackFactory

SAMPLE: Final = Path(__file__).resolve().parents[2] / "pointsman.yaml"
ENGINES: Final = 4
ROUND_ROBIN: Final = "round-robin"
CONFIGURED: Final[Mapping[str, Mapping[str, JsonValue]]] = {
    DEFAULT_POLICY: {},
    ROUND_ROBIN: {"filters": ["healthy"], "scorers": [], "picker": ROUND_ROBIN},
}
APART_MS: Final = 10.0
"""The trace's times are multiples of 3 s. Of requests that are sent in one moment, small bodies arrive first, which is
shortest first for any policy."""
ATTEMPTS: Final = 4
BAR: Final = 0.72
"""The default policy's mean time to the first token, relative to round-robin's."""


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one stretch."""

    ttft_ms: float
    """Mean."""
    reuse: float
    """Share of all prompt tokens that came from a cache."""
    failed: int
    problem: str
    late: Mapping[str, int]
    """Requests that were bound late, by the scheduler's reason."""
    stood_still_s: float


def stretch(trace: Sequence[TraceRequest], seed: int, seconds: float) -> list[TraceRequest]:
    """The requests of the `seed`-th stretch; arrivals count from 0 and are at least `APART_MS` apart."""
    begins = seed * seconds * 1000.0
    requests: list[TraceRequest] = []
    next_ms = 0.0
    for one in trace:
        if begins <= one.arrival_ms < begins + seconds * 1000.0:
            at = max(next_ms, one.arrival_ms - begins)
            requests.append(replace(one, arrival_ms=at))
            next_ms = at + APART_MS
    return requests


async def measure(trace: Sequence[TraceRequest], seconds: float, seeds: int) -> bool:
    """Print one line a run, and the means. Whether all requests were answered and the bar is met."""
    runs: dict[str, list[Run]] = {policy: [] for policy in CONFIGURED}
    print(f"\n{ENGINES} engines in real time, {seconds:g} s of the trace for each seed")
    print(f"{'seed':<6}{'policy':<14}{'requests':>9}{'failed':>8}{'TTFT ms (virtual)':>18}{'reuse':>8}   bound late")
    with TemporaryDirectory(prefix="pointsman-routing-") as scratch:
        factory = StackFactory(Path(scratch), SAMPLE)
        for seed in range(seeds):
            requests = stretch(trace, seed, seconds)
            virtual = virtual_ttft(requests)
            order = list(CONFIGURED) if seed % 2 == 0 else list(reversed(CONFIGURED))
            pair = {policy: await run(factory, policy, requests) for policy in order}
            if any(each.stood_still_s for each in pair.values()):
                print(f"{seed:<6}left out: the machine stood still in each of {ATTEMPTS} attempts", flush=True)
                continue
            for policy, each in pair.items():
                runs[policy].append(each)
                late = ", ".join(f"{because}: {count}" for because, count in sorted(each.late.items()))
                print(
                    f"{seed:<6}{policy:<14}{len(requests):>9}{each.failed:>8}{each.ttft_ms:>10.1f}"
                    f" ({virtual[policy]:.1f}){each.reuse:>8.3f}   {late} {each.problem}"
                )
            ratio, expected = (of[DEFAULT_POLICY] / of[ROUND_ROBIN] for of in (_ttft(pair), virtual))
            print(f"{seed:<6}ratio {ratio:.3f} ({expected:.3f}); {describe()}", flush=True)
    return conclude(runs)


def conclude(runs: Mapping[str, Sequence[Run]]) -> bool:
    """Print the means over the seeds. Whether all requests were answered and the bar is met."""
    if not runs[DEFAULT_POLICY]:
        print("bar: no run on a machine that kept running: MISSED")
        return False
    means = {policy: fmean(each.ttft_ms for each in of) for policy, of in runs.items()}
    for policy, of in runs.items():
        print(f"mean  {policy:<14} TTFT {means[policy]:.1f} ms, reuse {fmean(each.reuse for each in of):.3f}")
    ratio = means[DEFAULT_POLICY] / means[ROUND_ROBIN]
    print(f"bar: TTFT {ratio:.3f} of round-robin's, at most {BAR:g}: {'kept' if ratio <= BAR else 'MISSED'}")
    return ratio <= BAR and not any(each.failed for of in runs.values() for each in of)


def virtual_ttft(requests: Sequence[TraceRequest]) -> dict[str, float]:
    """The mean time to the first token of each policy in virtual time, ms."""
    results = compare(requests, tuple(CONFIGURED), Setting(ENGINES), 1, 1, lambda _: None)
    return {each.policy: each.mean("ttft_mean") for each in results}


async def run(factory: StackFactory, policy: str, requests: Sequence[TraceRequest]) -> Run:
    """One policy on a gateway of its own. Repeated when the machine stood still, `ATTEMPTS` times at most."""
    for _ in range(ATTEMPTS - 1):
        done = await _run(factory, policy, requests)
        if not done.stood_still_s:
            return done
        print(f"repeated: the machine stood still for {done.stood_still_s:.1f} s", flush=True)
    return await _run(factory, policy, requests)


async def _run(factory: StackFactory, policy: str, requests: Sequence[TraceRequest]) -> Run:
    changes: dict[str, JsonValue] = {
        "pools": {POOL: {"models": [MODEL, "sql-lora"], "loras": ["sql-lora"]}},
        "scheduling": {"default": dict(CONFIGURED[policy])},
    }
    async with factory.start(changes=changes, engines=ENGINES, speedup=1.0, bundled=True, hop_budget=None) as stack:
        sent = await send(stack, requests)
        asked = sum([await engine.metric("vllm:prefix_cache_queries_total") for engine in stack.engines])
        held = sum([await engine.metric("vllm:prefix_cache_hits_total") for engine in stack.engines])
        late = await _bound_late(stack)
    return Run(
        fmean(sent.first_ms) if sent.first_ms else 0.0,
        held / asked if asked else 0.0,
        sent.failed,
        sent.problem,
        late,
        sent.stood_still_s,
    )


async def _bound_late(stack: Stack) -> dict[str, int]:
    url = stack.services["scheduler"][0].http_url
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        text = await answer.text()
    return {
        sample.labels["because"]: int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "pointsman_scheduler_bound_total"
    }


def _ttft(pair: Mapping[str, Run]) -> dict[str, float]:
    return {policy: each.ttft_ms for policy, each in pair.items()}
