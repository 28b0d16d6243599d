"""The cost of the Envoy edge: the adapter alone, and the whole journey with the real Envoy.

`python -m benchmarks.envoy [--seconds 4] [--alone | --latency | --frames]`. Alone: an ext_proc client calls an adapter
with a fixed decision. Printed are exchanges a second, and the exchanges that a core of the adapter can carry by its CPU
time. Then 10,000 exchanges are aborted, after which its memory must be back at its old size. Whole: `pointsman up
--envoy` before a backend that answers at once, asked directly and through the gateway in the same run; then 10,000
exchanges are aborted, after which none may be open or reserved. `--latency` measures only the difference between the
gateway and Envoy alone: an Envoy straight to the backend, asked in turn with the gateway. `--frames` counts what Envoy
and the adapter send each other for one request. All processes share this machine's cores.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urljoin

import uvloop

from benchmarks.envoy.aborts import abort
from benchmarks.envoy.frames import counts
from benchmarks.envoy.over_envoy import over_envoy
from benchmarks.envoy.requests import PATH, body
from benchmarks.machine import describe
from benchmarks.overhead.cpu import Meter, resident_mib
from benchmarks.overhead.load import Samples, closed_loop, open_loop
from benchmarks.overhead.stack import Running, gateway
from benchmarks.verdicts import verdict
from pointsman_testing.ext_proc import BUFFERED, FULL_DUPLEX, STREAMED, ExtProcClient

RATES = (100.0, 200.0, 500.0)
JOURNEY_BAR = 1000.0
"""Requests/s of the whole journey at 1 KB."""
LENGTH_BAR = 1.3
"""CPU of the adapter for a stream of 2,000 tokens against one of 100."""
ABORTED = 10_000


@contextmanager
def adapter_alone(folder: Path, kind: str) -> Generator[tuple[str, int]]:
    """A processor, `fixed_answer` or `empty_answer`; yields where it is and its process id."""
    port_file = folder / kind
    process = subprocess.Popen([sys.executable, "-m", f"benchmarks.envoy.{kind}", str(port_file)])
    try:
        while not port_file.exists() or not port_file.read_text():
            if process.poll() is not None:
                raise SystemExit("the adapter did not start")
            time.sleep(0.05)
        yield f"127.0.0.1:{port_file.read_text()}", process.pid
    finally:
        process.kill()
        process.wait()


async def exchange(client: ExtProcClient, request: bytes, modes: tuple[int, int]) -> None:
    """One exchange, as Envoy has it for a short document."""
    call = client.open()
    await call.request(modes=modes, headers={"content-length": str(len(request))})
    if modes[0] == BUFFERED:
        await call.reply()
        await call.body(request)
        await call.reply()
    else:
        for start in range(0, len(request), 62_000):
            await call.body(request[start : start + 62_000], end=start + 62_000 >= len(request))
        while not (await call.reply()).end:
            pass
    await call.response(upstream="10.0.0.1:8000", headers={"content-length": "100"})
    await call.reply()
    await call.body(b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}', of="response")
    await call.reply()
    await call.done()


async def alone(seconds: float) -> None:
    """The adapter without Envoy and bus."""
    print("\nadapter alone, fixed decision, 32 exchanges at a time (client on the same cores)")
    with TemporaryDirectory(prefix="pointsman-bench-") as name:
        with adapter_alone(Path(name), "empty_answer") as (target, pid):
            async with ExtProcClient(target) as client:
                count, _, used = await _rate(client, body(1), (BUFFERED, STREAMED), pid, seconds)
        print(f"  grpc with no service behind it {used / count * 1e6:>6,.0f} µs CPU each")
        with adapter_alone(Path(name), "fixed_answer") as (target, pid):
            await _fixed(target, pid, seconds)


async def _fixed(target: str, pid: int, seconds: float) -> None:
    async with ExtProcClient(target) as client:
        for label, modes in (("buffered", (BUFFERED, STREAMED)), ("full duplex", (FULL_DUPLEX, FULL_DUPLEX))):
            for kilobytes in (1, 100, 400):
                count, elapsed, used = await _rate(client, body(kilobytes), modes, pid, seconds)
                print(
                    f"  {label:<12} {kilobytes:>4} KB  {count / elapsed:>7,.0f} exchanges/s"
                    f"  {used / count * 1e6:>6,.0f} µs CPU each: {count / used:>6,.0f}/s on a core"
                )
        before = resident_mib(pid)
        await asyncio.gather(*(_abort(client, number, ABORTED // 50) for number in range(50)))
        await exchange(client, body(1), (FULL_DUPLEX, FULL_DUPLEX))
        after = resident_mib(pid)
        print(f"  {ABORTED:,} aborted exchanges: {before:.0f} MiB before, {after:.0f} MiB after")


async def _rate(
    client: ExtProcClient, request: bytes, modes: tuple[int, int], pid: int, seconds: float
) -> tuple[int, float, float]:
    started = time.perf_counter()
    meter = Meter({"adapter": pid})
    count = 0

    async def keep_asking() -> None:
        nonlocal count
        while time.perf_counter() < started + seconds:
            await exchange(client, request, modes)
            count += 1

    await asyncio.gather(*(keep_asking() for _ in range(32)))
    return count, time.perf_counter() - started, meter.read()["adapter"]


async def _abort(client: ExtProcClient, number: int, count: int) -> None:
    for each in range(count):
        call = client.open()
        await call.request()
        if (number + each) % 2:
            await call.body(b'{"model":"fixed-model"}')
            await call.replies(2)
        call.reset()


def _added(direct: Samples, through: Samples, q: float) -> float:
    return through.quantile(q) - direct.quantile(q)


def row(name: str, direct: Samples, through: Samples) -> str:
    """One line of the table."""
    added = [f"{_added(direct, through, q):>+7.2f}" for q in (0.5, 0.95, 0.99)]
    failures = f"  failures {through.failures}" if through.failures else ""
    return f"  {name:<34} {direct.rate:>8,.0f} {through.rate:>8,.0f}   {' '.join(added)}{failures}"


async def whole(seconds: float) -> bool:
    """The whole journey, and whether the bars are met."""
    with gateway(("--envoy",), recorder=True) as running:
        direct_url, url = urljoin(running.direct, PATH), urljoin(running.door, PATH)
        print(f"\nwhole journey with Envoy\n  {'':<34} {'requests/s':>17}   {'added ms':>15}")
        print(f"  {'':<34}   direct  gateway       p50     p95     p99")
        rate = 0.0
        failed = 0
        for kilobytes in (1, 100, 400):
            request = body(kilobytes)
            for connections in (1, 32):
                await closed_loop(url, request, connections, 0.5)
                direct = await closed_loop(direct_url, request, connections, seconds / 2)
                meter = Meter(running.pids)
                through = await closed_loop(url, request, connections, seconds)
                print(row(f"{kilobytes} KB, {connections} connections", direct, through))
                failed += direct.failed + through.failed
                if (kilobytes, connections) == (1, 32):
                    rate = through.rate
                    _shares(meter, through)
        for per_second in RATES:
            failed += await _latency(running, per_second, seconds)
        met = await over_envoy(running, seconds)
        began = time.perf_counter()
        left = await abort(running, body(1), ABORTED)
        print(f"\n  {ABORTED:,} aborted exchanges: {left} left open after {time.perf_counter() - began:.0f} s")
    (short, lost), (long, lost_too) = [await _stream_cpu(tokens, seconds) for tokens in (100, 2000)]
    failed += lost + lost_too
    print(f"\n  gateway's CPU for a stream of 100 tokens {short:.0f} µs, of 2,000 {long:.0f} µs\n")
    return all(
        [
            *met,
            verdict("requests/s, whole journey, 1 KB", rate, JOURNEY_BAR, at_least=True),
            _answered(failed),
            verdict("open after 10,000 aborted exchanges", sum(left.values()), 0, at_least=False),
            verdict("CPU for 2,000 tokens against 100", long / short, LENGTH_BAR, at_least=False),
        ]
    )


async def latency(seconds: float) -> bool:
    """The latency that the gateway adds to Envoy alone; whether the bars are met."""
    with gateway(("--envoy",), recorder=True) as running:
        return all(await over_envoy(running, seconds))


async def frames(seconds: float) -> bool:
    """The messages, frames and reads of one request; whether every request was served."""
    with gateway(("--envoy",), tokens=100) as running:
        return _answered(await counts(running, seconds))


async def _latency(running: Running, per_second: float, seconds: float) -> int:
    """The added latency at a fixed rate of requests a second, regardless of their outcomes; returns how many failed."""
    direct = await open_loop(urljoin(running.direct, PATH), body(1), per_second, seconds)
    meter = Meter(running.pids)
    through = await open_loop(urljoin(running.door, PATH), body(1), per_second, 2 * seconds)
    print(row(f"1 KB, open loop at {per_second:g}/s", direct, through))
    _shares(meter, through)
    return direct.failed + through.failed


def _shares(meter: Meter, through: Samples) -> None:
    count = max(1, len(through.latencies))
    used = {name: seconds / count * 1e6 for name, seconds in sorted(meter.read().items())}
    print(f"    CPU µs per request: {', '.join(f'{name} {each:.0f}' for name, each in used.items() if each > 20)}")


def _answered(failed: int) -> bool:
    return verdict("requests that failed, in no figure above", failed, 0, at_least=False)


async def _stream_cpu(tokens: int, seconds: float) -> tuple[float, int]:
    """Microseconds of the gateway's CPU for one stream of `tokens` tokens, and the number of failed requests."""
    with gateway(("--envoy",), tokens=tokens) as running:
        url = urljoin(running.door, PATH)
        await closed_loop(url, body(1, stream=True), 8, 0.5)
        meter = Meter({"gateway": running.pids["gateway"]})
        through = await closed_loop(url, body(1, stream=True), 8, 2 * seconds)
        return meter.read()["gateway"] / max(1, len(through.latencies)) * 1e6, through.failed


async def run(seconds: float, only: str) -> bool:
    """Run all of it, or one part."""
    print(f"machine: {describe()}")
    if only == "latency":
        return await latency(seconds)
    if only == "frames":
        return await frames(seconds)
    await alone(seconds)
    return only == "alone" or await whole(seconds)


def main() -> int:
    """Exit status 0 when every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.envoy", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--alone", dest="only", action="store_const", const="alone", help="the adapter alone")
    part.add_argument("--latency", dest="only", action="store_const", const="latency", help="added to Envoy alone")
    part.add_argument("--frames", dest="only", action="store_const", const="frames", help="counts for one request")
    arguments = parser.parse_args()
    return 0 if uvloop.run(run(arguments.seconds, arguments.only or "all")) else 1


if __name__ == "__main__":
    sys.exit(main())
