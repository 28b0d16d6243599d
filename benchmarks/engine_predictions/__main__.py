"""The accuracy of the learnt pass model on a real engine, and a comparison of routing policies with two engines.

python -m benchmarks.engine_predictions --engine http://127.0.0.1:8000 [--engine URL --tokenizer FOLDER]

First 1,100 streamed chats go to the first engine alone, with lengths of a real chat service's trace scaled down. The
pass model learns from them as a scheduler does, and predicts the time of each first token. Printed is the error of the
prediction, over the 100 requests after the first 50, 200 and 1,000. Then, with two engines, the same trace goes through
a gateway for each policy. A table without bars: timings of an engine on a busy machine decide nothing.
"""

import argparse
import asyncio
import copy
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
from benchmarks.machine import describe

from pointsman_delay.estimator import DelayEstimator
from pointsman_delay.sent import Sent
from pointsman_delay.shadow import EngineShadow
from pointsman_engines.client import EngineClient
from pointsman_engines.models import served_models
from pointsman_simulator.trace import read_mooncake
from pointsman_testing.engine_stack import gateway_before
from pointsman_testing.processes import Processes
from pointsman_testing.real_engine import RealEngine

TRACE: Final = Path(__file__).parents[2] / "tools" / "simulator" / "traces" / "mooncake_conversation.jsonl.xz"
REQUESTS: Final = 1100
AFTER: Final = (50, 200, 1000)
WINDOW: Final = 100
POLICY_REQUESTS: Final = 200
SHRINK: Final = 16
"""Lengths of the trace are divided by it: a prompt then has some hundred tokens."""
LONGEST: Final = 6000
BATCH_TOKENS: Final = 2048
FIRST_TOKEN_WEIGHT: Final = 3.0
SENTENCE: Final = "which track does the train take at the points "
CHAT: Final = "/v1/chat/completions"

POLICIES: Final[Mapping[str, Any]] = {
    "default": {},
    "queue": {"scheduling": {"default": {"filters": ["healthy"], "scorers": ["queue"]}}},
    "prefix-cache": {"scheduling": {"default": {"filters": ["healthy"], "scorers": ["prefix-cache"]}}},
    "random": {"scheduling": {"default": {"filters": ["healthy"], "scorers": [], "picker": "random"}}},
}


@dataclass(slots=True)
class Asked:
    """One request and what came of it. Times in seconds of one clock."""

    at: float
    body: dict[str, Any]
    sent: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    prompt: int = 0
    cached: int = 0
    completion: int = 0

    @property
    def ttft_ms(self) -> float:
        return (self.first - self.sent) * 1000


