"""NATS is gone for a while."""

import asyncio

from benchmarks.faults.measure import Report, answered, longest, refused, steady_again, traffic
from pointsman_testing.stack import Stack


async def bus_restart(stack: Stack, rate: float, report: Report) -> None:
    """NATS is killed and started again."""
    async with traffic(stack, rate) as running:
        await answered(running, int(rate))
        began = running.now
        await asyncio.to_thread(stack.nats.kill)
        await refused(running, began, rate)
        await asyncio.to_thread(stack.nats.start)
        back = running.now
        await answered(running, int(2 * rate))
    report.line("NATS: SIGKILL and restart, longest wait for an answer", longest(running, began), 2.0, "s")
    report.line("NATS: SIGKILL and restart, healthy after its return", steady_again(running, back), 3.0, "s")
