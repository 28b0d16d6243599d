"""The cost of a cached answer for its client, through the whole journey.

`python -m benchmarks.cache [--seconds 5]`: starts the gateway as `pointsman up` does, with a semantic-cache whose
questions are embedded by a real model (all-MiniLM-L6-v2 on onnxruntime, one thread). It has one question answered, and
asks it again over one connection: once with the same words, once with others of the same meaning. Prints latencies, and
the CPU time of each process per request.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urljoin

import uvloop
import yaml

from benchmarks.machine import describe
from benchmarks.overhead.cpu import Meter
from benchmarks.overhead.load import Samples, closed_loop, prepare
from benchmarks.overhead.stack import MODEL, Running, gateway
from pointsman_testing.minilm import minilm

EXACT_BAR_MS = 5.0
SEMANTIC_BAR_MS = 15.0
"""p50 at one connection, both."""
PATH = "/v1/chat/completions"
ASKED = "Please tell me how I can enable two-factor authentication for my GitHub account."
MEANT = "How do I turn on two-factor authentication for my GitHub account?"


def configuration(model: Path) -> str:
    """One profile with a cache, before engines that a command names."""
    profile = {"request": ["semantic-cache", "scheduler"], "response": ["semantic-cache"]}
    document = {
        "pools": {"pool": {"models": [MODEL]}},
        "profiles": {"standard": profile},
        "caches": {"default": {"cut_short": True, "embeddings": {"use": "onnx", "directory": str(model)}}},
    }
    return yaml.safe_dump(document)


def body(text: str) -> bytes:
    """A chat request."""
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}]}).encode()


async def told(door: str, text: str) -> str:
    """The cache's verdict on one request."""
    host, _, port = door.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port.rstrip("/")))
    writer.write(prepare(urljoin(door, PATH), body(text)))
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    writer.close()
    return next(
        (line.partition(": ")[2] for line in head.split("\r\n") if line.startswith("x-pointsman-cache")), "none"
    )


async def until(door: str, text: str, expected: str) -> None:
    """Ask until the cache gives the expected verdict: it stores the first answer a moment after the client has it."""
    deadline = time.monotonic() + 20
    while (said := await told(door, text)) != expected:
        if time.monotonic() > deadline:
            raise SystemExit(f"the cache says {said}, not {expected}")


async def measured(running: Running, text: str, seconds: float) -> tuple[Samples, dict[str, float]]:
    """Latencies, and CPU milliseconds of each process per request."""
    meter = Meter(running.pids)
    samples = await closed_loop(urljoin(running.door, PATH), body(text), 1, seconds)
    return samples, {name: used / max(1, len(samples.latencies)) * 1e3 for name, used in meter.read().items()}


async def run(seconds: float) -> bool:
    """The whole benchmark; whether both bars are met."""
    print(f"machine: {describe()}")
    with TemporaryDirectory(prefix="pointsman-bench-") as name:
        config = Path(name) / "pointsman.yaml"
        config.write_text(configuration(minilm(Path(name))))
        with gateway(("--config", str(config))) as running:
            await until(running.door, ASKED, "hit")
            await until(running.door, MEANT, "semantic")
            met: list[bool] = []
            for what, text, bar in (("exact", ASKED, EXACT_BAR_MS), ("semantic", MEANT, SEMANTIC_BAR_MS)):
                await measured(running, text, 0.5)
                samples, cpu = await measured(running, text, seconds)
                p50, p99 = samples.quantile(0.5), samples.quantile(0.99)
                met.append(p50 <= bar and not samples.failures)
                print(f"{'met    ' if met[-1] else 'NOT met'}  {what} hit: p50 {p50:.2f} ms (bar: ≤ {bar:.2f})")
                failures = f", failures {samples.failures}" if samples.failures else ""
                print(f"         p99 {p99:.2f} ms, {samples.rate:,.0f} requests/s at one connection", end="")
                print(failures)
                asked = ", ".join(f"{name} {used:.2f}" for name, used in cpu.items() if used)
                print(f"         CPU ms each, which other load changes less: {asked}")
            direct = await closed_loop(urljoin(running.direct, PATH), body(ASKED), 1, 1.0)
            print(f"         the same backend asked directly: p50 {direct.quantile(0.5):.2f} ms")
    return all(met)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    return 0 if uvloop.run(run(parser.parse_args().seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
