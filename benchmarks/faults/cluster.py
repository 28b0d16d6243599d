"""The servers of a NATS cluster of three die, stand still and hand over, one by one and together, under traffic."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import aiohttp
import yaml

from benchmarks.faults.measure import Report, traffic
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY, REST, ROOT, subject
from pointsman_contracts.usage import UsageRecord
from pointsman_runtime.jetstream.stores import EVENT_STREAM
from pointsman_testing import eventually
from pointsman_testing.nats_cluster import ClusterClient, NatsCluster
from pointsman_testing.stack import Stack, StackFactory
from pointsman_testing.traffic import Traffic

RATE: Final = 20.0
CALM_S: Final = 20.0
"""Before the first step, and after the last one."""
SETTLED_S: Final = 120.0
LEDGER: Final = "PM_USAGE"
REPLICAS: Final = {"POINTSMAN_EVENTS_REPLICAS": "3", "POINTSMAN_BUCKETS_REPLICAS": "3"}


class _Step(NamedTuple):
    name: str
    began: float
    """Of the traffic's time."""
    leader_s: float
    """Seconds until the stream had a leader again."""


class _Trial:
    """The steps so far."""

    def __init__(self, stack: Stack, cluster: NatsCluster, client: ClusterClient, running: Traffic) -> None:
        self.stack = stack
        self.cluster = cluster
        self.client = client
        self.running = running
        self.steps: list[_Step] = []
        self._revisions = 0
        self.unreached: list[str] = []
        """Services that a revision didn't reach."""

    async def step(self, name: str, action: Callable[[], Awaitable[object]], lasts_s: float) -> None:
        """Do it; the step lasts so long, and until the stream has a leader."""
        began = self.running.now
        await action()
        done = self.running.now
        await self.client.leader(EVENT_STREAM)
        self.steps.append(_Step(name, began, self.running.now - done))
        await asyncio.sleep(max(0.0, done + lasts_s - self.running.now))

    async def each(self, how: str, numbers: list[int], back_after_s: float = 0.0) -> None:
        """Kill, stop, … these servers, by the name of the method; then wait."""
        for number in numbers:
            await asyncio.to_thread(getattr(self.cluster.servers[number], how))
        await asyncio.sleep(back_after_s)

    async def apply(self) -> None:
        """Apply a changed configuration, and look whether every process has it."""
        self._revisions += 1
        config = yaml.safe_load(self.stack.config.read_text())
        config.setdefault("edge", {})["decision_timeout"] = f"{30 + self._revisions}s"
        changed = self.stack.config.with_name(f"changed-{self._revisions}.yaml")
        changed.write_text(yaml.safe_dump(config))
        code, output = await self.stack.command("config", "apply", str(changed))
        if code != 0:
            self.unreached.append(output.strip())
            return

        async def revisions() -> set[str]:
            return {await _revision(process.http_url) for process in self.stack.all_services()} - {""}

        try:
            await eventually(_one_of(revisions), timeout=10.0)
        except AssertionError:
            self.unreached.append(f"revisions {sorted(await revisions())}")


def _one_of(revisions: Callable[[], Awaitable[set[str]]]) -> Callable[[], Awaitable[bool]]:
    async def alike() -> bool:
        return len(await revisions()) == 1

    return alike


async def _revision(url: str | None) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next((line.split()[-1] for line in lines if line.startswith("pointsman_config_revision ")), "")


@asynccontextmanager
async def clustered(factory: StackFactory) -> AsyncGenerator[tuple[Stack, NatsCluster]]:
    """A gateway of separate processes beside a cluster of three servers."""
    cluster = NatsCluster()
    async with factory.start(
        nats=cluster, hop_budget=None, static="allow", stored=True, replicas={"recorder": 1}, settings=REPLICAS
    ) as stack:
        yield stack, cluster


