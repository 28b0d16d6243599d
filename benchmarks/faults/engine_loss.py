"""Engines are gone: one, then all."""

import time
from collections.abc import Awaitable, Callable

from benchmarks.faults.measure import Report, answered, traffic
from pointsman_testing import eventually
from pointsman_testing.stack import Stack


async def engines(stack: Stack, rate: float, report: Report) -> None:
    """One engine, then all."""
    victim = stack.engines[0]
    for how in ("kill", "pause"):
        async with traffic(stack, rate) as running:
            await answered(running, int(rate))
            began = running.now
            getattr(victim.process, how)()
            await answered(running, int(3 * rate))
            await back_again(victim.process.resume if how == "pause" else victim.restart)
            await eventually(lambda: any(end.engine == victim.name for end in running.ended[-20:]), timeout=60)
        # A request that went to the missing engine took long, even if another one answered it in the end.
        held = [end.started - began for end in running.ended if end.took > 0.3 or end.status != 200]
        name = "SIGKILL" if how == "kill" else "SIGSTOP"
        report.line(f"engine: {name}, last request that was sent to it", max(held, default=0.0), 1.5, "s")
    async with traffic(stack, rate) as running:
        await answered(running, int(rate))
        for engine in stack.engines:
            engine.process.kill()
        await eventually(lambda: running.statuses()[503] >= rate, timeout=30)
        await stack.engines[0].restart()
        listening = time.monotonic()
        await answered(running, 1)
        report.line("all engines killed, serving after the first answers", time.monotonic() - listening, 2.0, "s")
        await stack.engines[1].restart()


async def back_again(action: Callable[[], Awaitable[None] | None]) -> None:
    """Call what may be a coroutine function."""
    outcome = action()
    if outcome is not None:
        await outcome
