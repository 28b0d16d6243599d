"""The functions and files of the product that one warm request touches, and the interpreter's work for it.

`python -m benchmarks.trace [--model auto] [--policy] [--envoy] [--recorder] [--flight] [--separate] [--bundles 2]
[--connections 32] [--stream] [--functions]`: starts one bundle as `pointsman up` does, with a model selector
(`auto.yaml` of `benchmarks.overhead`), warms it, counts every call while it serves further requests one after the
other, and prints the product functions that were called for each of them, and the files that these are in. Calls of
comprehensions and nested functions count for the function around them. The calls of an equally long time without
requests, those of timers, are subtracted. `--policy`: with the configuration and the requests of `benchmarks.policy`,
which has no bars here. `--envoy`: through Envoy and the epp-adapter. `--recorder`: with a recorder, whose calls are
then in the figures. `--flight`: with a flight log of every pool. `--separate`: a process for each service. `--bundles`:
so many bundles; what the others do for a request is then in the figures. `--connections`: so many requests at a time,
which shows work that grows with them; their number then shares the work of a turn of the event loop. The bars are those
of one bundle and one connection.

Beside calls it counts opcodes and calls into C, those of libraries too, in every thread. The counts hardly change from
run to run, whatever else the machine does, so they show a change of some percent that times don't. Opcodes aren't time:
a loop that moves into calls of C can have fewer of them and take longer. So before it counts, it prints the CPU time of
the processes for each request, of as many seconds without tracing; `benchmarks.paired` compares two versions by it.
"""

import argparse
import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from urllib.parse import urljoin

import uvloop
import yaml

from benchmarks.overhead.__main__ import AUTO, PATH, Case
from benchmarks.overhead.cpu import Meter
from benchmarks.overhead.load import Samples, closed_loop
from benchmarks.overhead.stack import MODEL, gateway
from benchmarks.policy.__main__ import loop as policy_loop
from benchmarks.policy.__main__ import written as write_policy

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
OTHERS: Final = frozenset({"backend", "nats", "envoy"})
"""Processes that aren't the gateway's own."""
LIBRARY_FUNCTIONS: Final = 25
"""Of libraries, those with the most opcodes are printed."""


def product(file: str) -> str | None:
    """The file's path in the repository; None when it isn't the product's."""
    path = Path(file)
    if not path.is_relative_to(ROOT):
        return None
    place = path.relative_to(ROOT)
    return str(place) if place.parts[0] in HOMES else None


Place = tuple[str, str]
"""A file of the product and a function in it; for libraries the function's name has its file."""


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
        function = name.partition(".<locals>")[0]
        if home is None or name == "<module>":
            place = LIBRARIES, f"{'/'.join(Path(file).parts[-2:])} {function}"
        else:
            place = home, function
        for counter, count in zip(work, counts, strict=True):
            counter[place] += count
    return work


Load = Callable[[str, float], Coroutine[None, None, Samples]]
"""Sends requests to a URL for a number of seconds."""


def plain(model: str, file: Path, connections: int, *, stream: bool) -> tuple[Path, Load]:
    """The configuration in `file`, and requests that name the model."""
    body = Case(1, stream=stream, model=model).body()
    return file, lambda url, seconds: closed_loop(url, body, connections, seconds)


def recording(folder: Path) -> Path:
    """A configuration whose pools keep a flight log."""
    document = yaml.safe_load(AUTO.read_text(encoding="utf-8"))
    for pool in document["pools"].values():
        pool["flight"] = {"keep": "2GiB", "segment": "5min"}
    file = folder / "flight.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def policy(folder: Path, connections: int) -> tuple[Path, Load]:
    """The configuration of `benchmarks.policy`, and its requests."""
    file, token = write_policy(folder)
    numbers = itertools.count()
    return file, lambda url, seconds: policy_loop(url, token, numbers, connections, seconds)


def traced(
    model: str | None,
    seconds: float,
    connections: int,
    *,
    envoy: bool,
    recorder: bool,
    flight: bool,
    separate: bool,
    bundles: int,
    stream: bool,
) -> tuple[int, dict[str, Work], dict[str, float]]:
    """Requests that were served, the work for them of each process, by its name, and its CPU microseconds for a request
    while nothing is counted. Without a model the requests are those of `policy`.
    `envoy`: they come through an Envoy. `separate`: each service is a process; without it there are `bundles`."""
    with TemporaryDirectory(prefix="pointsman-trace-") as folder:
        calls = Path(folder) / "calls"
        os.environ["POINTSMAN_TRACE_FILE"] = str(calls)
        os.environ["PYTHONPATH"] = str(Path(__file__).with_name("in_process"))
        config, load = (
            policy(Path(folder), connections)
            if model is None
            else plain(model, recording(Path(folder)) if flight else AUTO, connections, stream=stream)
        )
        shape = ("--separate",) if separate else ("--replicas", f"frontend={bundles}")
        options = ("--config", str(config), *(("--envoy",) if envoy else ()), *shape)
        with gateway(options, recorder=recorder) as running:
            pids = {name: pid for name, pid in running.pids.items() if name not in OTHERS}
            url = urljoin(running.door, PATH)
            uvloop.run(load(url, WARM_S))
            if recorder:
                time.sleep(SETTLES_S)  # what it still has to read is of these requests
            meter = Meter(pids)
            timed = len(uvloop.run(load(url, seconds)).latencies)
            if recorder:
                time.sleep(SETTLES_S)
            cpu_us = {name: 1e6 * used / timed for name, used in meter.read().items()}
            switch(pids)
            served = uvloop.run(load(url, seconds))
            if recorder:
                time.sleep(SETTLES_S)  # its last batch belongs to these requests
            work = stopped(pids, calls)
            time.sleep(SETTLES_S)
            switch(pids)
            time.sleep(seconds)
            idle = stopped(pids, calls)
            return len(served.latencies), {name: work[name].without(idle[name]) for name in work}, cpu_us


