"""Every engine of a fleet is drained, killed and started again, one by one, under long streams: no client notices.

`python -m benchmarks.rolling_restart [--engines 3] [--rate 20] [--seconds 30] [--within 10s]` starts a gateway before
engines of which every token follows from those before it, and compares each answer with that of one engine alone. Every
tenth request isn't streamed. Exit status 0 when every answer is whole and equal.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
import nats
import uvloop
from nats.aio.msg import Msg
from pydantic import JsonValue

from benchmarks.machine import describe
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY, subject
from pointsman_testing import eventually
from pointsman_testing.continuing_server import MODEL
from pointsman_testing.ports import free_port
from pointsman_testing.processes import Processes, ServiceProcess
from pointsman_testing.stack import POOL, ServedPool, Stack, StackFactory
from pointsman_testing.whole_streams import WholeStreams

SAMPLE: Final = Path(__file__).resolve().parents[2] / "pointsman.yaml"
PAUSE_S: Final = 0.2
"""Between two tokens of a stream."""


class Fleet:
    """Engines as processes on ports of their own."""

    def __init__(self, processes: Processes, count: int) -> None:
        self._processes = processes
        self.ports = [free_port() for _ in range(count)]
        self._running: dict[int, ServiceProcess] = {}

    def url_of(self, port: int) -> str:
        """Base URL of an engine."""
        return f"http://127.0.0.1:{port}"

    async def start(self, port: int) -> None:
        """Start one and wait until it listens."""
        command = (sys.executable, "-m", "pointsman_testing.continuing_server", str(port), "--pause-s", str(PAUSE_S))
        self._running[port] = self._processes.start_command(command)
        async with aiohttp.ClientSession() as http:

            async def listens() -> bool:
                try:
                    async with http.get(f"{self.url_of(port)}/health") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await eventually(listens, timeout=120)

    async def restart(self, port: int) -> None:
        """SIGKILL one, whatever it has, and start it again."""
        self._running[port].kill()
        await self.start(port)


async def serving(stack: Stack, count: int) -> bool:
    """Whether this many engines take requests."""
    code, said = await stack.command("engines", "list")
    return code == 0 and said.count("serving") == count


async def restart_all(stack: Stack, fleet: Fleet, within: str) -> bool:
    """Drain, kill and start each engine; whether each had nothing left when it was killed."""
    clean = True
    for port in fleet.ports:
        began = time.monotonic()
        code, said = await stack.command("engines", "drain", fleet.url_of(port), "--within", within)
        print(said.strip(), flush=True)
        clean &= code == 0
        await fleet.restart(port)
        await eventually(lambda: serving(stack, len(fleet.ports)), timeout=60)
        print(f"  restarted and serving again, {time.monotonic() - began:.1f} s after the order", flush=True)
    return clean


@asynccontextmanager
async def counting_moves(url: str) -> AsyncGenerator[Counter[int]]:
    """Streams that moved off drained engines, by how often each did."""
    moves: Counter[int] = Counter()

    async def take(message: Msg) -> None:
        done = ResponseCompleted.decode(message.data)
        moved = sum(attempt.outcome == "drained" for attempt in done.attempts)
        if moved and done.stream:
            moves[moved] += 1

    bus = await nats.connect(url)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    await bus.subscribe(  # pyright: ignore[reportUnknownMemberType]
        subject(ResponseCompleted, ANY), cb=take
    )
    try:
        yield moves
    finally:
        await bus.drain()


async def counts(stack: Stack) -> str:
    """The frontend's own counts of moves, as its metrics have them."""
    url = stack.services["frontend"][0].http_url
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    names = ("pointsman_edge_drain_", "pointsman_edge_resumed_total", "pointsman_edge_unresumed_total")
    return "\n".join(f"  {line}" for line in lines if line.startswith(names))


async def run(engines: int, rate: float, seconds: float, within: str) -> bool:
    """The whole measurement; whether nothing was lost."""
    print(f"machine: {describe()}\n{engines} engines, {rate:g} requests/s of {seconds:g} s each\n")
    with TemporaryDirectory(prefix="pointsman-rolling-") as folder:
        processes = Processes(Path(folder))
        fleet = Fleet(processes, engines)
        listed: list[JsonValue] = [{"url": fleet.url_of(port)} for port in fleet.ports]
        changes: dict[str, JsonValue] = {
            "pools": {POOL: {"models": [MODEL], "discovery": "static", "engines": listed}},
            "models": {MODEL: {"pool": POOL}},
            "profiles": {"standard": {"request": ["scheduler"], "resume": "exact"}},
            "profile-picker": {"use": "single", "profile": "standard"},
            "selectors": {},
        }
        try:
            await asyncio.gather(*(fleet.start(port) for port in fleet.ports))
            served = ServedPool(models=(MODEL,), loras=())
            factory = StackFactory(Path(folder), SAMPLE)
            async with factory.start(engines=0, changes=changes, served=served, hop_budget=None, bundled=True) as stack:
                await eventually(lambda: serving(stack, engines), timeout=60)
                tokens = round(seconds / PAUSE_S)
                async with (
                    counting_moves(stack.nats.url) as moves,
                    WholeStreams(stack.door, rate, tokens, whole_every=10) as streams,
                ):
                    await asyncio.sleep(seconds)
                    print(f"{streams.under_way} streams under way\n", flush=True)
                    clean = await restart_all(stack, fleet, within)
                    print(f"\n{streams.under_way} streams under way", flush=True)
                print(await counts(stack))
        finally:
            processes.end_all()
    total, equal = sum(streams.outcomes.values()), streams.outcomes["equal"]
    print(f"{equal} of {total} answers equal to those of one engine; {streams.missing} characters missing,")
    print(
        f"{streams.doubled} too many; the longest took {streams.longest_s:.1f} s; the clients' process stood still for"
    )
    print(f"{streams.stood_still_s:.1f} s at most")
    for times, number in sorted(moves.items()):
        print(f"{number} streams moved {times} x")
    for outcome, count in streams.outcomes.items():
        if outcome != "equal":
            print(f"NOT met  {count} x {outcome}")
    return clean and equal == total


def main() -> int:
    """Exit status 0 when nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rolling_restart", description=__doc__)
    parser.add_argument("--engines", type=int, default=3)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each answer")
    parser.add_argument("--within", default="10s", help="time of each drain")
    arguments = parser.parse_args()
    met = uvloop.run(run(arguments.engines, arguments.rate, arguments.seconds, arguments.within))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
