"""The startup time of a gateway, and its cost.

`python -m benchmarks.startup [--runs 3]`: runs `pointsman up` with its default configuration, NATS server and three
simulated engines, first as a bundle, then with `--separate`. Prints the seconds from the command to its message that it
is ready and the CPU seconds of every process by then; then `pointsman demo` and its seconds without those in which it
sends traffic. Figures are medians of the runs.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from benchmarks.machine import describe
from benchmarks.overhead.cpu import seconds
from benchmarks.overhead.stack import script

ROOT: Final = Path(__file__).resolve().parents[2]
READY: Final = "Pointsman is ready"
UP_BAR_S: Final = 3.0
"""Seconds for the bundle, on two free cores."""
DEMO_BAR_S: Final = 10.0
"""`make demo` takes 30 s in all, of which 20 s are traffic."""
TRAFFIC_S: Final = 1.0


class Start(NamedTuple):
    """One gateway that got ready."""

    ready_s: float
    cpu_s: float
    """CPU seconds of `pointsman` and every process that it started."""
    processes: int


def up(options: Sequence[str]) -> Start:
    """Start a gateway, and end it once it is ready. SystemExit when it ends by itself."""
    with TemporaryDirectory(prefix="pointsman-bench-") as folder:
        began = time.monotonic()
        process = _run("up", "--port", "0", "--nats-port", "0", "--run-dir", folder, *options)
        assert process.stdout is not None
        try:
            words: list[str] = []
            for line in process.stdout:
                words.append(line)
                if READY in line:
                    break
            else:
                raise SystemExit(f"{process.args} did not start\n{''.join(words)}")
            ready_s = time.monotonic() - began
            state: dict[str, Any] = json.loads((Path(folder) / "state.json").read_text())
            pids: list[int] = [process.pid, *(each["pid"] for each in state["processes"])]
            return Start(ready_s, sum(map(seconds, pids)), len(pids))
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def demo() -> float:
    """The seconds of a demo beside its traffic. SystemExit when a request failed."""
    with TemporaryDirectory(prefix="pointsman-bench-") as folder:
        began = time.monotonic()
        process = _run("demo", "--seconds", f"{TRAFFIC_S:g}", "--run-dir", folder)
        words, _ = process.communicate(timeout=120)
        if process.returncode != 0:
            raise SystemExit(f"{process.args} failed\n{words}")
        return time.monotonic() - began - TRAFFIC_S


def _run(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [script("pointsman"), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )


def row(name: str, took_s: float, bar_s: float | None, rest: str = "") -> bool:
    """Print a figure and its bar; whether it is met."""
    met = bar_s is None or took_s <= bar_s
    bar = "" if bar_s is None else f"  (bar: ≤ {bar_s:g} s, {'met' if met else 'NOT met'})"
    print(f"{name:<24} {took_s:>6.2f} s{rest}{bar}")
    return met


def started(name: str, runs: int, bar_s: float | None, start: Callable[[], Start]) -> bool:
    """Measure and print one way to start; whether its bar is met."""
    found = [start() for _ in range(runs)]
    cpu_s = median(each.cpu_s for each in found)
    rest = f", {cpu_s:.1f} CPU seconds, {found[0].processes} processes"
    return row(name, median(each.ready_s for each in found), bar_s, rest)


def main() -> int:
    """Exit status 0 when every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each")
    runs: int = parser.parse_args().runs
    print(f"machine: {describe()}")
    met = [
        started("up", runs, UP_BAR_S, lambda: up(())),
        started("up --separate", runs, None, lambda: up(("--separate",))),
        row("demo without traffic", median(demo() for _ in range(runs)), DEMO_BAR_S),
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
