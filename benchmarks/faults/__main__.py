"""How long failures hurt: stages, engines and the bus are killed or stopped under traffic.

`python -m benchmarks.faults [--rate 200]` starts gateways of real processes with two simulated engines each, breaks
one part after the other, and prints what clients saw: failed requests, the longest wait for an answer of any kind, and
the time until everything worked again.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from benchmarks.machine import describe
from pointsman_testing import eventually
from pointsman_testing.stack import Stack, StackFactory
from pointsman_testing.traffic import Traffic

STAGES = ("preprocessor", "profile-picker", "model-selector", "scheduler")
BODY = {"model": "auto", "prompt": "a prompt that all of these requests share", "max_tokens": 2}
SAMPLE = Path(__file__).resolve().parents[2] / "pointsman.yaml"


class Report:
    """Prints one line a measurement and keeps whether all bars were met."""

    def __init__(self) -> None:
        self.met = True

    def line(self, what: str, figure: float, bar: float, unit: str) -> None:
        """One measurement against the most that it may be."""
        met = figure <= bar
        self.met &= met
        print(f"{'met    ' if met else 'NOT met'}  {what:<66} {figure:>6.2f} {unit:<9} (bar: ≤ {bar:g})", flush=True)


def traffic(stack: Stack, rate: float) -> Traffic:
    """The requests of every measurement."""
    return Traffic(f"{stack.door}/v1/completions", rate, BODY)


async def answered(running: Traffic, count: int) -> None:
    """Wait until so many more requests ended with 200."""
    target = running.statuses()[200] + count
    await eventually(lambda: running.statuses()[200] >= target, timeout=60)


async def refused(running: Traffic, since: float, count: float) -> None:
    """Wait until so many requests sent since then ended with 503."""
    await eventually(lambda: running.statuses(since=since)[503] >= count, timeout=30)


def longest(running: Traffic, since: float) -> float:
    """The longest that a request sent since then took to end, in seconds."""
    return max((end.took for end in running.ended if end.started >= since), default=0.0)


def steady_again(running: Traffic, since: float) -> float:
    """Seconds from `since` until the last request that failed was sent."""
    return max((end.started - since for end in running.failed() if end.started >= since), default=0.0)


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


async def without_a_second_replica(stack: Stack, rate: float, report: Report) -> None:
    """The only replica is gone: 503 within a second, and healthy within two of its return."""
    for stage in STAGES:
        for how in ("kill", "pause"):
            async with traffic(stack, rate) as running:
                await answered(running, int(rate))
                began = running.now
                getattr(stack.services[stage][0], how)()
                await refused(running, began, rate)
                await mend(stack, stage, how)
                back = running.now
                await answered(running, int(2 * rate))
            name = f"{stage}: {'SIGKILL' if how == 'kill' else 'SIGSTOP'} of the only one"
            report.line(f"{name}, longest wait for 503", wait_for(running, 503, began), 1.0, "s")
            report.line(f"{name}, healthy after its return", steady_again(running, back), 2.0, "s")


def wait_for(running: Traffic, status: int, since: float) -> float:
    """The longest that a request with this status took, in seconds."""
    return max((end.took for end in running.ended if end.status == status and end.started >= since - 1), default=0.0)


async def mend(stack: Stack, stage: str, how: str) -> None:
    """Bring the replica back; returns when it is ready."""
    if how == "kill":
        await stack.restart(stage, 0)
    else:
        stack.services[stage][0].resume()


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
        # A request that went to the engine while it was gone took long, whoever answered it in the end.
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


async def run(rate: float) -> bool:
    """Everything; whether every bar was met."""
    print(f"machine: {describe()}\n{rate:g} requests/s, open loop\n")
    report = Report()
    with TemporaryDirectory(prefix="pointsman-faults-") as folder:
        factory = StackFactory(Path(folder), SAMPLE)
        async with factory.start(replicas=dict.fromkeys(STAGES, 2), hop_budget=None) as stack:
            await with_a_second_replica(stack, rate, report)
        async with factory.start(hop_budget=None) as stack:
            await without_a_second_replica(stack, rate, report)
            await bus_restart(stack, rate, report)
            await engines(stack, rate / 2, report)
    return report.met


def main() -> int:
    """Exit status 0 when every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    return 0 if uvloop.run(run(parser.parse_args().rate)) else 1


if __name__ == "__main__":
    sys.exit(main())
