"""The default policy against round-robin on real processes, with engines in real time.

One stretch of the trace for each seed, sent at the trace's own times to two gateways with four simulated engines each:
one has the default policy, the other round-robin. Both run at the same time, so that what else the machine does hits
both. One of them gets each request `BESIDE_MS` later, because requests come in bursts, and two bursts at once would
compete for the machine; which one changes from seed to seed. The first `--warm-up` seconds fill caches and teach the
policy, and no figure counts their requests. Times to the first token are the client's.

In brackets: virtual time, for the same requests with the same warm-up, the same limits of answers and without KV
events, which these engines don't publish. There the way to an engine and back takes no time. How long processes waited
for a processor tells how far a live figure can be trusted: on a machine with two free processors, about as long as
they ran; where they waited several times as long, the machine decided the figure. With `--speed 0.25`, engines and
arrivals are four times slower, and the machine's part in all times is four times smaller.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from pydantic import JsonValue

from benchmarks.machine import describe
from benchmarks.twin.live import MODEL, bodies, send
from pointsman_simulator.comparison import DEFAULT_POLICY, Setting, make_policy
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import SimulatedFleet
from pointsman_simulator.timing import Timing
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
BESIDE_MS: Final = 1500.0
"""Half the time between two bursts."""
ATTEMPTS: Final = 4
BAR: Final = 0.72
"""The default policy's mean time to the first token, relative to round-robin's."""


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one stretch."""

    ttft_ms: float
    """Mean of the requests after the warm-up."""
    reuse: float
    """Share of all prompt tokens that came from a cache, warm-up included."""
    failed: int
    problem: str
    late: Mapping[str, int]
    """Requests that were bound late, by the scheduler's reason, warm-up included."""
    waited_for_processor: float
    """Time that gateway and engines were ready to run and didn't, divided by the time they ran."""
    stood_still_s: float


@dataclass(frozen=True, slots=True)
class Length:
    """The length of a run, in seconds of the trace."""

    measured: float
    warm_up: float
    speed: float
    """Of the engines and of the arrivals; 1 is the trace's own."""


def stretch(trace: Sequence[TraceRequest], seed: int, length: Length) -> list[TraceRequest]:
    """The requests of the `seed`-th stretch, which begins with its warm-up. Arrivals count from 0 and are at least
    `APART_MS` apart."""
    begins = seed * length.measured * 1000.0
    ends = begins + (length.warm_up + length.measured) * 1000.0
    requests: list[TraceRequest] = []
    next_ms = 0.0
    for one in trace:
        if begins <= one.arrival_ms < ends:
            at = max(next_ms, (one.arrival_ms - begins) / length.speed)
            requests.append(replace(one, arrival_ms=at, max_tokens=one.output_tokens))
            next_ms = at + APART_MS
    return requests


