"""Engines that `pointsman engines` adds to a running gateway and removes from it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
import pytest_asyncio

from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.scripted_engine import Received
from pointsman_testing.stack import POOL, Stack, StackFactory

MODEL, NEW = "llama-3.1-8b", "qwen"

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


@dataclass(eq=False)
class SlowEngine(FakeEngine):
    """Answers its first chat when the test lets it, and later ones at once."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def _answer(self, request: Received) -> None:
        if request.path == "/v1/chat/completions" and self.chats == 1:
            await self.go_on.wait()
        await super()._answer(request)

    @property
    def chats(self) -> int:
        """How many it was asked for."""
        return sum(request.path == "/v1/chat/completions" for request in self.received)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(stacks: StackFactory) -> AsyncIterator[Stack]:
    async with stacks.start(stored=True, engines=1, bundled=True) as stack:
        yield stack


async def chat(stack: Stack, model: str, **headers: str) -> tuple[int, dict[str, object]]:
    body = {"model": model, "messages": [{"role": "user", "content": "x"}]}

    async def once() -> tuple[int, dict[str, object]]:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{stack.door}/v1/chat/completions", json=body, headers=headers) as answer,
        ):
            return answer.status, json.loads(await answer.read())

    return await answered(once)


@pytest.mark.requirement("ENGINE-5")
async def test_an_engine_that_is_added_serves_and_one_that_is_removed_ends_what_it_has(gateway: Stack) -> None:
    async with SlowEngine(models={"data": [{"id": NEW, "max_model_len": 4096}]}) as engine:
        code, said = await gateway.command("engines", "add", f"{engine.url}/v1")
        assert code == 0, said
        assert f"{engine.url} serves {NEW} in the pool {NEW}, which is new, after" in said
        open_one = asyncio.create_task(chat(gateway, NEW))
        await eventually(lambda: engine.chats == 1)

        code, said = await gateway.command("engines", "remove", engine.url)
        assert (code, "is removed with its last engine" in said) == (0, True), said

        async def unknown() -> bool:
            return (await chat(gateway, NEW))[0] == 404

        # A replica that is starved of CPU may apply the revision after the command has given up on it.
        await eventually(unknown)
        before = engine.chats
        assert [(await chat(gateway, NEW))[0] for _ in range(4)] == [404] * 4
        assert engine.chats == before
        engine.go_on.set()
        assert (await open_one)[0] == 200


@pytest.mark.requirement("ENGINE-5")
async def test_an_engine_joins_a_pool_of_agents_and_leaves_it(gateway: Stack) -> None:
    async with SlowEngine(models={"data": [{"id": MODEL, "max_model_len": 4096}]}) as engine:
        engine.go_on.set()
        code, said = await gateway.command("engines", "add", engine.url)
        assert code == 0, said
        assert f"in the pool {POOL}, after" in said

        async def chosen() -> bool:
            return (await chat(gateway, MODEL))[0] == 200 and engine.chats > 0

        await eventually(chosen)
        _, listed = await gateway.command("engines", "list")
        assert {gateway.engines[0].url, engine.url} <= set(listed.split())
        assert "2 engines in 1 pool." in listed
        code, said = await gateway.command("engines", "add", engine.url)
        assert (code, "is served already" in said) == (1, True), said

        code, said = await gateway.command("engines", "remove", engine.url)
        assert (code, "gets no new requests" in said) == (0, True), said
        before = engine.chats
        assert [status for status, _ in [await chat(gateway, MODEL) for _ in range(8)]] == [200] * 8
        assert engine.chats == before


async def test_an_engine_with_an_agent_is_not_the_configurations_to_remove(gateway: Stack) -> None:
    code, said = await gateway.command("engines", "remove", gateway.engines[0].url)
    assert (code, "lists no engine" in said, "when its agent ends" in said) == (1, True, True), said