async def without_servers(stack: Stack, cluster: NatsCluster, report: Report) -> None:
    """Every step under the same traffic."""
    async with cluster.client() as client:
        began_ms = time.time() * 1000
        async with traffic(stack, RATE) as running:
            trial = _Trial(stack, cluster, client, running)
            await _take_steps(trial)
        # Requests that ran until now have just ended.
        ends = await _until_all_are_there(client, EVENT_STREAM, subject(ResponseCompleted, ANY), len(running.ended))
        records = await _until_all_are_there(client, LEDGER, f"{ROOT}.rec.{REST}", len(running.ended))
    _print_steps(trial, ends, began_ms)
    requests = len(running.ended)
    decoded = Counter(ResponseCompleted.decode(data).request_id for data in ends)
    charged = Counter(UsageRecord.decode(data).key for data in records)
    print(f"         {requests} requests in {running.now:.0f} s")
    report.line("failed requests", len(running.failed()), 0, "requests")
    report.line("ended requests that the stream of events doesn't have", requests - len(decoded), 0, "requests")
    report.line("ended requests without a usage record", requests - len(charged), 0, "requests")
    report.line("usage records that are there twice", charged.total() - len(charged), 0, "records")
    report.line("revisions that didn't reach every process", len(trial.unreached), 0, "revisions")
    print(f"         the stream has {decoded.total() - len(decoded)} ends twice, with the same id")
    for what in (
        *trial.unreached,
        *(f"{end.status} after {end.took:.2f} s: {end.problem}" for end in running.failed()[:3]),
    ):
        print(f"         {what}")


async def _take_steps(trial: _Trial) -> None:
    client, step, each = trial.client, trial.step, trial.each

    async def leader_of_events() -> int:
        return await client.leader(EVENT_STREAM)

    await step("nothing", leader_of_events, CALM_S)
    leader = await leader_of_events()
    await step("SIGKILL of the leader of PM_EVENTS", lambda: each("kill", [leader]), 10)
    await step("config apply with one server down", trial.apply, 5)
    await step("it starts again", lambda: each("start", [leader]), 8)
    await client.in_step(EVENT_STREAM)
    other = await leader_of_events()
    await step("SIGSTOP of the leader for 10 s", lambda: each("pause", [other], 10.0), 0)
    await step("it runs again", lambda: each("resume", [other]), 8)
    await client.in_step(EVENT_STREAM)
    for _ in range(3):
        await step("the leader steps down", lambda: client.step_down(EVENT_STREAM), 3)
    last = await leader_of_events()
    await step("the leader becomes a lame duck", lambda: each("lame_duck", [last]), 6)
    await step("it starts again", lambda: each("start", [last]), 8)
    await client.in_step(EVENT_STREAM)

    async def gone(count: int, seconds: float) -> None:
        await each("kill", list(range(count)), seconds)
        await each("start", list(range(count)))

    await step("SIGKILL of two of three for 10 s, and their start", lambda: gone(2, 10.0), 12)
    await client.in_step(EVENT_STREAM)
    await step("SIGKILL of all three for 8 s, and their start", lambda: gone(3, 8.0), 12)
    await client.in_step(EVENT_STREAM)
    await step("config apply", trial.apply, CALM_S)


async def _until_all_are_there(client: ClusterClient, stream: str, subjects: str, count: int) -> list[bytes]:
    """The messages, once there are as many different ones, or none has come for a while."""
    until = time.monotonic() + SETTLED_S
    while True:
        found = [message.data for message in await client.messages(stream, subjects)]
        if len({*found}) >= count or time.monotonic() > until:
            return found
        await asyncio.sleep(1.0)


def _print_steps(trial: _Trial, ends: list[bytes], began_ms: float) -> None:
    """The effect of each step on clients, and the levels of its decisions."""
    print(f"         {'step':<52} requests  failed  slowest  static  degraded  leader after")
    running = trial.running
    levels = [(each["at_ms"] - began_ms, each.get("level", "full")) for each in map(json.loads, {*ends})]
    for number, step in enumerate(trial.steps):
        until = trial.steps[number + 1].began if number + 1 < len(trial.steps) else float("inf")
        mine = [end for end in running.ended if step.began <= end.started < until]
        failed = sum(end.status != 200 for end in mine)
        slowest = max((end.took for end in mine), default=0.0)
        at = Counter(level for at_ms, level in levels if step.began <= at_ms / 1000 < until)
        print(
            f"         {step.name:<52} {len(mine):>8}  {failed:>6}  {slowest:>5.2f} s  {at['static']:>6}  "
            f"{at['degraded']:>8}  {step.leader_s:>8.1f} s"
        )
