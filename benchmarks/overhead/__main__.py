"""The cost of the whole journey for a request, against the same backend asked directly, in each shape of deployment.

`python -m benchmarks.overhead [--seconds 5] [--quick]`: starts the gateway as `pointsman up` does (one bundle), as
`pointsman up --replicas frontend=2` does (two bundles on one port) and as `pointsman up --separate` does (a process for
each service), one after another, in front of a backend that answers at once. Each is measured by the same client in the
same run: closed loop at 1 and at 32 connections, prompts of 1 KB and 100 KB, streamed and not, and an open loop at 300
requests a second. Prints requests/s, latency, the latency that the journey added, the CPU time of each process per
request, and resident memory. The same backend also serves a bare relay of the same hops (`relay`), the lowest possible
cost on this machine, and other gateways that are installed (`peers`). A recorder runs in every shape. With `--auto`
requests leave the model to a selector, as in `auto.yaml`, and the same bars hold. `--shape` measures one shape alone.
"""

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import uvloop

from benchmarks.machine import describe
from benchmarks.overhead import peers, relay
from benchmarks.overhead.cpu import Meter, resident_mib
from benchmarks.overhead.load import Samples, closed_loop, open_loop
from benchmarks.overhead.stack import MODEL, Running, gateway
from benchmarks.verdicts import verdict

SHAPES: Final[dict[str, tuple[str, ...]]] = {
    "bundle": (),
    "two bundles": ("--replicas", "frontend=2"),
    "separate": ("--separate",),
}
"""Options of `pointsman up` for each shape of deployment."""
P50_BARS_MS: Final = {"bundle": 0.8, "separate": 2.0}
"""Added at one connection."""
RATE_BARS: Final = {"two bundles": 2500.0, "separate": 1800.0}
"""Requests/s at 32 connections, 1 KB prompts."""
RELAY_SHARE: Final = 2.2
"""The most that the rate of the bare relay may be, as a multiple of that of two bundles."""
RELAY_ROUNDS: Final = 8
"""Each has two bursts of the relay and two of the gateway."""
CPU_BAR_US: Final = 500.0
"""CPU time a request at 32 connections, two bundles and everything beside them, without the client."""
RSS_BAR_MIB: Final = 250.0
"""Every process of the gateway after the load, one bundle."""
P99_BAR_MS = 6.0
"""Added at 300 requests/s, open loop, one bundle."""
OPEN_RATE = 300.0
PATH = "/v1/chat/completions"
AUTO = Path(__file__).with_name("auto.yaml")


@dataclass(frozen=True)
class Case:
    """One shape of request."""

    kilobytes: int
    stream: bool
    model: str = MODEL

    @property
    def name(self) -> str:
        model = "" if self.model == MODEL else f", model {self.model}"
        return f"{self.kilobytes} KB {'streamed' if self.stream else 'whole'}{model}"

    def body(self) -> bytes:
        """A chat request whose prompt has about this many bytes."""
        prompt = "An ordinary sentence of a prompt. " * (self.kilobytes * 1024 // 34)
        return json.dumps(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": prompt}],
                "stream": self.stream,
                "max_tokens": 16,
            }
        ).encode()


async def measure(
    running: Running, case: Case, connections: int, seconds: float
) -> tuple[Samples, Samples, dict[str, float]]:
    """Direct, through the gateway, and CPU microseconds of each process per request of the latter."""
    body = case.body()
    asked = Case(case.kilobytes, case.stream).body()  # a backend knows no `auto`
    direct = await closed_loop(urljoin(running.direct, PATH), asked, connections, max(1.0, seconds / 3))
    await closed_loop(urljoin(running.door, PATH), body, connections, 0.5)
    meter = Meter(running.pids)
    through = await closed_loop(urljoin(running.door, PATH), body, connections, seconds)
    count = max(1, len(through.latencies))
    return direct, through, {name: used / count * 1e6 for name, used in meter.read().items()}


def row(name: str, direct: Samples, through: Samples) -> str:
    """One line of the table."""
    p50, p99 = through.quantile(0.5), through.quantile(0.99)
    cells = [
        f"{name:<34} {direct.rate:>8,.0f} {through.rate:>8,.0f} ",
        f"{direct.quantile(0.5):>7.2f} {p50:>7.2f} {p50 - direct.quantile(0.5):>+7.2f} ",
        f"{p99:>7.2f} {p99 - direct.quantile(0.99):>+7.2f}",
        f" failures {through.failures}" if through.failures else "",
    ]
    return " ".join(cells).rstrip()


async def against_relay(stack: Running, body: bytes, seconds: float) -> float:
    """Its rows; its requests/s at 32 connections as a multiple of the gateway's, the median of bursts in turn: a
    machine's speed drifts within seconds."""
    door = urljoin(stack.door, PATH)
    async with relay.running(stack.direct) as url:
        for connections in (1, 32):
            direct = await closed_loop(urljoin(stack.direct, PATH), body, connections, 1.0)
            await closed_loop(url, body, connections, 0.5)
            through = await closed_loop(url, body, connections, seconds)
            print(row(f"bare relay, 1 KB whole, {connections} connection{'s' * (connections > 1)}", direct, through))
        rates: dict[str, list[float]] = {url: [], door: []}
        for each in (url, door, door, url) * RELAY_ROUNDS:
            rates[each].append((await closed_loop(each, body, 32, 1.0)).rate)
    shares = [relay_rate / rate for relay_rate, rate in zip(rates[url], rates[door], strict=True)]
    relays, own, share = (statistics.median(each) for each in (rates[url], rates[door], shares))
    print(f"in turn, at 32 connections: the relay {relays:,.0f}, the gateway {own:,.0f}; ratio {share:.2f}")
    return share


