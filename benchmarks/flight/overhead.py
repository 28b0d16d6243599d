"""Requests/s and memory with and without flight log: two gateways of real processes, measured in turns."""

import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urljoin

import uvloop
import yaml

from benchmarks.overhead.cpu import resident_mib
from benchmarks.overhead.load import Samples, closed_loop
from benchmarks.overhead.stack import MODEL, Running, gateway

PATH: Final = "/v1/chat/completions"
CONNECTIONS: Final = 32
WITH: Final = {"keep": "2GiB", "segment": "5min"}


def overhead(rounds: int, seconds: float) -> tuple[float, float, float]:
    """The ratio of the medians of requests/s, the difference of resident memory in MiB, and the bytes that an hour at
    200 requests/s takes on disk."""
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "An ordinary sentence of a prompt. " * 300}],
            "stream": True,
            "max_tokens": 16,
        }
    ).encode()
    rates: dict[bool, list[float]] = {True: [], False: []}
    with TemporaryDirectory(prefix="pointsman-flight-") as name:
        folder = Path(name)
        with gateway(_options(folder, on=False)) as off, gateway(_options(folder, on=True)) as on:
            directory = on.logs.parent / "state" / "flight"
            answered = 0
            for turn in range(rounds + 1):
                for recording, running in ((False, off), (True, on)) if turn % 2 else ((True, on), (False, off)):
                    samples = _measure(running, body, seconds)
                    if turn:  # the first warms up
                        rates[recording].append(samples.rate)
                    answered += len(samples.latencies) if recording else 0
                print(
                    f"    round {turn}: "
                    + ", ".join(f"{'on' if k else 'off'} {v[-1]:.0f}/s" for k, v in rates.items() if v)
                )
            written = sum(path.stat().st_size for path in directory.rglob("*.flight"))
            memory = _schedulers(on) - _schedulers(off)
    ratio = statistics.median(rates[True]) / statistics.median(rates[False])
    return ratio, memory, written / max(1, answered) * 200 * 3600


def _measure(running: Running, body: bytes, seconds: float) -> Samples:
    return uvloop.run(closed_loop(urljoin(running.door, PATH), body, CONNECTIONS, seconds))


def _schedulers(running: Running) -> float:
    return sum(resident_mib(pid) for name, pid in running.pids.items() if name != "backend")


def _options(folder: Path, *, on: bool) -> tuple[str, ...]:
    sample = Path(__file__).with_name("fixed.yaml")
    document = yaml.safe_load(sample.read_text(encoding="utf-8"))
    for pool in document["pools"].values():
        if on:
            pool["flight"] = WITH
    file = folder / f"{'on' if on else 'off'}.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return ("--config", str(file))
