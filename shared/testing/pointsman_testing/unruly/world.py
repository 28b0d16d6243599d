"""The gateway that the matrix is tried on: one set of services with both doors, and a pool of unruly engines for each
place of the matrix."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from nats.aio.msg import Msg

from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY, subject
from pointsman_contracts.usage import UsageRecord
from pointsman_testing.attendance import Attendance, attending
from pointsman_testing.envoy_process import start_envoy
from pointsman_testing.eventually import eventually
from pointsman_testing.observer import Observer, observing
from pointsman_testing.processes import Processes
from pointsman_testing.stack import ServedPool, Stack, StackFactory
from pointsman_testing.unruly.cells import Door, Place
from pointsman_testing.unruly.fleet import UnrulyFleet, start_fleet
from pointsman_testing.unruly.ground import Records

_RECORDED_S: Final = 15.0
"""Within this time the records of requests are there, or missing."""
Address = tuple[str, int]


class EnvoyOf(NamedTuple):
    """The real Envoy: its executable, and its configuration before this adapter and these engines."""

    executable: str
    document: Callable[[Address, Sequence[Address]], Mapping[str, Any]]


class UnrulyWorld:
    """A running gateway and its engines; a `TrialGround`."""

    def __init__(
        self,
        stack: Stack,
        fleet: UnrulyFleet,
        http: aiohttp.ClientSession,
        doors: Mapping[Door, str],
        attendance: Attendance,
    ) -> None:
        self.stack = stack
        self.fleet = fleet
        self.http = http
        self._doors = doors
        self._attendance = attendance
        self.completed: Counter[str] = Counter()
        """Completed events that were stored, by request."""
        self.ledger: Counter[str] = Counter()
        """Ledger records, by request."""
        self._looking: asyncio.Task[str] | None = None
        self._next_look: asyncio.Task[str] | None = None

    async def keep_records(self, observer: Observer) -> None:
        """Count what is in the streams of events and of usage, from now on."""

        async def completed(message: Msg) -> None:
            self.completed[ResponseCompleted.decode(message.data).request_id] += 1

        async def charged(message: Msg) -> None:
            self.ledger[UsageRecord.decode(message.data).request_id] += 1

        for topic, stream, count in (
            (subject(ResponseCompleted, ANY), "PM_EVENTS", completed),
            (subject(UsageRecord, ANY), "PM_USAGE", charged),
        ):
            await observer.js.subscribe(topic, stream=stream, ordered_consumer=True, cb=count)

    def door(self, place: Place) -> str:
        return self._doors[place.door]

    def stood_still(self, since: float, until: float) -> list[str]:
        return self._attendance.stood_still(since, until)

    async def records(self, requests: Sequence[str]) -> Records:
        with contextlib.suppress(AssertionError):  # the laws say so
            await eventually(
                lambda: all(self.completed[one] and self.ledger[one] for one in requests), timeout=_RECORDED_S
            )
        return Records(*({one: counts[one] for one in requests} for counts in (self.completed, self.ledger)))

    async def doctor(self) -> str:
        """The output of `pointsman doctor`. Cells that ask while it looks share the next look."""
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look(self._looking))
        return await self._next_look

    async def _look(self, before: "asyncio.Task[str] | None") -> str:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._looking, self._next_look = self._next_look, None
        _, said = await self.stack.command("doctor")
        return said


@asynccontextmanager
async def gateway(
    factory: StackFactory, folder: Path, places: Iterable[Place], envoy: EnvoyOf | None
) -> AsyncGenerator[UnrulyWorld]:
    """A gateway with a pool for each of these places: those of clients behind Envoy have agents, the others' engines
    are read by the metrics-collector. `envoy`: None: without that door."""
    wanted = list(places)
    processes = Processes(folder)
    async with AsyncExitStack() as exits:
        exits.callback(processes.end_all)
        http = await exits.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        models = {worker: place.name for place in wanted for worker in place.workers}
        fleet = await start_fleet(processes, http, models)
        agents = [place for place in wanted if _has_agents(place)]
        changes: dict[str, Any] = {
            "pools": {place.name: _pool(place, fleet) for place in wanted},
            "models": {place.name: {"pool": place.name} for place in wanted},
            "profile-picker": {"use": "single", "profile": "standard"},
            "profiles": {"standard": {"request": ["scheduler"]}},
            "selectors": {},
        }
        served = ServedPool(models=tuple(place.name for place in wanted if place not in agents), loras=())
        replicas = {"recorder": 1, "model-selector": 0}
        stack = await exits.enter_async_context(
            factory.start(
                engines=0, replicas=replicas, changes=changes, stored=True, served=served, bundled=True, static=None
            )
        )
        if agents:
            told = [
                {"engine_url": fleet.urls[worker], "pool": place.name, "worker": worker}
                for place in agents
                for worker in place.workers
            ]
            env = {**stack.env, "POINTSMAN_AGENTS": json.dumps(told)}
            await processes.fork("pointsman-bundle", "worker-agent", env=env).wait_ready()
        await _listed(http, stack.door, {place.name for place in wanted})
        doors: dict[Door, str] = {"frontend": stack.door}
        if envoy is not None:
            # Streams that nothing reads behind Envoy break off unnoticed.
            read = {"POINTSMAN_PORT": "0", "POINTSMAN_STREAM_USAGE": "true"}
            adapter = processes.fork("pointsman-epp-adapter", env={**stack.env, **read})
            await adapter.wait_ready()
            listening = next(str(line["url"]) for line in adapter.log_lines() if line["event"] == "serving")
            engines = [("127.0.0.1", urlsplit(url).port or 0) for url in fleet.urls.values()]
            there = ("127.0.0.1", int(listening.rpartition(":")[2]))
            doors["envoy"] = await start_envoy(processes, envoy.executable, envoy.document(there, engines), folder)
        attendance = await exits.enter_async_context(attending(stack.nats.url))
        observer = await exits.enter_async_context(observing(stack.nats.url))
        world = UnrulyWorld(stack, fleet, http, doors, attendance)
        await world.keep_records(observer)
        yield world


def _has_agents(place: Place) -> bool:
    """Whether agents tell of the engines; else the metrics-collector reads them."""
    return place.door == "envoy"


def _pool(place: Place, fleet: UnrulyFleet) -> dict[str, Any]:
    if _has_agents(place):
        return {"models": [place.name]}
    engines = [{"url": fleet.urls[worker], "name": worker} for worker in place.workers]
    return {"models": [place.name], "discovery": "static", "engines": engines}


async def _listed(http: aiohttp.ClientSession, door: str, models: set[str]) -> None:
    """Wait until the frontend lists these models."""

    async def found() -> bool:
        async with http.get(f"{door}/v1/models") as answer:
            return models <= {model["id"] for model in (await answer.json())["data"]}

    await eventually(found)
