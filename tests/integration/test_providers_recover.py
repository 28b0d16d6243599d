"""Providers that refuse for a while, behind real processes: who is asked then, and what the client is told."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import openai
import pytest
import pytest_asyncio

from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.observer import observing
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine
from pointsman_testing.stack import ServedPool, Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

KEY: Final = "canary-key-5c1e"
_MODEL: Final = re.compile(rb'"model":\s*"([\w-]+)"')
_EVENT: Final = b'data: {"choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": null}]}\n\n'


class Far:
    """A provider that answers each of its models by a script of its own."""

    def __init__(self) -> None:
        self.scripts: dict[str, Callable[[Received], Awaitable[None]]] = {}
        self.asked: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def __call__(self, request: Received) -> None:
        found = _MODEL.search(request.body)
        model = found[1].decode() if found else ""
        self.asked[model] += 1
        self.open[model] += 1
        self.most[model] = max(self.most[model], self.open[model])
        try:
            await self.scripts.get(model, well)(request)
        finally:
            self.open[model] -= 1


async def well(request: Received) -> None:
    await request.answer(ANSWER)


def refuses(status: int, error: dict[str, Any], more: str = "") -> Callable[[Received], Awaitable[None]]:
    """A script."""

    async def script(request: Received) -> None:
        await request.answer(json.dumps({"error": error}).encode(), status=status, more=more)

    return script


class World:
    def __init__(self, stack: Stack, far: Far, key: Path) -> None:
        self.stack = stack
        self.far = far
        self.key = key
        self.told: list[str] = []
        """The errors that clients got."""
        self.ai = openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key="canary-client", max_retries=0)

    async def ask(self, model: str) -> str:
        """The model that answers, or the code of the error."""
        try:
            answer = await self.ai.chat.completions.with_raw_response.create(
                model=model, messages=[{"role": "user", "content": "Hi"}]
            )
        except openai.APIStatusError as error:
            self.told.append(str(error.body))
            return f"{error.status_code} {error.code}"
        return answer.headers.get("x-pointsman-model", model)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(stacks: StackFactory, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    far = Far()
    key = tmp_path_factory.mktemp("keys") / "key"
    key.write_text(KEY)
    async with AsyncExitStack() as around:
        server = await around.enter_async_context(ScriptedEngine(far))
        names = ("limited", "empty", "denied", "cut")
        backup = {"backup": {"provider": "backup"}}
        models = {name: {"provider": "far"} for name in (*names, "other", "echo")} | {"narrow": {"provider": "narrow"}}
        safe = {f"{name}-safe": {"provider": "far", "served_as": name, "fallbacks": ["backup"]} for name in names}
        engine = {"url": server.url, "engine": "opaque", "health": "/health"}
        changes: dict[str, Any] = {
            "pools": {"own": {"models": ["own"], "discovery": "static", "engines": [engine]}},
            "providers": {
                name: {"kind": "openai", "base_url": f"{server.url}/v1", "credential": f"file:{key}"}
                for name in ("far", "backup")
            }
            | {
                "narrow": {
                    "kind": "openai",
                    "base_url": f"{server.url}/v1",
                    "connections": 2,
                    "connect_timeout": "2s",
                }
            },
            "models": {**models, **safe, **backup},
            "selectors": {},
            "profile-picker": {"use": "single"},
            "profiles": {"standard": {"request": ["scheduler"]}},
        }
        stack = await around.enter_async_context(
            stacks.start(engines=0, changes=changes, bundled=True, served=ServedPool("own", ("own",), ()))
        )
        made = World(stack, far, key)
        around.push_async_callback(made.ai.close)
        yield made


async def test_requests_that_waited_for_a_pause_do_not_come_at_once_when_it_ends(world: World) -> None:
    far = world.far
    far.scripts["limited"] = refuses(429, {"message": "slow down"}, "retry-after: 4\r\n")
    assert await world.ask("limited") == "429 rate_limit_exceeded"
    assert await world.ask("limited-safe") == "backup"
    assert far.asked["limited"] == 1, "it asked for a pause"
    answers = asyncio.Event()

    async def slow(request: Received) -> None:
        await answers.wait()
        await well(request)

    far.scripts["limited"] = slow
    waiting: list[asyncio.Task[str]] = []

    async def is_probed() -> bool:
        """Whether one of those that come all the time is sent."""
        waiting.extend(asyncio.create_task(world.ask("limited")) for _ in range(20))
        await asyncio.wait(waiting[-20:], return_when=asyncio.FIRST_COMPLETED)
        return far.open["limited"] > 0

    await eventually(is_probed)
    assert far.most["limited"] <= 2, "one, and one more a second later"
    answers.set()
    seen = Counter(await asyncio.gather(*waiting))
    assert seen.keys() == {"limited", "429 rate_limit_exceeded"}
    assert [await world.ask("limited") for _ in range(20)] == ["limited"] * 20


async def test_an_account_without_quota_is_left_alone_and_its_other_models_are_not(world: World) -> None:
    far = world.far
    far.scripts["empty"] = refuses(429, {"message": "You exceeded your quota.", "code": "insufficient_quota"})
    assert [await world.ask("empty") for _ in range(3)] == ["502 provider_quota"] * 3
    assert [await world.ask("empty-safe") for _ in range(3)] == ["backup"] * 3
    assert far.asked["empty"] == 1
    assert await world.ask("other") == "other"


async def test_a_wrong_key_is_the_operators_error_and_a_right_one_serves_again(world: World) -> None:
    far = world.far

    async def guarded(request: Received) -> None:
        if request.header("authorization") == "Bearer right":
            await well(request)
        else:
            await refuses(401, {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"})(request)

    far.scripts["denied"] = guarded
    async with observing(world.stack.nats.url) as seen:
        ended = seen.listen(ResponseCompleted, ANY)
        assert [await world.ask("denied") for _ in range(10)] == ["502 provider_credential"] * 10
        assert await world.ask("denied-safe") == "backup"
        assert far.asked["denied"] < 10, "asked now and then"
        completed = await eventually(lambda: next((each for each in ended if each.model == "denied-safe"), None))
    assert completed.outcome == "ok"
    world.key.write_text("right")
    try:

        async def is_served() -> bool:
            return await world.ask("denied") == "denied"

        await eventually(is_served, timeout=60)
    finally:
        world.key.write_text(KEY)
    assert KEY not in "".join((*world.told, *(service.log_text() for service in world.stack.all_services())))


async def test_a_provider_that_breaks_every_answer_off_is_followed_by_the_next_model(world: World) -> None:
    far = world.far

    async def breaks(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(_EVENT)
        await asyncio.sleep(0.05)  # the event has left by then
        request.cut()

    far.scripts["cut"] = breaks

    async def falls_back() -> bool:
        try:
            chunks = await world.ai.chat.completions.create(
                model="cut-safe", messages=[{"role": "user", "content": "Hi"}], stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks]) != "Hel"
        except openai.APIError:
            return False

    await eventually(falls_back)
    assert far.asked["cut"] >= 5


async def test_the_gateways_key_is_in_no_error_of_a_client_though_its_provider_repeats_it(world: World) -> None:
    words = f"Bad header: authorization: Bearer {KEY}"
    world.far.scripts["echo"] = refuses(400, {"message": words, "type": "invalid_request_error", "seen": [KEY]})
    assert await world.ask("echo") == "400 invalid_request_error"
    assert "Bad header" in world.told[-1]
    assert KEY not in world.told[-1]


async def test_a_provider_is_not_blamed_for_the_gateways_own_limit_of_connections(world: World) -> None:
    answers = asyncio.Event()

    async def slow(request: Received) -> None:
        await answers.wait()
        await well(request)

    world.far.scripts["narrow"] = slow
    asked = [asyncio.create_task(world.ask("narrow")) for _ in range(12)]
    await eventually(lambda: sum(each.done() for each in asked) == 10)
    answers.set()
    assert Counter(await asyncio.gather(*asked)) == {"narrow": 2, "503 provider_full": 10}
    assert await world.ask("narrow") == "narrow"
