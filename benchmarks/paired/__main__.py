"""CPU time and latency of a request in this checkout against another one, in one run.

`python -m benchmarks.paired OTHER [--rounds 30] [--auto]`: starts one bundle of each checkout, each in its own
environment (`make environment` in both), in front of the same backend, and sends the same bursts to both in turn. Both
see the same machine, so the median of the ratios of neighbouring bursts tells a change of a few percent that two runs
one after the other don't. CPU time is that of the bundle and its NATS server. Prints the ratio this/other of CPU time a
request and of the median latency for whole and streamed answers, at 1 and at 32 connections. The bar is the one of
every change: CPU time a request at most 1.03 of before.
"""

import argparse
import statistics
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urljoin

import uvloop

from benchmarks.overhead.__main__ import AUTO, PATH, Case
from benchmarks.overhead.cpu import Meter
from benchmarks.overhead.load import closed_loop
from benchmarks.overhead.stack import MODEL, backend, started

BAR: Final = 1.03
ROUNDS: Final = 30
BURST_S: Final = 1.0
TOKENS: Final = 16
CONNECTIONS: Final = (1, 32)


class Gateway:
    """One checkout's bundle: where it listens, and its processes."""

    def __init__(self, door: str, pids: dict[str, int]) -> None:
        self._url = urljoin(door, PATH)
        self._pids = pids

    def burst(self, case: Case, connections: int, seconds: float) -> tuple[float, float]:
        """CPU microseconds a request, and the median latency in ms. SystemExit where a request fails."""
        meter = Meter(self._pids)
        samples = uvloop.run(closed_loop(self._url, case.body(), connections, seconds))
        spent = sum(meter.read().values())
        if samples.failed or not samples.latencies:
            raise SystemExit(f"{self._url} failed {samples.failed} requests: {samples.failures}")
        return spent * 1e6 / len(samples.latencies), samples.quantile(0.5)


@contextmanager
def gateway(checkout: Path, engine: str, folder: Path, *, auto: bool) -> Generator[Gateway]:
    """A bundle of this checkout in front of the engine, gone afterwards."""
    folder.mkdir()
    options = ["--engine", engine, "--replicas", "recorder=0", *(["--config", str(AUTO)] if auto else [])]
    with started(options, folder, command=checkout / ".venv/bin/pointsman") as state:
        yield Gateway(state["door"], {each["name"]: each["pid"] for each in state["processes"]})


def compare(own: Gateway, other: Gateway, case: Case, connections: int, rounds: int) -> tuple[float, float]:
    """Medians of the ratios own/other of CPU time and of latency."""
    for each in (own, other):
        each.burst(case, connections, BURST_S)
    ratios: list[tuple[float, float]] = []
    for turn in range(rounds):
        pair = (own, other) if turn % 2 else (other, own)
        figures = {each: each.burst(case, connections, BURST_S) for each in pair}
        ratios.append((figures[own][0] / figures[other][0], figures[own][1] / figures[other][1]))
    cpu, latency = zip(*ratios, strict=True)
    return statistics.median(cpu), statistics.median(latency)


def main() -> int:
    """Exit status 0 when the bar is met by every case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paired", description=__doc__)
    parser.add_argument("other", type=Path, help="a checkout of the other version, with its environment")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of bursts for each case")
    parser.add_argument("--auto", action="store_true", help="leave the model to a selector")
    arguments = parser.parse_args()
    worst = 0.0
    with TemporaryDirectory(prefix="pointsman-paired-") as name, ExitStack() as stack:
        folder = Path(name)
        engine, _ = stack.enter_context(backend(folder, TOKENS))
        own, other = (
            stack.enter_context(gateway(checkout, engine, folder / label, auto=arguments.auto))
            for label, checkout in (("own", Path.cwd()), ("other", arguments.other.resolve()))
        )
        print(f"{'this checkout / the other':<32} {'CPU':>7} {'p50':>7}")
        for stream in (False, True):
            for connections in CONNECTIONS:
                case = Case(1, stream=stream, model="auto" if arguments.auto else MODEL)
                cpu, latency = compare(own, other, case, connections, arguments.rounds)
                worst = max(worst, cpu)
                print(f"{case.name}, {connections:>2} connections{'':<8} {cpu:>7.3f} {latency:>7.3f}", flush=True)
    verdict = "met    " if worst <= BAR else "NOT met"
    print(f"{verdict}  CPU time a request against the other checkout: {worst:.3f} (bar: ≤ {BAR})")
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