async def against_peers(stack: Running, body: bytes, seconds: float) -> None:
    """One row for each other gateway that is installed, and for each connection count."""
    for name, path in peers.installed().items():
        async with peers.running(name, path, stack.direct, body) as url:
            if url is None:
                print(f"{name:<34} is installed and did not answer")
                continue
            for connections in (1, 32):
                direct = await closed_loop(urljoin(stack.direct, PATH), body, connections, 1.0)
                through = await closed_loop(url, body, connections, seconds)
                print(row(f"{name}, 1 KB whole, {connections} connection{'s' * (connections > 1)}", direct, through))


@dataclass(frozen=True)
class Measured:
    """The figures of one shape."""

    added_p50_ms: float
    rate: float
    cpu_us: float
    rss_mib: float
    added_p99_ms: float
    failed: int
    relay_share: float
    """Rate of the bare relay as a multiple of the gateway's; 0 when not measured."""


async def measure_shape(
    shape: str, seconds: float, cases: list[Case], options: tuple[str, ...], *, beside: bool
) -> Measured:
    """Start one shape of the gateway and measure it; `beside` measures the relay and the peers in front of the same
    backend."""
    with gateway((*options, *SHAPES[shape]), recorder=True) as running:
        print(f"\n{shape:<34} {'requests/s':>17}  {'p50 ms':>23}  {'p99 ms':>15}")
        print(" " * 35 + "  direct  gateway   direct gateway   added  gateway   added")
        cpu: dict[str, float] = {}
        rate = added_p50 = 0.0
        failed = 0
        for case in cases:
            for connections in (1, 32):
                direct, through, used = await measure(running, case, connections, seconds)
                failed += direct.failed + through.failed
                print(row(f"{case.name}, {connections} connection{'s' * (connections > 1)}", direct, through))
                if case == cases[0] and connections == 1:
                    added_p50 = through.quantile(0.5) - direct.quantile(0.5)
                if case == cases[0] and connections == 32:
                    rate, cpu = through.rate, used
        fixed = Case(1, stream=False).body()
        direct = await open_loop(urljoin(running.direct, PATH), fixed, OPEN_RATE, seconds)
        through = await open_loop(urljoin(running.door, PATH), cases[0].body(), OPEN_RATE, 2 * seconds)
        print(row(f"{cases[0].name}, open loop at {OPEN_RATE:g}/s", direct, through))
        relay_share = await against_relay(running, fixed, seconds) if beside else 0.0
        if beside:
            await against_peers(running, fixed, seconds)
        rss = {name: resident_mib(pid) for name, pid in running.pids.items()}
        print("\nCPU microseconds per request, 1 KB whole, 32 connections, and resident MiB:")
        for name, used in sorted(cpu.items(), key=lambda item: -item[1]):
            print(f"  {name:<20} {used:>7.0f} {rss[name]:>9.0f}")
        print(f"  {'sum':<20} {sum(cpu.values()):>7.0f} {sum(rss.values()):>9.0f}")
        return Measured(
            added_p50,
            rate,
            sum(cpu.values()),
            sum(rss.values()) - rss["backend"],
            through.quantile(0.99) - direct.quantile(0.99),
            failed + direct.failed + through.failed,
            relay_share,
        )


async def run(seconds: float, cases: list[Case], options: tuple[str, ...], shapes: list[str]) -> bool:
    """The whole benchmark; whether every bar is met. `options` are of `pointsman up`."""
    print(f"machine: {describe()}")
    met: list[bool] = []
    found: dict[str, Measured] = {}
    for shape in shapes:
        found[shape] = await measure_shape(shape, seconds, cases, options, beside=shape == "two bundles")
    print()
    for shape, figures in found.items():
        if shape in P50_BARS_MS:
            what = f"{shape}: added p50 at one connection, ms"
            met.append(verdict(what, figures.added_p50_ms, P50_BARS_MS[shape], at_least=False))
        if shape in RATE_BARS:
            what = f"{shape}: requests/s at 32 connections, 1 KB"
            met.append(verdict(what, figures.rate, RATE_BARS[shape], at_least=True))
        if shape == "two bundles":
            what = f"{shape}: requests/s of the bare relay, as a multiple"
            met.append(verdict(what, figures.relay_share, RELAY_SHARE, at_least=False))
            met.append(verdict(f"{shape}: CPU a request, us", figures.cpu_us, CPU_BAR_US, at_least=False))
        if shape == "bundle":
            met.append(verdict(f"{shape}: resident memory, MiB", figures.rss_mib, RSS_BAR_MIB, at_least=False))
            what = f"{shape}: added p99 at {OPEN_RATE:g} requests/s, ms"
            met.append(verdict(what, figures.added_p99_ms, P99_BAR_MS, at_least=False))
        met.append(verdict(f"{shape}: requests that failed, in no figure above", figures.failed, 0, at_least=False))
    return all(met)


def main() -> int:
    """Exit status 0 when every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--quick", action="store_true", help="1 KB prompts only")
    parser.add_argument("--auto", action="store_true", help="leave the model to a selector")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="measure this shape alone; repeatable")
    arguments = parser.parse_args()
    sizes = (1,) if arguments.quick else (1, 100)
    model, options = ("auto", ("--config", str(AUTO))) if arguments.auto else (MODEL, ())
    cases = [Case(size, stream, model) for size in sizes for stream in (False, True)]
    return 0 if uvloop.run(run(arguments.seconds, cases, options, arguments.shape or list(SHAPES))) else 1


if __name__ == "__main__":
    sys.exit(main())
