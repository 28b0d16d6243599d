"""The cost of a whole policy for a request: limits, a signed token, pattern guard and exact cache, all in force.

`python -m benchmarks.policy [--seconds 5]`: starts the gateway as `pointsman up` does and as `pointsman up --replicas
frontend=2` does, in front of a backend that answers at once, and measures both by the same client in the same run.
Every prompt is another one, so that each passes all stages and none is answered from the cache. Prints the latency that
the journey added, the CPU time of each process per request, and the bars: latency for one bundle, requests/s for two,
which use both cores.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urljoin

import jwt
import uvloop
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from benchmarks.machine import describe
from benchmarks.overhead.cpu import Meter
from benchmarks.overhead.load import Connection, Samples, connect, prepare
from benchmarks.overhead.stack import MODEL, Running, gateway
from benchmarks.verdicts import verdict

RATE_BAR: Final = 1200.0
"""Requests/s at 32 connections, 1 KB prompts, two cores."""
P50_BAR_MS: Final = 2.5
"""Added at one connection."""
SHAPES: Final[dict[str, tuple[str, ...]]] = {"bundle": (), "two bundles": ("--replicas", "frontend=2")}
"""Options of `pointsman up` for each shape of deployment."""
PATH: Final = "/v1/chat/completions"
ISSUER: Final = "https://id.example"


def configuration(key: rsa.RSAPrivateKey) -> dict[str, object]:
    """Everything enforced, and nothing that ever refuses these requests."""
    public = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "k"}
    public.pop("key_ops", None)
    return {
        "pools": {"p": {"models": [MODEL]}},
        "preprocessing": [
            {"use": "infra-request-limit", "rate": "1000000/s"},
            {"use": "infra-token-limit", "amount": "1000000000/s"},
            {"use": "jwt-auth", "issuer": ISSUER, "keys": [public]},
            {"use": "authorization", "scopes": ["inference"]},
            {"use": "request-limit", "per": ["tenant"], "rate": "1000000/s"},
            {"use": "token-limit", "per": ["tenant", "model"], "amount": "1000000000/s"},
        ],
        "profiles": {
            "standard": {"request": ["guard", "semantic-cache", "scheduler"], "response": ["guard", "semantic-cache"]}
        },
    }


def written(folder: Path) -> tuple[Path, str]:
    """The configuration's file, and a token that it accepts."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    claims = {"iss": ISSUER, "sub": "bench", "tenant": "bench", "scope": "inference", "exp": int(time.time()) + 3600}
    file = folder / "pointsman.yaml"
    file.write_text(yaml.safe_dump(configuration(key)))
    return file, jwt.encode(claims, key, algorithm="RS256", headers={"kid": "k"})


def requests(url: str, token: str, numbers: Iterator[int]) -> Iterator[bytes]:
    """Chats of about 1 KB, each another one."""
    filler = "An ordinary sentence of a prompt. " * 30
    for number in numbers:
        content = f"Request number {number}. {filler}"
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 16}
        yield prepare(url, json.dumps(body).encode(), (f"Authorization: Bearer {token}",))


async def loop(url: str, token: str, numbers: Iterator[int], connections: int, seconds: float) -> Samples:
    """Closed loop of `connections` clients."""
    samples = Samples()
    prepared = requests(url, token, numbers)
    started = time.perf_counter()

    async def client() -> None:
        connection: Connection = await connect(url)
        while time.perf_counter() < started + seconds:
            request = next(prepared)
            began = time.perf_counter()
            status = await connection.send(request)
            if status == 200:
                samples.latencies.append(time.perf_counter() - began)
            else:
                samples.fail(str(status))
        connection.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    samples.elapsed = time.perf_counter() - started
    return samples


async def run(seconds: float) -> bool:
    """The whole benchmark; whether every bar is met."""
    numbers = count()
    print(f"machine: {describe()}")
    met: list[bool] = []
    with TemporaryDirectory(prefix="pointsman-bench-") as folder:
        file, token = written(Path(folder))
        for shape, options in SHAPES.items():
            print(f"\n{shape}")
            with gateway(("--config", str(file), *options), recorder=True) as running:
                found = await _measure(running, token, numbers, seconds)
            failed = sum(samples.failed for pair in found.values() for samples in pair)
            if shape == "bundle":
                added = found[1][1].quantile(0.5) - found[1][0].quantile(0.5)
                met.append(verdict("added p50 at one connection, ms", added, P50_BAR_MS, at_least=False))
            else:
                met.append(verdict("requests/s at 32 connections", found[32][1].rate, RATE_BAR, at_least=True))
            met.append(verdict("requests that failed, in no figure above", failed, 0, at_least=False))
    return all(met)


async def _measure(
    running: Running, token: str, numbers: Iterator[int], seconds: float
) -> dict[int, tuple[Samples, Samples]]:
    """The backend alone and through the gateway, by the number of connections."""
    found: dict[int, tuple[Samples, Samples]] = {}
    cpu: dict[str, float] = {}
    for connections in (1, 32):
        direct = await loop(urljoin(running.direct, PATH), token, numbers, connections, seconds / 2)
        await loop(urljoin(running.door, PATH), token, numbers, connections, 1.0)
        meter = Meter(running.pids)
        through = await loop(urljoin(running.door, PATH), token, numbers, connections, seconds)
        cpu = {name: used / max(1, len(through.latencies)) * 1e6 for name, used in meter.read().items()}
        found[connections] = direct, through
        print(f"{connections:>3} connections: direct {words(direct)}; gateway {words(through)}")
    print("CPU microseconds per request at 32 connections:")
    for name, used in sorted(cpu.items(), key=lambda item: -item[1]):
        print(f"  {name:<20} {used:>7.0f}")
    print(f"  {'sum':<20} {sum(cpu.values()):>7.0f}")
    return found


def words(samples: Samples) -> str:
    """Rate and latencies on one line."""
    told = f"{samples.rate:,.0f}/s, p50 {samples.quantile(0.5):.2f} ms, p99 {samples.quantile(0.99):.2f} ms"
    return f"{told}, failures {samples.failures}" if samples.failures else told


def main() -> int:
    """Exit status 0 when every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    return 0 if uvloop.run(run(parser.parse_args().seconds)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
