"""The cost of a flight log: one gateway of real processes, whose configuration turns the log on and off in turn.

The same process measures both: two processes of the same code differ by up to a quarter in CPU time for a request,
which is more than the bar. A machine's speed drifts within seconds: the burst before a change is compared with the one
after it, and the log goes on as often as it goes off. The first moments after a change aren't measured: a log begins
with a snapshot, and in production that happens once in five minutes.
"""

import asyncio
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
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
BURST_S: Final = 1.0


class Ratio(NamedTuple):
    """With a log to without: the pseudomedian of the ratios of all pairs of bursts (Hodges and Lehmann 1963), which is
    closer to the true one than the median is, and where it is with a confidence of 95 % (Wilcoxon's signed ranks)."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.1%} ({self.low:.1%} to {self.high:.1%} with 95% confidence)"


class Cost(NamedTuple):
    """The figures of one measurement."""

    rate: Ratio
    """Of requests/s."""
    cpu: Ratio
    """Of the CPU time of all of a gateway's processes for a request."""
    cpu_us: tuple[float, float]
    """Medians without and with a log."""
    memory: float
    """MiB of resident memory more, without the NATS server's."""
    hourly: float
    """Bytes that an hour at 200 requests/s takes on disk, with a snapshot each time that the log goes on."""
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
            before, pairs, recorded = uvloop.run(_alternate(running, files, seconds))
            directory = running.logs.parent / "state" / "flight"
            written = sum(path.stat().st_size for path in directory.rglob("*.flight"))
            memory = _resident(running) - before
    return Cost(
        _ratio([pair[True].rate / pair[False].rate for pair in pairs]),
        _ratio([pair[True].cpu_us / pair[False].cpu_us for pair in pairs]),
        (
            statistics.median(pair[False].cpu_us for pair in pairs),
            statistics.median(pair[True].cpu_us for pair in pairs),
        ),
        memory,
        written / max(1, recorded) * 200 * 3600,
        sum(each.failed for pair in pairs for each in pair.values()),
    )


async def _alternate(
    running: Running, files: Mapping[bool, Path], seconds: float
) -> tuple[float, Sequence[Mapping[bool, _Burst]], int]:
    """Resident memory before the first log, the pairs of bursts, by whether a log is on, and the requests that a log
    has."""
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
    pairs: list[Mapping[bool, _Burst]] = []
    recorded, on = 0, False
    last = await _burst(running, body, BURST_S)
    end = time.monotonic() + seconds
    while time.monotonic() < end or not pairs:
        on = not on
        await _apply(files[on], running.nats)
        bursts = [await _burst(running, body, each) for each in (SETTLE_S, BURST_S, BURST_S)]
        pairs.append({on: bursts[1], not on: last})
        last = bursts[2]
        recorded += sum(each.answered for each in bursts) if on else 0
    return before, pairs, recorded


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


def _ratio(ratios: Sequence[float]) -> Ratio:
    """The median of the means of any two ratios, and their bounds by the normal distribution of the rank sum."""
    means = sorted((a + b) / 2 for a, b in combinations_with_replacement(ratios, 2))
    count, last = len(ratios), len(means) - 1
    half = 1.96 * math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    low, high = math.floor(last / 2 - half), math.ceil(last / 2 + half)
    return Ratio(means[max(0, low)], statistics.median(means), means[min(last, high)])


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
    """The memory of the gateway alone: the NATS server grows with its streams, with a log or without."""
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
