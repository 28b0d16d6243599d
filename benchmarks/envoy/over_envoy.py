"""The latency that the gateway adds to Envoy: the gateway's listener and an Envoy straight to the backend, in one
run."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from urllib.parse import urljoin

from benchmarks.envoy.plain_envoy import listening
from benchmarks.envoy.requests import PATH, body
from benchmarks.overhead.cpu import Meter
from benchmarks.overhead.load import Samples, closed_loop, open_loop
from benchmarks.overhead.stack import Running
from benchmarks.verdicts import verdict

PER_SECOND: Final = 200.0
CONNECTIONS: Final = 32
ROUNDS: Final = 3
"""Each of both is measured so often, in turn: what else the machine does meets both."""


class Bars(NamedTuple):
    """The bars for one size of request."""

    p50_ms: float
    """Added at `PER_SECOND`."""
    p95_ms: float
    rate: float
    """Requests/s at `CONNECTIONS`, one after the other on each."""


BARS: Final = {1: Bars(2.0, 4.0, 1600.0), 32: Bars(2.5, 8.0, 900.0)}
"""Bars by the size of the request in kilobytes."""


async def over_envoy(running: Running, seconds: float) -> list[bool]:
    """Print the rows and their bars; which of them are met."""
    met: list[bool] = []
    with TemporaryDirectory(prefix="pointsman-bench-") as folder, listening(running.direct, Path(folder)) as plain:
        print(f"\nover Envoy alone\n  {'':<30} {'Envoy p50':>10} {'p95':>7} {'gateway p50':>12} {'p95':>7} ms")
        for kilobytes, bars in BARS.items():
            met += await _of(running, plain, kilobytes, bars, seconds)
    return met


async def _of(running: Running, plain: str, kilobytes: int, bars: Bars, seconds: float) -> list[bool]:
    request, alone_url, url = body(kilobytes), urljoin(plain, PATH), urljoin(running.door, PATH)
    alone, through = Samples(), Samples()
    for each in (alone_url, url):
        await closed_loop(each, request, 8, 0.5)
    for _ in range(ROUNDS):
        _add(alone, await open_loop(alone_url, request, PER_SECOND, seconds / 2))
        _add(through, await open_loop(url, request, PER_SECOND, seconds / 2))
    figures = [samples.quantile(q) for samples in (alone, through) for q in (0.5, 0.95)]
    name = f"{kilobytes} KB, {PER_SECOND:g}/s"
    print(f"  {name:<30} {figures[0]:>10.2f} {figures[1]:>7.2f} {figures[2]:>12.2f} {figures[3]:>7.2f}")
    bare = await closed_loop(alone_url, request, CONNECTIONS, seconds / 2)
    meter = Meter(running.pids)
    full = await closed_loop(url, request, CONNECTIONS, seconds)
    used = sum(meter.read().values()) / max(1, len(full.latencies)) * 1e6
    name = f"{kilobytes} KB, {CONNECTIONS} connections"
    print(f"  {name:<30} {bare.rate:>10,.0f}/s {full.rate:>18,.0f}/s, {used:,.0f} µs CPU a request with the backend's")
    failed = sum(samples.failed for samples in (alone, through, bare, full))
    return [
        verdict(
            f"added p50 at {PER_SECOND:g}/s, {kilobytes} KB, ms", figures[2] - figures[0], bars.p50_ms, at_least=False
        ),
        verdict(
            f"added p95 at {PER_SECOND:g}/s, {kilobytes} KB, ms", figures[3] - figures[1], bars.p95_ms, at_least=False
        ),
        verdict(f"requests/s at {CONNECTIONS} connections, {kilobytes} KB", full.rate, bars.rate, at_least=True),
        verdict("requests that failed, in no figure above", failed, 0, at_least=False),
    ]


def _add(samples: Samples, more: Samples) -> None:
    samples.latencies += more.latencies
    for reason, count in more.failures.items():
        samples.failures[reason] = samples.failures.get(reason, 0) + count
