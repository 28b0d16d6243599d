"""Engines behind Unix sockets, which real uvicorn servers listen at."""

import aiohttp
import pytest
from pydantic import JsonValue

from pointsman_testing import eventually
from pointsman_testing.stack import POOL, ServedPool, Stack, StackFactory
from pointsman_testing.unix_engine import unix_engine

MODEL = "m"
pytestmark = [pytest.mark.timeout(240)]


async def chat(stack: Stack, *, stream: bool) -> tuple[int, str, str]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": stream}
    async with aiohttp.ClientSession() as http, http.post(f"{stack.door}/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.text(), answer.headers["x-pointsman-endpoint"]


@pytest.mark.requirement("ENGINE-9")
async def test_engines_behind_unix_sockets_are_read_asked_and_drained(stacks: StackFactory) -> None:
    """One is listed, with a base path; the other one has an agent, and joins the same pool."""
    async with unix_engine("/base") as listed, unix_engine() as own:
        pool: JsonValue = {"models": [MODEL], "engines": [listed.url]}
        changes: dict[str, JsonValue] = {
            "pools": {POOL: pool},
            "models": {MODEL: {"pool": POOL}},
            "profiles": {"standard": {"request": ["scheduler"]}},
            "profile-picker": {"use": "single", "profile": "standard"},
            "selectors": {},
        }
        served = ServedPool(models=(MODEL,), loras=())
        async with stacks.start(
            engines=0, bundled=True, changes=changes, served=served, settings={"POINTSMAN_TELL_ENDPOINT": "true"}
        ) as stack:
            agent = stack.start_agent_of(own.url)
            await agent.wait_ready()

            async def both_serve() -> bool:
                _, said = await stack.command("engines", "list")
                return said.count("serving") == 2 and listed.url in said and own.url in said

            await eventually(both_serve, timeout=60)
            seen: set[str] = set()
            for number in range(12):
                status, text, endpoint = await chat(stack, stream=number % 2 == 0)
                assert (status, "lo" in text) == (200, True)
                seen.add(endpoint)
            assert len(seen) == 2
            assert set(listed.asked) == {"/base/v1/chat/completions"}
            assert set(own.asked) == {"/v1/chat/completions"}
            assert listed.hosts == own.hosts == {"localhost"}

            listed.pages.running, listed.pages.waiting = 3, 2

            async def load_is_read() -> bool:
                _, said = await stack.command("engines", "list")
                return any("3" in line and "2" in line.split() for line in said.splitlines() if listed.url in line)

            await eventually(load_is_read)
            listed.pages.running = listed.pages.waiting = 0
            code, said = await stack.command("engines", "drain", own.url, "--within", "1s")
            assert (code, "has no requests left" in said) == (0, True), said
            before = len(own.asked)
            assert [(await chat(stack, stream=False))[0] for _ in range(4)] == [200] * 4
            assert len(own.asked) == before


async def test_an_engine_whose_socket_is_gone_is_unreachable(stacks: StackFactory) -> None:
    pool: JsonValue = {"models": [MODEL], "discovery": "static", "engines": ["unix:/nowhere/engine.sock"]}
    changes: dict[str, JsonValue] = {
        "pools": {POOL: pool},
        "models": {MODEL: {"pool": POOL}},
        "profiles": {"standard": {"request": ["scheduler"]}},
        "profile-picker": {"use": "single", "profile": "standard"},
        "selectors": {},
    }
    served = ServedPool(models=(MODEL,), loras=())
    async with stacks.start(engines=0, bundled=True, changes=changes, served=served) as stack:

        async def named() -> bool:
            _, said = await stack.command("engines", "list")
            return "nowhere-engine.sock" in said and "unreachable: connection refused" in said

        await eventually(named, timeout=60)
