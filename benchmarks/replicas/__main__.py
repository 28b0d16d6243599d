"""The cost of scheduler replicas: requests that fail when one dies, and prompts that are computed twice.

`python -m benchmarks.replicas [--rate 200] [--seconds 20]` sends the same prompts, of families that share a beginning,
to two gateways of real processes with simulated engines: one with one scheduler, one with three of which one is killed
halfway. It prints the requests that failed without being open when it was killed, and the share of prompt tokens that
the engines found in their caches.
"""

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import uvloop
from pydantic import JsonValue

from benchmarks.machine import describe
from pointsman_testing.stack import Stack, StackFactory
from pointsman_testing.traffic import Ended, Traffic

SAMPLE: Final = Path(__file__).resolve().parents[2] / "pointsman.yaml"
ENGINES: Final = 4
SPEEDUP: Final = 10.0
"""Slow enough for a prompt that is computed again to cost more than a turn of the event loop."""
FAMILIES: Final = 400
"""Enough that a second copy of each prompt shows."""
WORDS: Final = 700
"""Words of the beginning that a family shares; about 20 blocks."""
BAR: Final = 0.02


class Figures(NamedTuple):
    """The figures of one gateway."""

    statuses: Counter[int]
    failed: list[Ended]
    elsewhere: int
    """Requests that failed and weren't open when the scheduler was killed."""
    reuse: float
    engines: Counter[str | None]


def prompts(seed: int) -> Callable[[], Mapping[str, JsonValue]]:
    """Makes bodies; equal seeds make the same ones in the same order."""
    dice = random.Random(seed)
    beginnings = [" ".join(str(dice.randrange(10**5)) for _ in range(WORDS)) for _ in range(FAMILIES)]
    weights = [1.0 / (rank + 1) ** 0.5 for rank in range(FAMILIES)]

    def body() -> Mapping[str, JsonValue]:
        (beginning,) = dice.choices(beginnings, weights)
        question = " ".join(str(dice.randrange(10**5)) for _ in range(20))
        return {"model": "llama-3.1-8b", "prompt": f"{beginning} {question}", "max_tokens": 8}

    return body


async def measure(factory: StackFactory, schedulers: int, rate: float, seconds: float) -> Figures:
    """A gateway with this number of schedulers; of several, one is killed halfway."""
    replicas = {"scheduler": schedulers}
    async with factory.start(replicas=replicas, engines=ENGINES, speedup=SPEEDUP, hop_budget=None) as stack:
        before = await cached(stack)
        async with Traffic(f"{stack.door}/v1/completions", rate, prompts(1)) as running:
            await asyncio.sleep(seconds / 2)
            killed = running.now
            if schedulers > 1:
                stack.services["scheduler"][0].kill()
            await asyncio.sleep(seconds / 2)
        after = await cached(stack)
    failed = running.failed()
    return Figures(
        running.statuses(),
        failed,
        sum(not end.started <= killed <= end.started + end.took for end in failed),
        (after[0] - before[0]) / (after[1] - before[1]),
        Counter(end.engine for end in running.ended),
    )


async def cached(stack: Stack) -> tuple[float, float]:
    """Prompt tokens that the engines found in their caches, and all that they looked for."""
    hits = [await engine.metric("vllm:prefix_cache_hits_total") for engine in stack.engines]
    queries = [await engine.metric("vllm:prefix_cache_queries_total") for engine in stack.engines]
    return sum(hits), sum(queries)


async def run(rate: float, seconds: float) -> bool:
    """The whole benchmark; whether both bars were met."""
    print(f"machine: {describe()}\n{rate:g} requests/s for {seconds:g} s, open loop, {ENGINES} engines\n")
    figures: dict[int, Figures] = {}
    with TemporaryDirectory(prefix="pointsman-replicas-") as folder:
        factory = StackFactory(Path(folder), SAMPLE)
        for schedulers in (1, 3):
            figures[schedulers] = found = await measure(factory, schedulers, rate, seconds)
            share = ", ".join(f"{name} {count}" for name, count in sorted(found.engines.items(), key=str))
            print(f"{schedulers} scheduler(s): reuse {found.reuse:.4f}; statuses {dict(found.statuses)}; {share}")
            for end in found.failed[:5]:
                print(f"    {end.status} after {end.took:.2f} s, sent at {end.started:.2f} s: {end.problem[:120]}")
    lost = 1.0 - figures[3].reuse / figures[1].reuse
    elsewhere = figures[3].elsewhere
    print(f"{verdict(elsewhere == 0)}  failed, and weren't open when one of three was killed: {elsewhere} (bar: 0)")
    print(f"{verdict(lost <= BAR)}  reuse lost with three schedulers: {lost:.2%} (bar: ≤ {BAR:.0%})")
    return elsewhere == 0 and lost <= BAR


def verdict(met: bool) -> str:
    return "met    " if met else "NOT met"


def main() -> int:
    """Exit status 0 when both bars are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas", description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of traffic for each gateway")
    options = parser.parse_args()
    return 0 if uvloop.run(run(options.rate, options.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
