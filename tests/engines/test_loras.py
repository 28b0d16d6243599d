"""Adapters that come and go while an engine runs."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp
import pytest
import pytest_asyncio
from pydantic import JsonValue

from pointsman_testing import eventually
from pointsman_testing.engine_stack import EngineStack

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.ours,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

FOLLOWED_S: Final = 1.0
"""After this long a new adapter is served through the gateway, and one that left is refused."""
CHAT: Final = "/v1/chat/completions"


class Adapters:
    """Loads into and unloads from engines, and asks through the gateway."""

    def __init__(self, fleet: EngineStack, folder: Path, http: aiohttp.ClientSession) -> None:
        self._fleet, self._folder, self._http = fleet, folder, http

    async def load(self, name: str, engine: int = 0) -> None:
        url = self._fleet.real[engine].url
        body = {"lora_name": name, "lora_path": str(self._folder / name)}
        async with self._http.post(f"{url}/v1/load_lora_adapter", json=body) as answer:
            assert answer.status == 200, await answer.text()

    async def unload(self, name: str, engine: int = 0) -> None:
        url = self._fleet.real[engine].url
        async with self._http.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": name}) as answer:
            assert answer.status in (200, 404), await answer.text()

    async def ask(self, name: str) -> int:
        body = {"model": name, "messages": [{"role": "user", "content": "Which track?"}], "max_tokens": 2}
        async with self._http.post(self._fleet.door + CHAT, json=body) as answer:
            await answer.read()
            return answer.status

    async def until(self, name: str, status: int) -> float:
        """Seconds until the gateway answers a request for the adapter so."""
        began = time.monotonic()

        async def answers() -> bool:
            return await self.ask(name) == status

        await eventually(answers, timeout=30)
        return time.monotonic() - began


@pytest_asyncio.fixture(loop_scope="session")
async def adapters(fleet: EngineStack, model: Path, http: aiohttp.ClientSession) -> AsyncIterator[Adapters]:
    """Both engines are without adapters before and after."""
    found = Adapters(fleet, model.parent, http)
    yield found
    for name in ("lora-a", "lora-b"):
        for engine in range(len(fleet.real)):
            await found.unload(name, engine)


async def test_an_adapter_is_followed_within_a_second_of_its_coming_and_going(
    adapters: Adapters, measured: dict[str, JsonValue]
) -> None:
    came: list[float] = []
    went: list[float] = []
    assert await adapters.ask("lora-a") == 404
    for _ in range(3):
        await adapters.load("lora-a")
        came.append(await adapters.until("lora-a", 200))
        await adapters.unload("lora-a")
        went.append(await adapters.until("lora-a", 404))
    measured["adapters"] = {"came, seconds": round(max(came), 2), "went, seconds": round(max(went), 2)}


async def test_a_request_goes_to_the_engine_that_has_its_adapter_and_never_waits_for_another(
    fleet: EngineStack, adapters: Adapters
) -> None:
    await adapters.load("lora-b", 1)
    await adapters.until("lora-b", 200)
    answers = await asyncio.gather(*(adapters.ask("lora-b") for _ in range(12)))
    assert answers == [200] * 12
    served = await fleet.real[0].metric("vllm:lora_requests_info")
    del served
    began = time.monotonic()
    assert await adapters.ask("no-such-adapter") == 404
    assert time.monotonic() - began < 5
