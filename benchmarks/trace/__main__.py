"""The functions and files of the product that one warm request touches.

`python -m benchmarks.trace [--functions]`: starts one bundle as `pointsman up` does, with a model selector (`auto.yaml`
of `benchmarks.overhead`), warms it, counts every call of a product function while it serves further requests one after
the other, and prints the functions that were called for each of them, and the files that these are in. Calls of
comprehensions and nested functions count for the function around them. The calls of an equally long time without
requests, those of timers, are subtracted.
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
from typing import Final
from urllib.parse import urljoin

import uvloop

from benchmarks.overhead.__main__ import AUTO, PATH, Case
from benchmarks.overhead.load import closed_loop
from benchmarks.overhead.stack import gateway

FUNCTIONS_BAR: Final = 250
FILES_BAR: Final = 80
WARM_S: Final = 2.0
TRACED_S: Final = 2.0
SETTLES_S: Final = 1.0
"""Until what requests leave behind is done, e.g. the last batch of events."""
EACH: Final = 0.9
"""Calls a request from which on a function counts as part of every request."""
ROOT: Final = Path(__file__).resolve().parents[2]
HOMES: Final = ("contracts", "shared", "services", "tools")


def product(file: str) -> str | None:
    """The file's path in the repository; None when it isn't the product's."""
    path = Path(file)
    if not path.is_relative_to(ROOT):
        return None
    place = path.relative_to(ROOT)
    return str(place) if place.parts[0] in HOMES else None


def counted(rows: list[tuple[str, str, int]]) -> Counter[tuple[str, str]]:
    """Calls by file and function."""
    calls: Counter[tuple[str, str]] = Counter()
    for file, name, count in rows:
        place = product(file)
        if place is not None and name != "<module>":
            calls[place, name.partition(".<locals>")[0]] += count
    return calls


def traced() -> tuple[int, Counter[tuple[str, str]]]:
    """Requests that were served, and the bundle's calls for them."""
    with TemporaryDirectory(prefix="pointsman-trace-") as folder:
        file = Path(folder) / "calls"
        os.environ["POINTSMAN_TRACE_FILE"] = str(file)
        os.environ["PYTHONPATH"] = str(Path(__file__).with_name("in_process"))
        with gateway(("--config", str(AUTO))) as running:
            pid = running.pids["gateway"]
            url, body = urljoin(running.door, PATH), Case(1, stream=False, model="auto").body()
            uvloop.run(closed_loop(url, body, 1, WARM_S))
            os.kill(pid, signal.SIGUSR2)
            served = uvloop.run(closed_loop(url, body, 1, TRACED_S))
            calls = stopped(pid, file)
            time.sleep(SETTLES_S)
            os.kill(pid, signal.SIGUSR2)
            time.sleep(TRACED_S)
            calls.subtract(stopped(pid, file))
            return len(served.latencies), calls


def stopped(pid: int, file: Path) -> Counter[tuple[str, str]]:
    """The process's calls since it began to count; it stops."""
    os.kill(pid, signal.SIGUSR2)
    written = file.with_name(f"{file.name}.{pid}")
    deadline = time.monotonic() + 10
    while not written.exists():
        if time.monotonic() > deadline:
            raise SystemExit("the bundle wrote no calls")
        time.sleep(0.05)
    calls = counted(json.loads(written.read_text()))
    written.unlink()
    return calls


def main() -> int:
    """Exit status 0 when both bars are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace", description=__doc__)
    parser.add_argument("--functions", action="store_true", help="print each function and its calls a request")
    arguments = parser.parse_args()
    requests, calls = traced()
    each = {place: count / requests for place, count in calls.items() if count >= EACH * requests}
    files = Counter(file for file, _ in each)
    homes = Counter("/".join(Path(file).parts[:2]) for file, _ in each)
    for file, count in sorted(files.items()):
        print(f"{count:>5} {file}")
        if arguments.functions:
            for (of, name), rate in sorted(each.items()):
                if of == file:
                    print(f"{rate:>12.1f} {name}")
    print(f"\n{requests} requests, {sum(each.values()):,.0f} calls each; functions by member:")
    for home, count in homes.most_common():
        print(f"{count:>5} {home}")
    met = [len(each) <= FUNCTIONS_BAR, len(files) <= FILES_BAR]
    for what, figure, bar in (("functions", len(each), FUNCTIONS_BAR), ("files", len(files), FILES_BAR)):
        print(
            f"{'met    ' if figure <= bar else 'NOT met'}  {what} touched by one warm request: {figure} (bar: ≤ {bar})"
        )
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
