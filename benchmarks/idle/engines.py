"""Engines at rest, any number of them in one process, each on a port of its own.

`python -m benchmarks.idle.engines 100`: prints their URLs on one line as JSON, then answers until it is ended.
"""

import asyncio
import json
import sys

import uvloop

from pointsman_testing.fake_engine import FakeEngine

FORGET_EVERY_S = 5.0


async def serve(count: int) -> None:
    """As many engines as are wanted, without end."""
    engines = [FakeEngine() for _ in range(count)]
    for engine in engines:
        await engine.__aenter__()
    sys.stdout.write(json.dumps([engine.url for engine in engines]) + "\n")
    sys.stdout.flush()
    while True:
        await asyncio.sleep(FORGET_EVERY_S)
        for engine in engines:
            engine.received.clear()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
