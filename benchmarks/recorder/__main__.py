"""The recorder's cost of a request: CPU of its process while events arrive at the rate of a gateway.

`python -m benchmarks.recorder [--rate 1000] [--seconds 10]`: a NATS server, a recorder, and a publisher of the two
events that each request has: a decision between four endpoints with its explanation, and its end. Prints the CPU a
request of the recorder and of the NATS server, and whether every request was counted once.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import uvloop
from benchmarks.machine import describe
from benchmarks.overhead.cpu import resident_mib, seconds

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import StageReport, Target
from pointsman_contracts.response import Attempt, ResponseCompleted, Usage
from pointsman_contracts.scheduling import CandidateColumns, ProfileRun, RequestScheduled
from pointsman_contracts.usage import UsageQuery, UsageSums
from pointsman_runtime.bus.errors import BusError, NoListener, NoReply
from pointsman_testing import Processes, eventually
from pointsman_testing.nats_server import LocalNatsServer
from pointsman_testing.observer import Observer, observing

BAR_US: Final = 100.0
"""CPU microseconds of the recorder for a request."""
WORKERS: Final = ("engine-0", "engine-1", "engine-2", "engine-3")
SCORERS: Final = ("prefix", "queue", "kv-usage", "load")
TARGET: Final = Target(model="llama-8b", pool="llama-8b")


def scheduled(number: int, at_ms: int) -> RequestScheduled:
    """A decision with its explanation."""
    scores: dict[str, tuple[float | None, ...]] = dict.fromkeys(SCORERS, (0.25, 0.5, 0.75, 1.0))
    weights: dict[str, float] = dict.fromkeys(SCORERS, 1.0)
    columns = CandidateColumns(
        workers=WORKERS, ages_ms=(12.5, 80.25, 3.0, 40.0), running=(1, 2, 3, 4), waiting=(0, 0, 1, 0),
        kv_usage=(0.1, 0.2, 0.3, 0.4), matched_tokens=(0, 64, 128, 0), scores=scores, totals=(1.0, 1.5, 2.0, 2.5),
    )  # fmt: skip
    return RequestScheduled(
        request_id=f"req-{number:032x}", source="scheduler-host-1", sequence=number, at_ms=at_ms,
        edge="frontend-host-1", pool="llama-8b", model="llama-8b", target=TARGET, profile="standard", primary="default",
        runs=(ProfileRun(profile="default", chosen=WORKERS[:2], weights=weights, candidates=columns),),
        endpoints=WORKERS[:2], reason="engine-3 has the highest total, 2.5: load 1.0, prefix 1.0", prompt_tokens=250,
        decided_us=140.0, revision=1, policy_hash="0123456789abcdef",
        trail=tuple(
            StageReport(stage=stage, instance=f"{stage}-host-1", took_ms=0.2, outcome="passed")
            for stage in ("preprocessor", "profile-picker", "scheduler")
        ),
    )  # fmt: skip


def completed(number: int, at_ms: int) -> ResponseCompleted:
    """The end of a request."""
    return ResponseCompleted(
        request_id=f"req-{number:032x}", source="frontend-host-1", sequence=number, at_ms=at_ms, pool="llama-8b",
        worker="engine-3", model="llama-8b", target=TARGET, profile="standard", api="chat.completions", status=200,
        outcome="ok", attempts=(Attempt(worker="engine-3", outcome="answered", status=200, took_ms=12.0),),
        decided_ms=1.5, ttft_ms=13.0, duration_ms=14.0, usage=Usage(prompt_tokens=250, completion_tokens=16),
        identity=Identity(tenant=f"tenant-{number % 8}"), served="llama-8b", bytes_out=400,
    )  # fmt: skip


async def publish(seen: Observer, first: int, count: int, rate: float) -> None:
    """Events of `count` requests at `rate` a second."""
    began = time.perf_counter()
    for index in range(count):
        if (wait := began + index / rate - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        now_ms = time.time_ns() // 1_000_000
        seen.bus.publish(scheduled(first + index, now_ms), "llama-8b")
        seen.bus.publish(completed(first + index, now_ms), "llama-8b")


async def summed(seen: Observer) -> int:
    """Requests in the sums of the ledger."""
    try:
        rows = UsageSums.decode(await seen.bus.ask(UsageQuery(by=()), timeout=5)).rows
    except (NoReply, NoListener, BusError):
        return 0
    return rows[0].requests if rows else 0


def met(bar_holds: bool) -> str:
    """The printed form of a bar."""
    return "met    " if bar_holds else "NOT met"


async def run(rate: float, length_s: float) -> bool:
    """The whole benchmark; whether every bar is met."""
    print(f"machine: {describe()}")
    server = LocalNatsServer()
    server.start()
    try:
        with TemporaryDirectory(prefix="pointsman-bench-") as folder:
            processes = Processes(Path(folder))
            try:
                async with observing(server.url) as seen:
                    env = {"POINTSMAN_NATS_URL": server.url, "POINTSMAN_STATE_DIR": str(Path(folder) / "state")}
                    recorder = processes.start("pointsman-recorder", env=env)
                    await recorder.wait_ready()
                    warm, count = int(rate), int(rate * length_s)
                    await publish(seen, 1, warm, rate)

                    async def counted(number: int) -> bool:
                        return await summed(seen) >= number

                    await eventually(lambda: counted(warm), timeout=60)
                    before, server_before = seconds(recorder.pid), seconds(server.pid)
                    await publish(seen, warm + 1, count, rate)
                    await eventually(lambda: counted(warm + count), timeout=120)
                    used = (seconds(recorder.pid) - before) / count * 1e6
                    served = (seconds(server.pid) - server_before) / count * 1e6
                    once = await summed(seen) == warm + count
                    size = sum(file.stat().st_size for file in (Path(folder) / "state").iterdir()) / (warm + count)
                    print(f"{count:,} requests at {rate:,.0f} a second")
                    print(f"recorder     {used:>7.0f} µs a request, {resident_mib(recorder.pid):,.0f} MiB")
                    print(f"NATS server  {served:>7.0f} µs a request")
                    print(f"store        {size:>7,.0f} bytes a request")
                    print(f"{met(used <= BAR_US)}  CPU µs a request: {used:.0f} (bar: ≤ {BAR_US:.0f})")
                    print(f"{met(once)}  every request counted once")
                    return used <= BAR_US and once
            finally:
                processes.end_all()
    finally:
        server.close()


def main() -> int:
    """Exit status 0 when every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recorder", description=__doc__)
    parser.add_argument("--rate", type=float, default=1000.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the measurement")
    arguments = parser.parse_args()
    return 0 if uvloop.run(run(arguments.rate, arguments.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
