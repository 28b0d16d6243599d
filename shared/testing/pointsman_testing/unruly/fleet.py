"""Unruly engines in a process of their own, told at run time how to behave.

`python -m pointsman_testing.unruly.fleet NAME=MODEL…` prints the URLs of the control path and of the engines on one
line as JSON, then serves until it is ended. The control path: `PUT /behaviours {name: behaviour}` (all at the same
moment), `POST /restart [name]`, `POST /work [name]` (what each saw since it was asked last, and forgets with that).
"""

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import aiohttp
import msgspec
import uvloop

from pointsman_testing.eventually import eventually
from pointsman_testing.processes import READY_TIMEOUT_S, Processes, ServiceProcess
from pointsman_testing.scripted_engine import Received, ScriptedEngine
from pointsman_testing.unruly.behaviour import Behaviour
from pointsman_testing.unruly.engine import EngineWork, UnrulyEngine

_BEHAVIOURS: Final = msgspec.json.Decoder(dict[str, Behaviour])
_NAMES: Final = msgspec.json.Decoder(list[str])
_WORK: Final = msgspec.json.Decoder(dict[str, list[EngineWork]])


class _Place(msgspec.Struct):
    control: str
    engines: dict[str, str]


class UnrulyFleet(NamedTuple):
    """The engines as a test sees them, by their names."""

    process: ServiceProcess
    control: str
    urls: Mapping[str, str]
    http: aiohttp.ClientSession

    async def behave(self, behaviours: Mapping[str, Behaviour]) -> None:
        """Change all these engines at the same moment."""
        await self.send("PUT", "/behaviours", msgspec.json.encode(behaviours))

    async def restart(self, names: Iterable[str]) -> None:
        """End these engines, and bring them back empty."""
        await self.send("POST", "/restart", msgspec.json.encode(list(names)))

    async def work(self, names: Iterable[str]) -> dict[str, list[EngineWork]]:
        """The observations of these engines since the last call."""
        return _WORK.decode(await self.send("POST", "/work", msgspec.json.encode(list(names))))

    async def send(self, method: str, path: str, body: bytes) -> bytes:
        """Ask the control path; AssertionError with its words where it refuses."""
        async with self.http.request(method, self.control + path, data=body) as answer:
            said = await answer.read()
            if answer.status != 200:
                raise AssertionError(said.decode())
            return said


async def start_fleet(processes: Processes, http: aiohttp.ClientSession, engines: Mapping[str, str]) -> UnrulyFleet:
    """Start engines with these names, each serving the model that stands beside its name."""
    process = processes.start_command(
        [sys.executable, "-m", __spec__.name if __spec__ else __name__, *(f"{n}={m}" for n, m in engines.items())]
    )

    def place() -> _Place | None:
        lines = process.log_text().splitlines()
        line = next((line for line in lines if line.startswith('{"control"')), None)
        if process.returncode is not None:
            raise RuntimeError(process.log_text())
        return msgspec.json.decode(line, type=_Place) if line else None

    found = await eventually(place, timeout=READY_TIMEOUT_S)
    return UnrulyFleet(process, found.control, found.engines, http)


class _Control:
    """Answers the control path."""

    def __init__(self, engines: Mapping[str, UnrulyEngine]) -> None:
        self._engines = engines

    async def answer(self, request: Received) -> None:
        try:
            said = await self._do(request.path, request.body)
        except (KeyError, msgspec.MsgspecError) as error:
            await request.answer(str(error).encode(), status=400, content_type="text/plain")
            return
        await request.answer(said)

    async def _do(self, path: str, body: bytes) -> bytes:
        if path == "/behaviours":
            wanted = [(self._engines[name], told) for name, told in _BEHAVIOURS.decode(body).items()]
            await asyncio.gather(*(engine.behave(told) for engine, told in wanted))
            return b"{}"
        named = {name: self._engines[name] for name in _NAMES.decode(body)}
        match path:
            case "/restart":
                await asyncio.gather(*(engine.restart() for engine in named.values()))
                return b"{}"
            case "/work":
                told = {name: engine.work for name, engine in named.items()}
                said = msgspec.json.encode(told)
                for engine in named.values():
                    engine.work = [record for record in engine.work if not record.end]
                return said
            case _:
                raise KeyError(path)


async def serve(models: Mapping[str, str]) -> None:
    """Engines and their control path, without end."""
    engines = {name: UnrulyEngine(model=model) for name, model in models.items()}
    for engine in engines.values():
        await engine.start()
    control = ScriptedEngine(_Control(engines).answer)
    await control.start()
    place = {"control": control.url, "engines": {name: engine.url for name, engine in engines.items()}}
    sys.stdout.write(json.dumps(place) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(dict(argument.split("=", 1) for argument in sys.argv[1:])))
