"""What a flight log costs: one gateway of real processes, whose configuration turns the log on and off in turn.

The same process measures both: two processes of the same code differ by up to a quarter in CPU time for a request,
which is more than the bar. A machine's speed drifts within seconds, and takes both bursts of a pair along. The first
moments after a change aren't measured: a log begins with a snapshot, and in production that happens once in five
minutes.
"""

import asyncio
import json
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from urllib.parse import urljoin

import uvloop
import yaml

from benchmarks.overhead.cpu import resident_mib
from benchmarks.overhead.load import closed_loop
from benchmarks.overhead.stack import MODEL, Running, gateway, script

PATH: Final = "/v1/chat/completions"
CONNECTIONS: Final = 32
WITH: Final = {"keep": "2GiB", "segment": "5min"}
WARM_S: Final = 4.0
SETTLE_S: Final = 1.5
"""After a change of the configuration: a log begins within a second."""
BURST_S: Final = 2.0


class Median(NamedTuple):
    """Of the ratios of all pairs of bursts, with a log to without, and where it is with a confidence of 95 %."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.1%} ({self.low:.1%} to {self.high:.1%} with 95% confidence)"


class Cost(NamedTuple):
    """The figures of one measurement."""

    rate: Median
    """Of requests/s."""
    cpu: Median
    """Of the CPU time of all of a gateway's processes for a request."""
    cpu_us: tuple[float, float]
    """Medians without and with a log."""
    memory: float
    """MiB of resident memory more, without the NATS server's."""
    hourly: float
    """Bytes that an hour at 200 requests/s takes on disk."""
    failed: int


class _Burst(NamedTuple):
    rate: float
    cpu_us: float
    answered: int
    failed: int


def overhead(seconds: float) -> Cost:
    """Measure for so many seconds after a warm-up."""
    with TemporaryDirectory(prefix="pointsman-flight-") as name:
        files = _configurations(Path(name))
        with gateway(("--config", str(files[False]))) as running:
            before, bursts, recorded = uvloop.run(_alternate(running, files, seconds))
            directory = running.logs.parent / "state" / "flight"
            written = sum(path.stat().st_size for path in directory.rglob("*.flight"))
            memory = _resident(running) - before
    off, on = bursts[False], bursts[True]
    return Cost(
        _median(b.rate / a.rate for a, b in zip(off, on, strict=True)),
        _median(b.cpu_us / a.cpu_us for a, b in zip(off, on, strict=True)),
        (statistics.median(each.cpu_us for each in off), statistics.median(each.cpu_us for each in on)),
        memory,
        written / max(1, recorded) * 200 * 3600,
        sum(each.failed for each in (*off, *on)),
    )


async def _alternate(
    running: Running, files: Mapping[bool, Path], seconds: float
) -> tuple[float, Mapping[bool, list[_Burst]], int]:
    """Resident memory before the first log, the bursts without and with a log, and the requests that a log has."""
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "An ordinary sentence of a prompt. " * 300}],
            "stream": True,
            "max_tokens": 16,
        }
    ).encode()
    await _burst(running, body, WARM_S)
    before = _resident(running)
    bursts: dict[bool, list[_Burst]] = {False: [], True: []}
    recorded = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end or not bursts[False]:
        for on in (False, True) if len(bursts[False]) % 2 else (True, False):
            await _apply(files[on], running.nats)
            both = [await _burst(running, body, each) for each in (SETTLE_S, BURST_S)]
            bursts[on].append(both[1])
            recorded += sum(each.answered for each in both) if on else 0
    return before, bursts, recorded


async def _apply(file: Path, nats: str) -> None:
    command = await asyncio.create_subprocess_exec(
        *(script("pointsman"), "config", "apply", str(file), "--nats", nats), stdout=asyncio.subprocess.DEVNULL
    )
    if await command.wait():
        raise SystemExit("the configuration was not applied")


async def _burst(running: Running, body: bytes, seconds: float) -> _Burst:
    before = _cpu_ns(running)
    samples = await closed_loop(urljoin(running.door, PATH), body, CONNECTIONS, seconds)
    answered = len(samples.latencies)
    return _Burst(samples.rate, (_cpu_ns(running) - before) / max(1, answered) / 1e3, answered, samples.failed)


def _median(ratios: Iterable[float]) -> Median:
    """By the binomial distribution of how many of the ratios are below the true median."""
    ordered = sorted(ratios)
    half, last = 0.98 * math.sqrt(len(ordered)), len(ordered) - 1
    low, high = math.floor(last / 2 - half), math.ceil(last / 2 + half)
    return Median(ordered[max(0, low)], statistics.median(ordered), ordered[min(last, high)])


def _own(running: Running) -> Sequence[int]:
    return [pid for name, pid in running.pids.items() if name != "backend"]


def _cpu_ns(running: Running) -> int:
    """CPU time of all threads, to the nanosecond: a burst is too short for the kernel's ticks."""
    return sum(
        int(task.joinpath("schedstat").read_text(encoding="ascii").split()[0])
        for pid in _own(running)
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


def _resident(running: Running) -> float:
    """Of the gateway alone: the NATS server grows with its streams, with a log or without."""
    return sum(resident_mib(pid) for name, pid in running.pids.items() if name not in ("backend", "nats"))


def _configurations(folder: Path) -> dict[bool, Path]:
    """The files without and with a flight log."""
    document = yaml.safe_load(Path(__file__).with_name("fixed.yaml").read_text(encoding="utf-8"))
    files: dict[bool, Path] = {}
    for on in (False, True):
        for pool in document["pools"].values():
            pool.update({"flight": WITH} if on else {})
        files[on] = folder / f"{'on' if on else 'off'}.yaml"
        files[on].write_text(yaml.safe_dump(document), encoding="utf-8")
    return files
