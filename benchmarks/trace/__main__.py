"""The functions and files of the product that one warm request touches, and the interpreter's work for it.

`python -m benchmarks.trace [--model auto] [--functions]`: starts one bundle as `pointsman up` does, with a model
selector (`auto.yaml` of `benchmarks.overhead`), warms it, counts every call while it serves further requests one after
the other, and prints the product functions that were called for each of them, and the files that these are in. Calls of
comprehensions and nested functions count for the function around them. The calls of an equally long time without
requests, those of timers, are subtracted.

Beside calls it counts opcodes and calls into C, those of libraries too, in the thread of the event loop. The counts
hardly change from run to run, whatever else the machine does, so they show a change of some percent that times don't.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from urllib.parse import urljoin

import uvloop

from benchmarks.overhead.__main__ import AUTO, PATH, Case
from benchmarks.overhead.load import closed_loop
from benchmarks.overhead.stack import MODEL, gateway

FUNCTIONS_BAR: Final = 250
FILES_BAR: Final = 80
WARM_S: Final = 2.0
TRACED_S: Final = 4.0
SETTLES_S: Final = 1.0
"""Until what requests leave behind is done, e.g. the last batch of events."""
EACH: Final = 0.9
"""Calls a request from which on a function counts as part of every request."""
ROOT: Final = Path(__file__).resolve().parents[2]
HOMES: Final = ("contracts", "shared", "services", "tools")
LIBRARIES: Final = "libraries"


def product(file: str) -> str | None:
    """The file's path in the repository; None when it isn't the product's."""
    path = Path(file)
    if not path.is_relative_to(ROOT):
        return None
    place = path.relative_to(ROOT)
    return str(place) if place.parts[0] in HOMES else None


Place = tuple[str, str]
"""A file of the product and a function in it; a library's file has no function."""


class Work(NamedTuple):
    """Counts of the bundle, by place."""

    calls: Counter[Place]
    opcodes: Counter[Place]
    c_calls: Counter[Place]

    def without(self, other: "Work") -> "Work":
        """These counts less the others."""
        for own, less in zip(self, other, strict=True):
            own.subtract(less)
        return self


def counted(rows: list[tuple[str, str, int, int, int]]) -> Work:
    """Calls, opcodes and calls into C by file and function."""
    work = Work(Counter(), Counter(), Counter())
    for file, name, *counts in rows:
        home = product(file)
        place = (LIBRARIES, "") if home is None or name == "<module>" else (home, name.partition(".<locals>")[0])
        for counter, count in zip(work, counts, strict=True):
            counter[place] += count
    return work


def traced(model: str) -> tuple[int, Work]:
    """Requests that were served, and the bundle's work for them."""
    with TemporaryDirectory(prefix="pointsman-trace-") as folder:
        file = Path(folder) / "calls"
        os.environ["POINTSMAN_TRACE_FILE"] = str(file)
        os.environ["PYTHONPATH"] = str(Path(__file__).with_name("in_process"))
        with gateway(("--config", str(AUTO))) as running:
            pid = running.pids["gateway"]
            url, body = urljoin(running.door, PATH), Case(1, stream=False, model=model).body()
            uvloop.run(closed_loop(url, body, 1, WARM_S))
            os.kill(pid, signal.SIGUSR2)
            served = uvloop.run(closed_loop(url, body, 1, TRACED_S))
            work = stopped(pid, file)
            time.sleep(SETTLES_S)
            os.kill(pid, signal.SIGUSR2)
            time.sleep(TRACED_S)
            return len(served.latencies), work.without(stopped(pid, file))


def stopped(pid: int, file: Path) -> Work:
    """The process's work since it began to count; it stops."""
    os.kill(pid, signal.SIGUSR2)
    written = file.with_name(f"{file.name}.{pid}")
    deadline = time.monotonic() + 10
    while not written.exists():
        if time.monotonic() > deadline:
            raise SystemExit("the bundle wrote no calls")
        time.sleep(0.05)
    work = counted(json.loads(written.read_text()))
    written.unlink()
    return work


def main() -> int:
    """Exit status 0 when both bars are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace", description=__doc__)
    parser.add_argument("--model", choices=("auto", MODEL), default="auto", help="that requests name")
    parser.add_argument("--functions", action="store_true", help="print each function with its calls and opcodes")
    arguments = parser.parse_args()
    requests, work = traced(arguments.model)
    each = {
        place: count / requests
        for place, count in work.calls.items()
        if place[0] != LIBRARIES and count >= EACH * requests
    }
    files = Counter(file for file, _ in each)
    homes = Counter("/".join(Path(file).parts[:2]) for file, _ in each)
    spent: dict[str, Counter[str]] = {"opcodes": Counter(), "C calls": Counter()}
    for counts, by_home in zip((work.opcodes, work.c_calls), spent.values(), strict=True):
        for (file, _), count in counts.items():
            by_home["/".join(Path(file).parts[:2])] += count
    for file, count in sorted(files.items()):
        print(f"{count:>5} {file}")
        if arguments.functions:
            for (of, name), rate in sorted(each.items()):
                if of == file:
                    print(f"{rate:>12.1f} {work.opcodes[of, name] / requests:>7.0f} {name}")
    print(f"\n{requests} requests for {arguments.model}, {sum(each.values()):,.0f} calls of product functions each")
    print(f"{'functions':>9} {'opcodes':>9} {'C calls':>9}  by member, for each request")
    for home, opcodes in spent["opcodes"].most_common():
        if opcodes >= requests:
            print(f"{homes[home]:>9} {opcodes / requests:>9,.0f} {spent['C calls'][home] / requests:>9,.0f}  {home}")
    opcodes, c_calls = (counts.total() / requests for counts in spent.values())
    print(f"{len(each):>9} {opcodes:>9,.0f} {c_calls:>9,.0f}  in all")
    met = [len(each) <= FUNCTIONS_BAR, len(files) <= FILES_BAR]
    for what, figure, bar in (("functions", len(each), FUNCTIONS_BAR), ("files", len(files), FILES_BAR)):
        print(
            f"{'met    ' if figure <= bar else 'NOT met'}  {what} touched by one warm request: {figure} (bar: ≤ {bar})"
        )
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
