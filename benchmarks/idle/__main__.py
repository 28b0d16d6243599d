"""The cost of an idle gateway: CPU and memory of each process, with few engines and with many.

`python -m benchmarks.idle [--seconds 20] [--engines 4 100]`: starts the gateway as `pointsman up` does, before engines
at rest that share one process, waits until it is at rest itself, and reads each process's CPU time. Up to `AGENTS`
engines have an agent each, as named by `--engine`; more are listed in a pool and read by the metrics-collector. The
engines are in no sum; the NATS server has a row of its own.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import yaml

from benchmarks.machine import describe
from benchmarks.overhead.cpu import Meter, resident_mib
from benchmarks.overhead.stack import started

BARS: Final = {4: 0.03, 100: 0.12}
"""Engines → cores, of everything but engines and the NATS server."""
RESIDENT_BAR_MIB: Final = 250.0
AGENTS: Final = 8
SETTLE_S: Final = 8.0


@contextmanager
def engines(count: int) -> Generator[list[str]]:
    """Engines at rest; yields their URLs."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.idle.engines", str(count)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def options(urls: list[str], folder: Path) -> list[str]:
    """The options of `pointsman up` for these engines."""
    if len(urls) <= AGENTS:
        return [word for url in urls for word in ("--engine", url)]
    config = folder / "pointsman.yaml"
    pool = {"models": ["m"], "discovery": "static", "engines": urls}
    config.write_text(yaml.safe_dump({"pools": {"pool": pool}}))
    # The first engine keeps `up` from simulating some; the pool lists it.
    return ["--config", str(config), "--engine", urls[0]]


def measure(count: int, seconds: float, extra: list[str]) -> bool:
    """Print the rows of one stack; whether its bars are met."""
    with TemporaryDirectory(prefix="pointsman-bench-") as name, engines(count) as urls:
        folder = Path(name)
        began = time.monotonic()
        with started([*options(urls, folder), *extra], folder) as state:
            ready_s = time.monotonic() - began
            time.sleep(SETTLE_S)
            pids: dict[str, int] = {each["name"]: each["pid"] for each in state["processes"]}
            meter = Meter(pids)
            time.sleep(seconds)
            used = {each: spent / seconds for each, spent in meter.read().items()}
            resident = {each: resident_mib(pid) for each, pid in pids.items()}
    print(f"\n{count} engines, ready after {ready_s:.1f} s\n{'':<24} {'cores':>7} {'MiB':>6}")
    for each in sorted(pids, key=lambda each: -used[each]):
        print(f"{each:<24} {used[each]:>7.4f} {resident[each]:>6.0f}")
    own = [each for each in pids if each != "nats"]
    cores, memory = sum(used[each] for each in own), sum(resident[each] for each in own)
    print(f"{'sum without nats':<24} {cores:>7.4f} {memory:>6.0f}")
    bar = BARS.get(count)
    if bar is None:
        return True
    met = [verdict("idle cores", cores, bar)]
    if count == min(BARS):
        met.append(verdict("resident MiB", memory, RESIDENT_BAR_MIB))
    return all(met)


def verdict(what: str, figure: float, bar: float) -> bool:
    """Print one bar and whether it is met."""
    print(f"{'met    ' if figure <= bar else 'NOT met'}  {what}: {figure:,.3f} (bar: ≤ {bar:,.2f})")
    return figure <= bar


def main() -> int:
    """Exit status 0 when every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each measurement")
    parser.add_argument("--engines", type=int, nargs="+", default=list(BARS), help="how many engines, in turn")
    arguments, extra = parser.parse_known_args()
    print(f"machine: {describe()}")
    met = [measure(count, arguments.seconds, extra) for count in arguments.engines]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
