"""The cost of reading an engine's load: parsing `/metrics`, and a whole reading over HTTP.

python -m benchmarks.engine_metrics

The engine is a `prometheus_client` server in a process of its own with vLLM's families and buckets.
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable

import aiohttp
from benchmarks.engine_metrics.vllm_like import serve, vllm_registry
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pointsman_engines.client import EngineClient
from pointsman_engines.dialect import DIALECTS
from pointsman_engines.exposition import Exposition
from pointsman_engines.reading import read


def per_call(action: Callable[[], object], seconds: float) -> float:
    """Microseconds of one call."""
    calls, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        action()
        calls += 1
    return (time.perf_counter() - started) / calls * 1e6


def compare_parsing(seconds: float) -> None:
    text = generate_latest(vllm_registry())
    dialect = DIALECTS[0][1]
    wanted = tuple(name + b"{" for name in dialect.moving_families)
    some = b"".join(line for line in text.splitlines(keepends=True) if line.startswith(wanted))
    whole = per_call(lambda: list(text_string_to_metric_families(text.decode())), seconds)
    ours = per_call(lambda: read(dialect, Exposition(text)), seconds)
    ours_of_some = per_call(lambda: read(dialect, Exposition(some)), seconds)
    print(f"one answer of {len(text) / 1000:.0f} KB, {len(text.splitlines())} lines, read to the reported figures")
    print(f"  prometheus_client.parser    {whole:10.0f} µs")
    print(f"  pointsman_engines           {ours:10.0f} µs   {whole / ours:6.0f} times less")
    print(f"  when asked for by name      {ours_of_some:10.0f} µs   {whole / ours_of_some:6.0f} times less")


async def read_for(url: str, names: tuple[bytes, ...], readings: int) -> float:
    """CPU microseconds of this process for one reading."""
    dialect = DIALECTS[0][1]
    async with aiohttp.ClientSession() as session:
        client = EngineClient(url, session=session)
        for _ in range(20):
            await client.metrics(names, timeout=5.0)
        started = time.process_time()
        for _ in range(readings):
            read(dialect, Exposition(await client.metrics(names, timeout=5.0)))
        return (time.process_time() - started) / readings * 1e6


def compare_readings(readings: int) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    engine = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    engine.start()
    url = f"http://127.0.0.1:{ours.recv()}"

    def engine_cpu() -> float:
        ours.send(True)
        return float(ours.recv())

    print("one reading over HTTP, CPU; at 20 readings a second")
    for label, names in (("everything", ()), ("by name", DIALECTS[0][1].moving_families)):
        before = engine_cpu()
        agent = asyncio.run(read_for(url, names, readings))
        spent = (engine_cpu() - before) / (readings + 20) * 1e6
        print(
            f"  {label:12} reader {agent:6.0f} µs = {agent * 20 / 1e4:.2f} % of a core,"
            f"  engine {spent:6.0f} µs = {spent * 20 / 1e4:.2f} % of a core"
        )
    ours.send(False)
    engine.join(5)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=1.0, help="for each parser")
    options.add_argument("--readings", type=int, default=400)
    chosen = options.parse_args()
    compare_parsing(chosen.seconds)
    compare_readings(chosen.readings)


if __name__ == "__main__":
    main()
