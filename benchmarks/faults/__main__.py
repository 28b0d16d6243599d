"""The effect of failures on clients: stages, engines and the bus are killed or stopped under traffic.

`python -m benchmarks.faults [--rate 200] [--only CASE]` starts gateways of real processes with two simulated engines
each, breaks one part after the other, and prints the clients' view against the bar of each case: failed requests, the
longest wait for an answer of any kind, and the time until everything worked again.
"""

import argparse
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import uvloop

from benchmarks.faults.bus_restart import bus_restart
from benchmarks.faults.cluster import clustered, without_servers
from benchmarks.faults.engine_loss import engines
from benchmarks.faults.full_disk import full_disk
from benchmarks.faults.jetstream_loss import without_jetstream
from benchmarks.faults.measure import STAGES, Report
from benchmarks.faults.second_replica import with_a_second_replica
from benchmarks.faults.single_replica import without_a_second_replica
from benchmarks.faults.starvation import starved
from benchmarks.machine import describe
from pointsman_testing.stack import StackFactory

SAMPLE: Final = Path(__file__).resolve().parents[2] / "pointsman.yaml"


async def second_replica(factory: StackFactory, rate: float, report: Report) -> None:
    """One of two replicas."""
    async with factory.start(replicas=dict.fromkeys(STAGES, 2), hop_budget=None) as stack:
        await with_a_second_replica(stack, rate, report)


async def single_replica(factory: StackFactory, rate: float, report: Report) -> None:
    """The only replica, at a rate of its own."""
    del rate
    async with factory.start(hop_budget=None, changes={"edge": {"silent_wait": "30s"}}) as stack:
        await without_a_second_replica(stack, report)


async def bus(factory: StackFactory, rate: float, report: Report) -> None:
    """The NATS server."""
    async with factory.start(hop_budget=None) as stack:
        await bus_restart(stack, rate, report)


async def engine_loss(factory: StackFactory, rate: float, report: Report) -> None:
    """The engines, at half the rate."""
    async with factory.start(hop_budget=None) as stack:
        await engines(stack, rate / 2, report)


async def starvation(factory: StackFactory, rate: float, report: Report) -> None:
    """A busy machine, at a rate of its own."""
    del rate
    async with factory.start(hop_budget=None) as stack:
        await starved(stack, report)


async def disk(factory: StackFactory, rate: float, report: Report) -> None:
    """The disk under JetStream, at a rate of its own."""
    del factory, rate
    await full_disk(SAMPLE, report)


async def jetstream_loss(factory: StackFactory, rate: float, report: Report) -> None:
    """JetStream and its streams, at a rate of their own."""
    del rate
    async with factory.start(hop_budget=None) as stack:
        await without_jetstream(stack, report)


async def nats_cluster(factory: StackFactory, rate: float, report: Report) -> None:
    """The servers of a cluster of three, at a rate of its own."""
    del rate
    async with clustered(factory) as (stack, cluster):
        await without_servers(stack, cluster, report)


CASES: Final[dict[str, Callable[[StackFactory, float, Report], Awaitable[None]]]] = {
    "second-replica": second_replica,
    "single-replica": single_replica,
    "bus": bus,
    "engines": engine_loss,
    "starvation": starvation,
    "full-disk": disk,
    "jetstream-loss": jetstream_loss,
    "cluster": nats_cluster,
}


async def run(rate: float, cases: list[str]) -> bool:
    """These cases; whether every bar was met."""
    print(f"machine: {describe()}\n{rate:g} requests/s, open loop, where a case doesn't say otherwise\n")
    report = Report()
    with TemporaryDirectory(prefix="pointsman-faults-") as folder:
        factory = StackFactory(Path(folder), SAMPLE)
        for case in cases:
            await CASES[case](factory, rate, report)
    return report.met


def main() -> int:
    """Exit status 0 when every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--only", choices=CASES, action="append", help="this case; repeatable; default: all")
    arguments = parser.parse_args()
    return 0 if uvloop.run(run(arguments.rate, arguments.only or list(CASES))) else 1


if __name__ == "__main__":
    sys.exit(main())
