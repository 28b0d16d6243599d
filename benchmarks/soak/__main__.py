"""Whether memory stays flat: the resident memory of every process over many requests.

`python -m benchmarks.soak [--requests 200000]` starts the gateway as `pointsman up` does, in front of a backend that
answers at once, warms it with a tenth of the requests, and prints what each process holds then and at the end, at
least one slice of traffic later.
"""

import argparse
import json
import sys
import time
from urllib.parse import urljoin

import uvloop

from benchmarks.machine import describe
from benchmarks.overhead.cpu import resident_mib
from benchmarks.overhead.load import closed_loop
from benchmarks.overhead.stack import MODEL, gateway

BAR = 0.05
"""Growth of resident memory, as a share; a decrease counts as none."""
SLICE_S = 5.0
NOT_OURS = frozenset({"nats", "backend"})
"""Shown and not judged: the NATS server keeps an index of the events in its stream, and the ids of those of the last
two minutes, so that it grows with the number of requests until the stream's limits."""


async def run(requests: int) -> bool:
    """The whole benchmark; whether every process stayed within the bar."""
    print(f"machine: {describe()}")
    bodies = [
        json.dumps(
            {"model": MODEL, "messages": [{"role": "user", "content": f"{index} " * 400}], "max_tokens": 16}
        ).encode()
        for index in range(64)
    ]
    with gateway() as running:
        url = urljoin(running.door, "/v1/chat/completions")
        done = turn = warm_at = 0
        warm: dict[str, float] = {}
        failures: dict[str, int] = {}
        began = time.monotonic()
        while done < requests or turn == warm_at:
            samples = await closed_loop(url, bodies[turn % len(bodies)], 32, SLICE_S)
            if not samples.latencies:
                print(f"NOT met  no request of a slice was answered: {samples.failures or 'no failures'}")
                return False
            done += len(samples.latencies)
            turn += 1
            for reason, count in samples.failures.items():
                failures[reason] = failures.get(reason, 0) + count
            if not warm and done >= requests / 10:
                warm = {name: resident_mib(pid) for name, pid in running.pids.items()}
                warm_at = turn
                print(f"after {done:,} requests, {time.monotonic() - began:.0f} s: warm", flush=True)
        print(f"after {done:,} requests, {time.monotonic() - began:.0f} s; failures: {failures or 'none'}\n")
        met = not failures
        for name, pid in running.pids.items():
            now = resident_mib(pid)
            # Not a number for a process that is gone, which compares as not flat.
            growth = now / warm[name] - 1 if now and warm[name] else float("nan")
            flat = growth <= BAR
            met &= flat or name in NOT_OURS
            verdict = "       " if name in NOT_OURS else "met    " if flat else "NOT met"
            print(f"{verdict}  {name:<20} {warm[name]:>7.1f} MiB → {now:>7.1f} MiB  {growth:>+6.1%}")
    return met


def main() -> int:
    """Exit status 0 when every process stayed flat."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000)
    return 0 if uvloop.run(run(parser.parse_args().requests)) else 1


if __name__ == "__main__":
    sys.exit(main())