def switch(pids: Mapping[str, int]) -> None:
    """Begin to count, or end."""
    for pid in pids.values():
        os.kill(pid, signal.SIGUSR2)


def stopped(pids: Mapping[str, int], file: Path) -> dict[str, Work]:
    """The processes' work since they began to count; they stop."""
    switch(pids)
    written = {name: file.with_name(f"{file.name}.{pid}") for name, pid in pids.items()}
    deadline = time.monotonic() + 10
    while missing := [name for name, each in written.items() if not each.exists()]:
        if time.monotonic() > deadline:
            raise SystemExit(f"no calls were written by {', '.join(missing)}")
        time.sleep(0.05)
    work = {name: counted(json.loads(each.read_text())) for name, each in written.items()}
    for each in written.values():
        each.unlink()
    return work


def main() -> int:
    """Exit status 0 when both bars are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace", description=__doc__)
    parser.add_argument("--model", choices=("auto", MODEL), default="auto", help="that requests name")
    parser.add_argument("--policy", action="store_true", help="trace the whole policy of benchmarks.policy")
    parser.add_argument("--envoy", action="store_true", help="ask through Envoy, by way of the epp-adapter")
    parser.add_argument("--recorder", action="store_true", help="with a recorder")
    parser.add_argument("--flight", action="store_true", help="with a flight log of every pool")
    parser.add_argument("--separate", action="store_true", help="with a process for each service")
    parser.add_argument("--bundles", type=int, default=1, help="so many bundles")
    parser.add_argument("--connections", type=int, default=1, help="so many requests at a time")
    parser.add_argument("--stream", action="store_true", help="ask for streamed answers, which have no bars here")
    parser.add_argument("--seconds", type=float, default=TRACED_S, help="for which requests are counted")
    parser.add_argument("--functions", action="store_true", help="print each function with its calls and opcodes")
    arguments = parser.parse_args()
    model = None if arguments.policy else arguments.model
    requests, processes, cpu_us = traced(
        model,
        arguments.seconds,
        arguments.connections,
        envoy=arguments.envoy,
        recorder=arguments.recorder,
        flight=arguments.flight,
        separate=arguments.separate,
        bundles=arguments.bundles,
        stream=arguments.stream,
    )
    work = Work(Counter(), Counter(), Counter())
    for own in processes.values():
        for counter, count in zip(work, own, strict=True):
            counter.update(count)
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
    if arguments.functions:
        found = [(count, name) for (home, name), count in work.opcodes.items() if home == LIBRARIES]
        print(f"      {LIBRARIES}")
        for count, name in sorted(found, reverse=True)[:LIBRARY_FUNCTIONS]:
            print(f"{work.calls[LIBRARIES, name] / requests:>12.1f} {count / requests:>7.0f} {name}")
    shape = "the policy" if arguments.policy else arguments.model
    print(f"\n{requests} requests for {shape}, {sum(each.values()):,.0f} calls of product functions each")
    print(f"{'functions':>9} {'opcodes':>9} {'C calls':>9}  by member, for each request")
    for home, opcodes in spent["opcodes"].most_common():
        if opcodes >= requests:
            print(f"{homes[home]:>9} {opcodes / requests:>9,.0f} {spent['C calls'][home] / requests:>9,.0f}  {home}")
    opcodes, c_calls = (counts.total() / requests for counts in spent.values())
    print(f"{len(each):>9} {opcodes:>9,.0f} {c_calls:>9,.0f}  in all")
    print(f"{sum(cpu_us.values()):>9,.0f} µs of CPU for each request, without tracing")
    if len(processes) > 1:
        print(f"{'CPU µs':>9} {'opcodes':>9} {'C calls':>9}  by process")
        for name, own in processes.items():
            opcodes, c_calls = (counts.total() / requests for counts in (own.opcodes, own.c_calls))
            print(f"{cpu_us[name]:>9,.0f} {opcodes:>9,.0f} {c_calls:>9,.0f}  {name}")
    met = [len(each) <= FUNCTIONS_BAR, len(files) <= FILES_BAR]
    for what, figure, bar in (("functions", len(each), FUNCTIONS_BAR), ("files", len(files), FILES_BAR)):
        print(
            f"{'met    ' if figure <= bar else 'NOT met'}  {what} touched by one warm request: {figure} (bar: ≤ {bar})"
        )
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
