"""What a flight log costs: two gateways of real processes side by side, one with a log, in alternating short bursts.

A machine's speed drifts by more than the bar within seconds, and takes both gateways of a pair of bursts along: their
ratio stays.
"""

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from urllib.parse import urljoin

import uvloop
import yaml

from benchmarks.overhead.cpu import resident_mib
from benchmarks.overhead.load import closed_loop
from benchmarks.overhead.stack import MODEL, Running, gateway

PATH: Final = "/v1/chat/completions"
CONNECTIONS: Final = 32
WITH: Final = {"keep": "2GiB", "segment": "5min"}
WARM_S: Final = 4.0
BURST_S: Final = 0.5


class Quartiles(NamedTuple):
    """Of the ratios of all pairs of bursts: with a log to without."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.1%} (quartiles {self.low:.1%} to {self.high:.1%})"


class Cost(NamedTuple):
    """The figures of one measurement."""

    rate: Quartiles
    """Of requests/s."""
    cpu: Quartiles
    """Of the CPU time of all of a gateway's processes for a request."""
    cpu_us: tuple[float, float]
    """Medians without and with a log."""
    memory: float
    """MiB of resident memory more."""
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
        folder = Path(name)
        with gateway(_options(folder, on=False)) as off, gateway(_options(folder, on=True)) as on:
            bursts, answered = uvloop.run(_alternate((off, on), seconds))
            directory = on.logs.parent / "state" / "flight"
            written = sum(path.stat().st_size for path in directory.rglob("*.flight"))
            memory = _resident(on) - _resident(off)
    without, recorded = bursts
    return Cost(
        _quartiles(b.rate / a.rate for a, b in zip(without, recorded, strict=True)),
        _quartiles(b.cpu_us / a.cpu_us for a, b in zip(without, recorded, strict=True)),
        (statistics.median(each.cpu_us for each in without), statistics.median(each.cpu_us for each in recorded)),
        memory,
        written / max(1, answered) * 200 * 3600,
        sum(each.failed for each in (*without, *recorded)),
    )


async def _alternate(
    gateways: tuple[Running, Running], seconds: float
) -> tuple[tuple[list[_Burst], list[_Burst]], int]:
    """The bursts of each, and the requests that the second one answered in all."""
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "An ordinary sentence of a prompt. " * 300}],
            "stream": True,
            "max_tokens": 16,
        }
    ).encode()
    warm = [await _burst(each, body, WARM_S) for each in gateways]
    bursts: tuple[list[_Burst], list[_Burst]] = ([], [])
    end = time.monotonic() + seconds
    while time.monotonic() < end or not bursts[0]:
        for place in (0, 1) if len(bursts[0]) % 2 else (1, 0):
            bursts[place].append(await _burst(gateways[place], body, BURST_S))
    return bursts, warm[1].answered + sum(each.answered for each in bursts[1])


async def _burst(running: Running, body: bytes, seconds: float) -> _Burst:
    before = _cpu_ns(running)
    samples = await closed_loop(urljoin(running.door, PATH), body, CONNECTIONS, seconds)
    answered = len(samples.latencies)
    return _Burst(samples.rate, (_cpu_ns(running) - before) / max(1, answered) / 1e3, answered, samples.failed)


def _quartiles(ratios: Iterable[float]) -> Quartiles:
    ordered = sorted(ratios)
    return Quartiles(*[ordered[round(share * (len(ordered) - 1))] for share in (0.25, 0.5, 0.75)])


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
    return sum(map(resident_mib, _own(running)))


def _options(folder: Path, *, on: bool) -> tuple[str, ...]:
    sample = Path(__file__).with_name("fixed.yaml")
    document = yaml.safe_load(sample.read_text(encoding="utf-8"))
    for pool in document["pools"].values():
        if on:
            pool["flight"] = WITH
    file = folder / f"{'on' if on else 'off'}.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return ("--config", str(file))
