"""Other routers before the same engines: a plain round-robin balancer, and vllm-router where it is installed."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from pointsman_testing import Processes, eventually
from pointsman_testing.ports import free_port
from pointsman_testing.unruly.cells import Place
from pointsman_testing.unruly.fleet import UnrulyFleet, start_fleet
from pointsman_testing.unruly.ground import Records

ROUND_ROBIN: Final = "round-robin"
VLLM_ROUTER: Final = "vllm-router"


def installed() -> list[str]:
    """The routers that can be started."""
    return [ROUND_ROBIN, *([VLLM_ROUTER] if _vllm_router() else [])]


def _vllm_router() -> str | None:
    """Its command, looked for beside this interpreter, on PATH, and in the folder that POINTSMAN_PEERS names."""
    folders = (str(Path(sys.executable).parent), os.environ.get("POINTSMAN_PEERS", ""), os.environ.get("PATH", ""))
    return shutil.which("vllm-router", path=os.pathsep.join(folders))


class OtherGround:
    """A `TrialGround` whose router keeps no records and has no diagnosis."""

    def __init__(self, http: aiohttp.ClientSession, fleet: UnrulyFleet, doors: Mapping[str, str]) -> None:
        self.http = http
        self.fleet = fleet
        self._doors = doors

    def door(self, place: Place) -> str:
        return self._doors[place.name]

    async def doctor(self) -> None:
        return None

    async def records(self, requests: Sequence[str]) -> Records | None:
        del requests
        return None

    def stood_still(self, since: float, until: float) -> list[str]:
        del since, until
        return []


@asynccontextmanager
async def router(system: str, places: Iterable[Place], folder: Path) -> AsyncGenerator[OtherGround]:
    """This router with its defaults before an own set of engines for each pool."""
    wanted = list(places)
    processes = Processes(folder)
    async with AsyncExitStack() as exits:
        exits.callback(processes.end_all)
        http = await exits.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        fleet = await start_fleet(processes, http, {name: place.name for place in wanted for name in place.workers})
        pools = {place.name: [fleet.urls[name] for name in place.workers] for place in wanted}
        start = _start_round_robin if system == ROUND_ROBIN else _start_vllm_router
        doors = await start(processes, http, pools)
        yield OtherGround(http, fleet, doors)


async def _start_round_robin(
    processes: Processes, http: aiohttp.ClientSession, pools: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    del http
    named = [f"{name}={','.join(urls)}" for name, urls in pools.items()]
    process = processes.start_command([sys.executable, "-m", "benchmarks.unruly.round_robin", *named])
    return json.loads(await eventually(lambda: next((x for x in process.log_text().splitlines() if x[:1] == "{"), "")))


async def _start_vllm_router(
    processes: Processes, http: aiohttp.ClientSession, pools: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    command = _vllm_router()
    if command is None:
        raise RuntimeError("vllm-router is not installed")
    doors: dict[str, str] = {}
    for name, urls in pools.items():
        port = free_port()
        processes.start_command(
            [
                command, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls,
                "--policy", "round_robin", "--prometheus-port", str(free_port()), "--log-level", "error",
            ]
        )  # fmt: skip
        doors[name] = f"http://127.0.0.1:{port}"

    async def all_answer() -> bool:
        try:
            for door in doors.values():
                async with http.get(f"{door}/v1/models") as answer:
                    if answer.status != 200:
                        return False
        except aiohttp.ClientError:
            return False
        return True

    await eventually(all_answer, timeout=60)
    await asyncio.sleep(1)
    return doors
