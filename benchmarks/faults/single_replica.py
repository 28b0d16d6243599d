"""The only replica of a stage is gone: requests wait for it, and none fails that isn't older than
`edge.silent_wait`."""

import asyncio
from typing import Final

from benchmarks.faults.measure import STAGES, Report, answered, longest, mend, traffic
from pointsman_testing.stack import Stack

RATE: Final = 20.0
"""Requests a second: what waits while a process starts again, twelve at once or a hundred, is all answered at once."""
GONE_S: Final = 2.0
"""Until it is started again."""
SETTLED_S: Final = 1.0
"""After its return: what waited is answered by then."""


async def without_a_second_replica(stack: Stack, report: Report) -> None:
    """Kill and stop each stage under traffic."""
    for stage in STAGES:
        for how in ("kill", "pause"):
            async with traffic(stack, RATE) as running:
                await answered(running, int(RATE))
                began = running.now
                getattr(stack.services[stage][0], how)()
                await asyncio.sleep(GONE_S)
                await mend(stack, stage, how)
                back = running.now
                await asyncio.sleep(2 * SETTLED_S)
                await answered(running, int(RATE))
            name = f"{stage}: {'SIGKILL' if how == 'kill' else 'SIGSTOP'} of the only one"
            report.line(f"{name}, failed requests", len(running.failed()), 0, "requests")
            report.line(f"{name}, longest wait later", longest(running, back + SETTLED_S), 1.0, "s")
            print(f"         {name}, gone for {back - began:.2f} s, longest answer {longest(running, began):.2f} s")
