"""The flight log: whether every decision of a mixed run replays alike, and what recording costs.

`python -m benchmarks.flight [--requests 20000] [--rate 100]` sends requests to a gateway of real processes with two
schedulers, four simulated engines, adapters, streams, flow control, late binding, and prefill and decode apart;
schedulers are killed, engines restarted and policies changed meanwhile. Then it replays every log.
`--overhead` compares requests/s, CPU and memory with and without flight log, which a gateway begins and ends in turn.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from benchmarks.flight.mixed import fly, replay
from benchmarks.flight.overhead import overhead
from benchmarks.machine import describe


def verdict(what: str, *, met: bool) -> bool:
    """Print one bar and whether it is met."""
    print(f"{'met    ' if met else 'NOT met'}  {what}")
    return met


def mixed(requests: int, rate: float, folder: Path) -> bool:
    """Fly and replay; whether every decision was the same."""
    statuses, done = uvloop.run(fly(folder, requests, rate))
    print(f"{sum(statuses.values())} requests, statuses {dict(statuses)}")
    print(f"meanwhile: {', '.join(done)}")
    found = replay(folder / "flight")
    print(
        f"{found.lives} lives of schedulers, {found.segments} segments, {found.inputs} records, "
        f"{found.bytes / 2**20:.1f} MiB ({found.bytes / max(1, sum(statuses.values())):.0f} bytes a request); "
        f"replayed in {found.seconds:.0f} s"
    )
    for kind, count in sorted(found.decisions.items()):
        print(f"    {count:>8} {kind}")
    print(f"    by policy: {dict(found.policies)}")
    for difference in found.differences[:20]:
        print(f"    {difference}")
    total = sum(found.decisions.values())
    return verdict(
        f"{total} decisions replayed, {len(found.differences)} differences (bar: 0)",
        met=not found.differences and total >= requests,
    )


def main() -> int:
    """Exit status 0 when the bars are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flight", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="of the mixed run; 0 leaves it out")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second of the mixed run")
    parser.add_argument("--folder", type=Path, help="keep the logs here")
    parser.add_argument("--overhead", action="store_true", help="measure requests/s and memory")
    parser.add_argument("--seconds", type=float, default=60.0, help="of --overhead, after a warm-up")
    options = parser.parse_args()
    print(f"machine: {describe()}")
    met: list[bool] = []
    if options.requests:
        with TemporaryDirectory(prefix="pointsman-flight-") as name:
            folder = options.folder or Path(name)
            folder.mkdir(parents=True, exist_ok=True)
            met.append(mixed(options.requests, options.rate, folder))
    if options.overhead:
        cost = overhead(options.seconds)
        print(f"CPU for a request: {cost.cpu}, {cost.cpu_us[0]:.0f} us without and {cost.cpu_us[1]:.0f} us with")
        rate = f"requests/s with flight log: {cost.rate} of those without (bar: ≥ 97%)"
        met.append(verdict(rate, met=cost.rate.middle >= 0.97))
        met.append(verdict(f"{cost.failed} requests failed (bar: 0)", met=not cost.failed))
        met.append(verdict(f"resident memory: {cost.memory:+.1f} MiB (bar: ≤ +50)", met=cost.memory <= 50.0))
        hourly = f"{cost.hourly / 2**20:.0f} MiB"
        print(f"an hour at 200 requests/s of this load takes {hourly}, with a snapshot for every few thousand requests")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