async def measure(trace: Sequence[TraceRequest], seeds: int, length: Length) -> bool:
    """Print a line for each run, and the means. Whether all requests were answered and the bar is met."""
    runs: dict[str, list[Run]] = {policy: [] for policy in CONFIGURED}
    print(
        f"\n{ENGINES} engines in real time; {length.measured:g} s of the trace for each seed, after"
        f" {length.warm_up:g} s of warm-up, {length.speed:g} times as fast"
    )
    print(
        f"{'seed':<6}{'policy':<14}{'requests':>9}{'failed':>8}{'TTFT ms (virtual)':>18}{'reuse':>8}"
        f"{'waits':>7}   bound late"
    )
    with TemporaryDirectory(prefix="pointsman-routing-") as scratch:
        factory = StackFactory(Path(scratch), SAMPLE)
        for seed in range(seeds):
            requests = stretch(trace, seed, length)
            virtual = {policy: virtual_ttft(policy, requests, length) for policy in CONFIGURED}
            pair = await beside(factory, requests, length, behind=list(CONFIGURED)[seed % 2])
            if any(each.stood_still_s for each in pair.values()):
                print(f"{seed:<6}left out: the machine stood still in each of {ATTEMPTS} attempts", flush=True)
                continue
            for policy, each in pair.items():
                runs[policy].append(each)
                late = ", ".join(f"{because}: {count}" for because, count in sorted(each.late.items()))
                print(
                    f"{seed:<6}{policy:<14}{len(requests):>9}{each.failed:>8}{each.ttft_ms:>10.1f}"
                    f" ({virtual[policy]:.1f}){each.reuse:>8.3f}{each.waited_for_processor:>7.1f}"
                    f"   {late} {each.problem}"
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


def measured(request: TraceRequest, length: Length) -> bool:
    """Whether it comes after the warm-up."""
    return request.arrival_ms >= length.warm_up * 1000.0 / length.speed


def virtual_ttft(policy: str, requests: Sequence[TraceRequest], length: Length) -> float:
    """The mean time to the first token in virtual time after the warm-up, ms."""
    engine = EngineConfig(timing=Timing(speedup=length.speed))
    setting = Setting(ENGINES, engine, kv_events=False)
    outcomes = SimulatedFleet(setting.list_engines, setting.lags).replay_trace(
        requests, make_policy(policy, setting, 0)
    )
    return fmean(
        sequence.first_token_at - request.arrival_ms
        for sequence, request in zip(outcomes.requests, requests, strict=True)
        if measured(request, length)
    )


async def beside(
    factory: StackFactory, requests: Sequence[TraceRequest], length: Length, behind: str
) -> dict[str, Run]:
    """All policies at the same time, each on a gateway of its own; `behind` gets each request a little later. Repeated
    when the machine stood still, `ATTEMPTS` times at most."""
    for _ in range(ATTEMPTS - 1):
        pair = await _beside(factory, requests, length, behind)
        still = max(each.stood_still_s for each in pair.values())
        if not still:
            return pair
        print(f"repeated: the machine stood still for {still:.1f} s", flush=True)
    return await _beside(factory, requests, length, behind)


async def _beside(
    factory: StackFactory, requests: Sequence[TraceRequest], length: Length, behind: str
) -> dict[str, Run]:
    made = bodies(requests)
    async with AsyncExitStack() as open_stacks:
        stacks = {
            policy: await open_stacks.enter_async_context(_start(factory, policy, length.speed))
            for policy in CONFIGURED
        }
        runs = [
            _run(stack, requests, made, length, BESIDE_MS / length.speed if policy == behind else 0.0)
            for policy, stack in stacks.items()
        ]
        return dict(zip(stacks, await asyncio.gather(*runs), strict=True))


def _start(factory: StackFactory, policy: str, speed: float) -> AbstractAsyncContextManager[Stack]:
    changes: dict[str, JsonValue] = {
        "pools": {POOL: {"models": [MODEL, "sql-lora"], "loras": ["sql-lora"]}},
        "scheduling": {"default": dict(CONFIGURED[policy])},
    }
    return factory.start(changes=changes, engines=ENGINES, speedup=speed, bundled=True, hop_budget=None)


async def _run(
    stack: Stack, requests: Sequence[TraceRequest], made: Sequence[bytes], length: Length, later_ms: float
) -> Run:
    began = _processor_times(stack)
    sent = await send(stack, [replace(one, arrival_ms=one.arrival_ms + later_ms) for one in requests], made)
    ran, waited = (now - before for now, before in zip(_processor_times(stack), began, strict=True))
    asked = sum([await engine.metric("vllm:prefix_cache_queries_total") for engine in stack.engines])
    held = sum([await engine.metric("vllm:prefix_cache_hits_total") for engine in stack.engines])
    first_ms = [took for number, took in sent.first_ms.items() if measured(requests[number], length)]
    return Run(
        fmean(first_ms) if first_ms else math.nan,
        held / asked if asked else 0.0,
        sent.failed,
        sent.problem,
        await _bound_late(stack),
        waited / ran if ran else 0.0,
        sent.stood_still_s,
    )


def _processor_times(stack: Stack) -> tuple[float, float]:
    """How long gateway and engines ran so far, and how long they were ready to run and didn't; in seconds."""
    ran = waited = 0
    processes = {*stack.services["scheduler"], *(engine.process for engine in stack.engines)}
    for process in processes:
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            figures = (thread / "schedstat").read_text(encoding="utf-8").split()
            ran, waited = ran + int(figures[0]), waited + int(figures[1])
    return ran / 1e9, waited / 1e9


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
