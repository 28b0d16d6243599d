"""The cost of a request in the preprocessor. Run: `python -m benchmarks.preprocess`.

Shortest of several rounds, one thread, no bus: parse and check; the facts (the prompt serialised as templates render
it, token estimate, block hashes); the whole stage (both, headers and journey); and its encoding. Then the longest stall
of an event loop while bodies of 4 MiB are preprocessed.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import orjson

from pointsman_apis.requests import parse
from pointsman_contracts.journey import Journey, StageReport
from pointsman_core.config import load
from pointsman_core.refusal import Refusal
from pointsman_plugins.preprocessing import Incoming
from pointsman_preprocessor.domain.pipeline import Pipeline, depart, describe, registry
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_preprocessor.plugins import BUILTIN
from pointsman_testing.builders import preprocess_request

PATH = "/v1/chat/completions"
BARS_US = {"parse 1 KB": 40.0, "parse 400 KB": 3000.0, "stage 1 KB": 100.0}
STALL_BAR_MS = 20.0
BODY_LIMIT = 4 * 2**20
CHATS = ((1_000, 3), (100_000, 50), (400_000, 200))
"""Bytes and messages of the conversations."""

HEADERS = {
    "host": "localhost:8000",
    "content-type": "application/json",
    "content-length": "1024",
    "user-agent": "OpenAI/Python 2.0",
    "accept": "application/json",
    "authorization": "Bearer secret",
    "x-request-id": "0a1b2c3d",
}


def chat(size: int, messages: int) -> bytes:
    """A conversation of about `size` bytes."""
    words = 'the quick brown fox jumps over a lazy dog and "runs" away '
    text = (words * (size // messages // len(words) + 1))[: size // messages]
    turns = [{"role": ("user", "assistant")[turn % 2], "content": text} for turn in range(messages)]
    return orjson.dumps({"model": "llama-8b", "messages": turns, "stream": True, "max_tokens": 64, "temperature": 0.2})


def shortest_us(work: Callable[[], object], seconds: float = 0.3) -> float:
    """Microseconds of one call: the best of many rounds."""
    rounds: list[float] = []
    repeats = 1
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(rounds) < 3:
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        took = time.perf_counter() - started
        rounds.append(took / repeats)
        if took < 0.002:
            repeats *= 2
    return min(rounds) * 1e6


def measure(name: str, work: Callable[[], object]) -> bool:
    """Print one figure; returns whether it meets its bar."""
    took = shortest_us(work)
    bar = BARS_US.get(name)
    kept = bar is None or took <= bar
    print(
        f"  {name:<18} {took:10.1f} us" + ("" if bar is None else f"   bar {bar:g} us   {'kept' if kept else 'MISSED'}")
    )
    return kept


def journey_of(pipeline: Pipeline, raw: memoryview) -> Journey:
    """The whole stage without the bus."""
    request = preprocess_request(path=PATH, headers=HEADERS)
    incoming = Incoming(request, parse(PATH, raw), read_headers(request.headers))
    pipeline.run(incoming)
    return depart(incoming, describe(incoming, (64,)), StageReport(stage="preprocessor", instance="host-1"))


def parts(pipeline: Pipeline, raw: memoryview) -> dict[str, Callable[[], object]]:
    """The measured steps for one conversation."""
    request = preprocess_request(path=PATH, headers=HEADERS)
    incoming = Incoming(request, parse(PATH, raw), read_headers(request.headers))
    return {
        "parse": lambda: parse(PATH, raw),
        "facts": lambda: describe(incoming, (64,)),
        "stage": lambda: journey_of(pipeline, raw),
        "encode": journey_of(pipeline, raw).encode,
    }


def dense(item: bytes, count: int) -> bytes:
    """A text completion whose prompt is `count` times `item`."""
    return b'{"model":"llama-8b","prompt":[' + b",".join([item] * count) + b"]}"


async def longest_stall_ms(work: Callable[[], object], times: int) -> float:
    """The worst delay of a 1 ms timer while a thread does the work; the median of several times."""
    loop = asyncio.get_running_loop()
    worst: list[float] = []
    with ThreadPoolExecutor(max_workers=1) as thread:
        for _ in range(times):
            late = 0.0
            busy = loop.run_in_executor(thread, work)
            while not busy.done():
                before = loop.time()
                await asyncio.sleep(0.001)
                late = max(late, loop.time() - before - 0.001)
            await busy
            worst.append(late)
    return statistics.median(worst) * 1000


def main() -> int:
    """Measure everything; 1 when a bar is missed."""
    pipeline = Pipeline(load({}), registry(BUILTIN))
    request = preprocess_request(path=PATH, headers=HEADERS)
    kept: list[bool] = []
    for size, messages in CHATS:
        label = f"{size // 1000} KB"
        print(f"{label}, {messages} messages")
        for part, call in parts(pipeline, memoryview(chat(size, messages))).items():
            kept.append(measure(f"{part} {label}", call))
    kept.append(measure("headers", lambda: read_headers(request.headers)))

    bodies = {
        "one text": chat(BODY_LIMIT - 200, 1),
        "2,000 messages": chat(BODY_LIMIT - 100_000, 2000),
        "250,000 token ids": dense(b"12345", 250_000),
        "700,000 token ids": dense(b"12345", 700_000),
        "1,400,000 arrays": dense(b"[]", 1_400_000),
        "60,000 arrays": dense(b"[1]", 60_000),
    }
    print("longest stall of the loop, bodies up to 4 MiB")
    for name, raw in bodies.items():
        path = PATH if raw.startswith(b'{"model":"llama-8b","messages"') else "/v1/completions"

        def work(raw: bytes = raw, path: str = path) -> None:
            try:
                body = parse(path, memoryview(raw))
            except Refusal:
                return
            describe(Incoming(request, body, read_headers(request.headers)), (64,))

        late = asyncio.run(longest_stall_ms(work, 7))
        kept.append(late <= STALL_BAR_MS)
        print(f"  {name:<18} {late:10.1f} ms   bar {STALL_BAR_MS:g} ms   {'kept' if kept[-1] else 'MISSED'}")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
