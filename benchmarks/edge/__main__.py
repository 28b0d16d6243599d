"""The savings of the edge's own HTTP client, and the time until engines see that a client hung up.

python -m benchmarks.edge [--seconds 3]
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from benchmarks.edge.hang_ups import PHASES, measure
from benchmarks.machine import describe
from benchmarks.overhead.cpu import Meter
from benchmarks.overhead.load import closed_loop
from benchmarks.overhead.stack import MODEL, backend
from pointsman_apis import READ

HANG_UP_BAR_MS = 250.0
CONNECTIONS = 16


@contextmanager
def _relay(kind: str, url: str, folder: Path) -> Generator[tuple[str, int]]:
    port_file = folder / kind
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.edge.relay", kind, url, str(port_file)])
    try:
        while not port_file.exists() or not port_file.read_text():
            if process.poll() is not None:
                raise RuntimeError(f"the relay ended with {process.returncode}")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port_file.read_text()}", process.pid
    finally:
        process.kill()
        process.wait()
        port_file.unlink(missing_ok=True)


def _cost(kind: str, engine: str, folder: Path, body: bytes, seconds: float) -> float:
    """CPU microseconds of the relay for one request."""
    with _relay(kind, engine, folder) as (url, pid):
        target = f"{url}/v1/chat/completions"
        uvloop.run(closed_loop(target, body, CONNECTIONS, 0.5))
        meter = Meter({kind: pid})
        samples = uvloop.run(closed_loop(target, body, CONNECTIONS, seconds))
        return meter.read()[kind] / len(samples.latencies) * 1e6


def main() -> int:
    """Exit status 0 when every bar is met."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3.0)
    seconds = options.parse_args().seconds
    print(f"machine: {describe()}\n")
    print(f"CPU µs of a bare relay for one request, 1 KB, {CONNECTIONS} connections, three runs in turn:")
    with TemporaryDirectory() as name, backend(Path(name), 16) as (engine, _):
        for stream in (False, True):
            body = json.dumps({"model": MODEL, "stream": stream, "prompt": "x" * 1024}).encode()
            pairs = [
                (_cost("own", engine, Path(name), body, seconds), _cost("aiohttp", engine, Path(name), body, seconds))
                for _ in range(3)
            ]
            for own, aiohttp in pairs:
                what = "streamed" if stream else "whole"
                print(f"  {what:9} own {own:6.1f}   aiohttp {aiohttp:6.1f}   saved {aiohttp - own:6.1f}")
    print("\nms from 50 clients' hanging up at once until each engine heard of it:")
    met = True
    for path in (api.path for api in READ):
        for phase in PHASES:
            found = asyncio.run(measure(phase, path, 4))
            p50, p99 = found[len(found) // 2], found[int(len(found) * 0.99)]
            in_time = p99 <= HANG_UP_BAR_MS
            met &= in_time
            verdict = "met" if in_time else "NOT met"
            print(f"  {path:22}{phase:22} p50 {p50:6.1f}   p99 {p99:6.1f}   {verdict} (bar: {HANG_UP_BAR_MS:g})")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
