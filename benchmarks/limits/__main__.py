"""Whether limits that three preprocessors count together hold, even when one of them dies.

`python -m benchmarks.limits [--clients 1000] [--seconds 10]` runs real preprocessors on a real NATS server, without any
engine. The clients of one tenant send requests at the same time, and again a while after a rejection. Counted are the
requests that a limit of 200/s admitted, and the tokens that a quota admitted; once undisturbed, and once with the
keeper of the tenant's counts killed (SIGKILL) midway.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import uvloop
import yaml

from benchmarks.machine import describe
from pointsman_apis.requests import parse
from pointsman_contracts.limits import LimitShard
from pointsman_contracts.response import Usage
from pointsman_limits.domain.limits.lease import TAKEN_S
from pointsman_limits.domain.limits.sharding import shard_of
from pointsman_plugins.prompt import prompt_of
from pointsman_testing import Processes
from pointsman_testing.nats_server import LocalNatsServer
from pointsman_testing.observer import observing
from pointsman_testing.preprocessed import Judged, PreprocessorSurroundings, surroundings
from pointsman_testing.processes import ServiceProcess

REPLICAS: Final = 3
RATE: Final = 200
QUOTA: Final = 60_000
"""Tokens in an hour, so that none come back while it is measured."""
RESERVED: Final = 200
"""Tokens that a request reserves: its most."""
TENANT: Final = "t"
TOLERANCE: Final = 0.02
PROVED_S: Final = 0.2
"""After `TAKEN_S`: two rounds on the bus, and the next tick of a preprocessor before them."""


class Report:
    """Prints one line a measurement and keeps whether all bars were met."""

    def __init__(self) -> None:
        self.met = True

    def line(self, what: str, figure: float, low: float, high: float) -> None:
        """One measurement, which must lie between the two."""
        met = low <= figure <= high
        self.met &= met
        bar = f"{low:,.0f} to {high:,.0f}"
        print(f"{'met    ' if met else 'NOT met'}  {what:<74} {figure:>8,.0f}  (bar: {bar})", flush=True)


class Gateway:
    """Preprocessors with one limit."""

    def __init__(self, folder: Path, limit: Mapping[str, object]) -> None:
        self.nats = LocalNatsServer()
        self._processes = Processes(folder)
        self._config = folder / "pointsman.yaml"
        entries: list[object] = ["identity-headers", {"per": ["tenant"], **limit}]
        self._config.write_text(yaml.safe_dump({"preprocessing": entries}))
        self.running: dict[str, ServiceProcess] = {}

    async def __aenter__(self) -> "Gateway":
        self.nats.start()
        env = {"POINTSMAN_NATS_URL": self.nats.url, "POINTSMAN_CONFIG": str(self._config)}
        self.running = {
            name: self._processes.start("pointsman-preprocessor", env={**env, "POINTSMAN_INSTANCE": name})
            for name in (f"preprocessor-{number}" for number in range(REPLICAS))
        }
        for process in self.running.values():
            await process.wait_ready(60)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._processes.end_all()
        self.nats.close()

    async def kill_keeper(self) -> None:
        """Kill the keeper of the tenant's counts, as named in the bucket."""
        async with observing(self.nats.url) as observer:
            shard = await observer.entry(LimitShard, str(shard_of(f"tenant {TENANT}")))
        if shard is None:
            raise RuntimeError("the tenant's counts weren't saved")
        self.running[shard.keeper].kill()


async def clients(
    count: int, seconds: float, send: Callable[[random.Random], Awaitable[Judged]], pause: tuple[float, float]
) -> list[Judged]:
    """Each sends a request, and the next one when the last was answered and it has waited."""
    judged: list[Judged] = []
    until = time.monotonic() + seconds

    async def client(number: int) -> None:
        dice = random.Random(number)
        while time.monotonic() < until:
            judged.append(await send(dice))
            await asyncio.sleep(dice.uniform(*pause))

    await asyncio.gather(*(client(number) for number in range(count)))
    return judged


