"""Time until the bus knows that an engine stopped, died, or is back; and the cost of an agent at rest.

python -m benchmarks.engine_faults

A simulated engine, its agent and a NATS server, all real processes. Times are from the signal to the load report.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.overhead.cpu import Meter

from pointsman_contracts.subjects import ANY
from pointsman_contracts.worker import WorkerLoad
from pointsman_testing import Processes, eventually
from pointsman_testing.nats_server import new_nats_server
from pointsman_testing.observer import observing
from pointsman_testing.stack import EngineProcess

IDLE_S = 5.0


class Times:
    """Milliseconds until each awaited state."""

    def __init__(self, loads: list[WorkerLoad]) -> None:
        self._loads = loads
        self._found: dict[str, list[float]] = {}

    async def until(self, what: str, state: str, action: Callable[[], None] = lambda: None) -> None:
        """Do something, then wait for the first report with this state."""
        seen = len(self._loads)
        started = time.perf_counter()
        action()
        await eventually(lambda: any(load.state == state for load in self._loads[seen:]), timeout=20)
        self._found.setdefault(what, []).append((time.perf_counter() - started) * 1000)

    def show(self) -> None:
        """One line for each."""
        for what, found in self._found.items():
            ordered = sorted(found)
            median = ordered[len(ordered) // 2]
            print(f"  {what:42} median {median:5.0f} ms   worst {ordered[-1]:5.0f} ms   of {len(ordered)}")


async def measure(rounds: int, folder: Path) -> None:
    server, processes = new_nats_server(), Processes(folder)
    await asyncio.to_thread(server.start)
    try:
        async with observing(server.url) as seen:
            loads = seen.listen(WorkerLoad, ANY, ANY)
            engine = EngineProcess("engine-1", processes, folder, speedup=20.0)
            await engine.start()
            engine.start_agent({"POINTSMAN_NATS_URL": server.url})
            await engine.agent.wait_ready()
            meter = Meter({"agent": engine.agent.pid, "engine": engine.process.pid})
            before = len(loads)
            await asyncio.sleep(IDLE_S)
            spent = {name: 100 * seconds / IDLE_S for name, seconds in meter.read().items()}
            print(
                f"idle: agent {spent['agent']:.1f} % of a core, engine {spent['engine']:.1f} %, "
                f"{(len(loads) - before) / IDLE_S:.1f} reports a second"
            )
            times = Times(loads)
            for _ in range(rounds):
                await times.until("SIGSTOP of the engine to unreachable", "unreachable", engine.process.pause)
                await times.until("SIGCONT to serving", "serving", engine.process.resume)
                await times.until("SIGKILL of the engine to unreachable", "unreachable", engine.process.kill)
                await engine.start()
                await times.until("the engine listens again to serving", "serving")
            times.show()
    finally:
        processes.end_all()
        await asyncio.to_thread(server.close)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=10)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(options.parse_args().rounds, Path(folder)))


if __name__ == "__main__":
    main()
