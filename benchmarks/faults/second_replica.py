"""One of two replicas of a stage is gone: nothing may fail."""

from benchmarks.faults.measure import STAGES, Report, answered, longest, mend, traffic
from pointsman_testing.stack import Stack


async def with_a_second_replica(stack: Stack, rate: float, report: Report) -> None:
    """One of two replicas is gone: nothing may fail."""
    for stage in STAGES:
        for how in ("kill", "pause"):
            async with traffic(stack, rate) as running:
                await answered(running, int(rate))
                began = running.now
                getattr(stack.services[stage][0], how)()
                await answered(running, int(2 * rate))
                await mend(stack, stage, how)
                await answered(running, int(rate / 2))
            name = f"{stage}: {'SIGKILL' if how == 'kill' else 'SIGSTOP'} of one of two"
            report.line(f"{name}, failed requests", len(running.failed()), 0, "requests")
            print(f"         {name}, longest answer {longest(running, began):.2f} s")