def workload(count: int, rate: float, model: str, seed: int = 1) -> list[Asked]:
    """Chats with the lengths and the shared beginnings of the trace; arrivals by chance, `rate` a second."""
    randomness = random.Random(seed)
    requests: list[Asked] = []
    at = 0.0
    for entry in read_mooncake(TRACE)[:count]:
        at += randomness.expovariate(rate)
        words = min(LONGEST, max(10, entry.prompt_tokens // SHRINK)) // 4
        # Blocks that the trace shares begin alike here.
        parts = [
            random.Random(int(block) % 2**32).choices(SENTENCE.split(), k=8) for block in entry.blocks[: words // 8]
        ]
        text = " ".join(" ".join(part) for part in parts) or SENTENCE
        body = {
            "model": model,
            "messages": [{"role": "user", "content": f"{text} {len(requests)}?"}],
            "max_tokens": max(4, min(64, entry.output_tokens // SHRINK)),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        requests.append(Asked(at, body))
    return requests


async def send(url: str, requests: Sequence[Asked]) -> None:
    """Each at its time; waits for all."""
    # Shorter than vLLM keeps a connection that nothing uses.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as http:
        began = time.monotonic()

        async def one(asked: Asked) -> None:
            await asyncio.sleep(max(0.0, began + asked.at - time.monotonic()))
            asked.sent = time.monotonic()
            async with http.post(url + CHAT, json=asked.body) as answer:
                if answer.status != 200:
                    raise SystemExit(f"HTTP {answer.status}: {await answer.text()}")
                async for line in answer.content:
                    if not line.startswith(b"data: {"):
                        continue
                    event = orjson.loads(line[6:])
                    if not asked.first and event["choices"] and event["choices"][0]["delta"].get("content"):
                        asked.first = time.monotonic()
                    usage = event.get("usage")
                    if usage:
                        asked.prompt, asked.completion = usage["prompt_tokens"], usage["completion_tokens"]
                        asked.cached = (usage["prompt_tokens_details"] or {"cached_tokens": 0})["cached_tokens"] or 0
            asked.ended = time.monotonic()
            asked.first = asked.first or asked.ended

        await asyncio.gather(*map(one, requests))


def predicted_ms(shadow: EngineShadow, now: float, prompt: int, cached: int) -> float:
    """When the shadow's engine would end the pass that finishes this prompt, in ms from now."""
    ahead = copy.deepcopy(shadow)
    request: Sent = ahead.send(now, prompt, cached, told=True)
    for _ in range(10_000):
        if request in ahead._finishing:  # pyright: ignore[reportPrivateUsage] - what it is about to do, and no more
            break
        ahead.advance(ahead.pass_end + 1e-6)
    return ahead.pass_end - now


def errors(requests: Sequence[Asked]) -> list[float]:
    """The error of each prediction in order of sending: |predicted - observed| over observed. The model learns on the
    way."""
    estimator = DelayEstimator(BATCH_TOKENS, FIRST_TOKEN_WEIGHT)
    estimator.lay_out([(0, 1e18)])
    happened = [
        *((asked.sent, 0, number) for number, asked in enumerate(requests)),
        *((asked.first, 1, number) for number, asked in enumerate(requests)),
        *((asked.ended, 2, number) for number, asked in enumerate(requests)),
    ]
    found: list[float] = []
    for at, what, number in sorted(happened):
        asked, now = requests[number], at * 1000
        if what == 0:
            shadow = estimator._shadow(0)  # pyright: ignore[reportPrivateUsage] - as above
            shadow.advance(now)
            wanted = predicted_ms(shadow, now, asked.prompt, asked.cached)
            found.append(abs(wanted - asked.ttft_ms) / asked.ttft_ms)
            estimator.sent(0, number, now, asked.prompt, asked.cached)
        elif what == 1:
            estimator.started(number, now)
        else:
            estimator.ended(number, now, asked.completion)
    return found


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """p50 and p90."""
    return statistics.median(values), statistics.quantiles(values, n=10)[-1]


async def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", required=True, metavar="URL", help="one or two engines")
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="that of their model")
    parser.add_argument("--policies-only", action="store_true", help="leave the predictions out")
    parser.add_argument("--rate", type=float, default=12.0, help="requests a second to one engine (%(default)s)")
    options = parser.parse_args()
    print(describe())
    first = options.engine[0].rstrip("/")
    async with aiohttp.ClientSession() as http:
        model = served_models(await EngineClient(first, session=http).models(timeout=30)).models[0]
    if not options.policies_only:
        await predictions(first, model, options.rate)
    if len(options.engine) > 1:
        await policies(options.engine, model, options.tokenizer, options.rate)


async def predictions(url: str, model: str, rate: float) -> None:
    """Print the errors of the pass model that learns from one engine."""
    requests = workload(REQUESTS, rate, model)
    await send(url, requests)
    found = errors(requests)
    ttft = quantiles([asked.ttft_ms for asked in requests])
    print(f"\n{len(requests)} requests at {rate:g}/s to one engine")
    print(f"TTFT p50 {ttft[0]:.0f} ms, p90 {ttft[1]:.0f} ms")
    print("\n| requests learnt from | error of the predicted TTFT, p50 | p90 |\n|---|---|---|")
    for after in AFTER:
        p50, p90 = quantiles(found[after : after + WINDOW])
        print(f"| {after} | {p50:.0%} | {p90:.0%} |")


async def policies(urls: Sequence[str], model: str, tokenizer: Path | None, rate: float) -> None:
    """Print what each policy comes to before these engines."""
    print("\n| policy | TTFT p50, ms | p90 | last token p50, ms | p90 | prompt tokens from a cache |")
    print("|---|---|---|---|---|---|")
    for name, changes in POLICIES.items():
        with tempfile.TemporaryDirectory() as folder:
            processes = Processes(Path(folder))
            engines = [
                RealEngine(f"engine-{number}", processes, Path(folder), url=url.rstrip("/"))
                for number, url in enumerate(urls, 1)
            ]
            await asyncio.gather(*(engine.post("/reset_prefix_cache") for engine in engines))
            try:
                async with gateway_before(engines, model, tokenizer, processes, Path(folder), changes) as stack:
                    asked = workload(POLICY_REQUESTS, rate * 1.5, model)
                    await send(stack.door, asked)
            finally:
                processes.end_all()
        one, last = quantiles([a.ttft_ms for a in asked]), quantiles([(a.ended - a.sent) * 1000 for a in asked])
        cached = sum(a.cached for a in asked) / sum(a.prompt for a in asked)
        print(f"| {name} | {one[0]:.0f} | {one[1]:.0f} | {last[0]:.0f} | {last[1]:.0f} | {cached:.0%} |")


if __name__ == "__main__":
    asyncio.run(main())