async def requests(args: argparse.Namespace, report: Report, folder: Path, *, kill: bool) -> None:
    """The limit of requests."""
    limit = {"use": "request-limit", "rate": f"{RATE}/s"}
    async with Gateway(folder, limit) as gateway, surroundings(gateway.nats.url, REPLICAS) as around:
        await asyncio.gather(*(around.send("warm-up") for _ in range(50)))
        killing = asyncio.create_task(_later(args.seconds / 2, gateway.kill_keeper)) if kill else None
        began = time.monotonic()
        judged = await clients(args.clients, args.seconds, lambda _: around.send(TENANT), (0.0, 2.0))
        if killing is not None:
            await killing
    admitted = sum(each.status == 200 and each.at - began <= args.seconds for each in judged)
    expected = RATE * args.seconds
    # No request is admitted before the dead keeper's lease is over and the next one has proved its own.
    without_s = TAKEN_S + PROVED_S if kill else 0.0
    name = "keeper killed midway" if kill else "undisturbed"
    report.line(
        f"requests admitted of {len(judged):,} in {args.seconds:g} s, {name}",
        admitted,
        (expected - RATE * without_s) * (1 - TOLERANCE),
        expected * (1 + TOLERANCE),
    )
    print(f"         statuses: {dict(Counter(each.status for each in judged))}", flush=True)
    _unanswered(judged)


async def tokens(args: argparse.Namespace, report: Report, folder: Path, *, kill: bool) -> None:
    """The limit of tokens: requests hold their reservation for a while, and then have used less."""
    limit = {"use": "token-limit", "amount": f"{QUOTA}/h", "expected_output": RESERVED}
    used: dict[str, int] = {}
    lost = [0.0, 0.0]
    async with Gateway(folder, limit) as gateway, surroundings(gateway.nats.url, REPLICAS) as around:
        await asyncio.gather(*(around.send("warm-up") for _ in range(50)))

        async def send(dice: random.Random) -> Judged:
            judged = await around.send(TENANT, max_tokens=RESERVED)
            if judged.status != 200:
                around.complete(judged, None)
                return judged
            await asyncio.sleep(dice.uniform(0.05, 0.5))
            used[judged.request_id] = dice.randrange(RESERVED)
            around.complete(judged, Usage(prompt_tokens=1, completion_tokens=used[judged.request_id] - 1))
            return judged

        async def kill_keeper() -> None:
            lost[0] = time.monotonic()
            await gateway.kill_keeper()

        killing = asyncio.create_task(_later(args.seconds / 4, kill_keeper)) if kill else None
        judged = await clients(args.clients // 4, args.seconds, send, (0.5, 1.5))
        if killing is not None:
            await killing
        counted = await _counted(around)
    total = sum(used.values())
    second = sum(used.get(each.request_id, 0) for each in judged if each.status == 200 and abs(each.at - lost[0]) < 1)
    name = "keeper killed midway" if kill else "undisturbed"
    slack = second if kill else 0
    # When a request is rejected, less remains than it may use; more clients ask than the quota serves.
    least = QUOTA - slack - RESERVED - _prompt_tokens()
    report.line(f"tokens used by {len(used):,} requests, {name}", total, least, QUOTA + slack + REPLICAS * RESERVED)
    report.line(f"tokens counted of {total:,} used, {name}", counted, total - slack, total)
    _unanswered(judged)


async def _counted(around: PreprocessorSurroundings) -> float:
    """The ledger's count once every request has ended: the quota minus the rest."""
    await asyncio.sleep(1)
    judged = await around.send(TENANT, max_tokens=0)
    left = judged.headers.get("x-ratelimit-remaining-tokens") or "0"
    reserved = 0 if judged.status != 200 else _prompt_tokens()
    return QUOTA - int(left) - reserved


def _prompt_tokens() -> int:
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"x" * 300)
    return prompt_of(parse("/v1/chat/completions", body)).tokens


async def _later(seconds: float, action: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(seconds)
    await action()


def _unanswered(judged: list[Judged]) -> None:
    problems = Counter(f"{each.status} {each.code}" for each in judged if each.status not in (200, 429))
    if problems:
        print(f"         other answers: {dict(problems)}", flush=True)


async def run(args: argparse.Namespace) -> bool:
    """All measurements."""
    print(f"{describe()}; {args.clients:,} clients, {REPLICAS} preprocessors, {args.seconds:g} s each", flush=True)
    report = Report()
    for measure in (requests, tokens):
        for kill in (False, True):
            with TemporaryDirectory() as folder:
                await measure(args, report, Path(folder), kill=kill)
    return report.met


def main() -> int:
    """Run everything; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description="Whether shared limits hold, also when a preprocessor dies.")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    return 0 if uvloop.run(run(parser.parse_args())) else 1


if __name__ == "__main__":
    sys.exit(main())
