"""Engines that sleep while requests come: demand is published, and one engine is woken where that is configured."""

import asyncio

import aiohttp
import pytest
from pydantic import JsonValue

from pointsman_contracts.demand import PoolWanted
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.observer import observing
from pointsman_testing.stack import EngineProcess, ServedPool, Stack, StackFactory

pytestmark = pytest.mark.timeout(240)

SLEEPERS = ServedPool(options=("--enable-sleep-mode", "--wake-s", "0.2"))
REQUESTS = 20


ON: dict[str, JsonValue] = {"enabled": True}


def changes(wake: dict[str, JsonValue]) -> dict[str, JsonValue]:
    flow: JsonValue = {"ttl": "60s", "no_endpoint_ttl": "60s", "wake": wake}
    return {"scheduling": {"default": {"flow_control": flow}}, "edge": {"decision_timeout": "60s"}}


async def put_to_sleep(stack: Stack, http: aiohttp.ClientSession) -> None:
    for engine in stack.engines:
        async with http.post(f"{engine.url}/sleep?level=1") as answer:
            assert answer.status == 200
    for engine in stack.engines:
        await eventually(stack.state_is(engine, "asleep"))


async def ask(http: aiohttp.ClientSession, stack: Stack) -> int:
    body = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    async with http.post(f"{stack.door}/v1/chat/completions", json=body) as answer:
        await answer.read()
        return answer.status


async def wakes(engine: EngineProcess) -> int:
    return int(str((await engine.state())["wakes"]))


async def test_requests_for_a_sleeping_pool_wake_one_engine_once_and_are_all_answered(stacks: StackFactory) -> None:
    async with (
        stacks.start(changes=changes(ON), served=SLEEPERS, replicas={"scheduler": 2}) as stack,
        observing(stack.nats.url) as observer,
        aiohttp.ClientSession() as http,
    ):
        wanted = observer.listen(PoolWanted, ANY)
        await put_to_sleep(stack, http)
        statuses = await asyncio.gather(*[ask(http, stack) for _ in range(REQUESTS)])
        assert statuses == [200] * REQUESTS
        assert sorted([await wakes(engine) for engine in stack.engines]) == [0, 1]
        await eventually(lambda: wanted and all(_last(wanted, source).ended == "served" for source in _sources(wanted)))
        assert {event.there for event in wanted} == {"asleep"}


@pytest.mark.parametrize("stream", [False, True])
async def test_only_an_answer_that_waited_for_an_engine_has_the_time_in_its_head(
    stacks: StackFactory, stream: bool
) -> None:
    async with (
        stacks.start(changes=changes(ON), served=SLEEPERS) as stack,
        aiohttp.ClientSession() as http,
    ):
        await put_to_sleep(stack, http)
        body = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "Hello"}], "stream": stream}
        waited, at_once = [await _told_queue_time(http, stack, body) for _ in range(2)]
        assert waited is not None
        assert int(waited) >= 1
        assert at_once is None


async def _told_queue_time(http: aiohttp.ClientSession, stack: Stack, body: object) -> str | None:
    async with http.post(f"{stack.door}/v1/chat/completions", json=body) as answer:
        await answer.read()
        assert answer.status == 200
        return answer.headers.get("x-pointsman-queue-ms")


async def test_an_engine_that_can_not_be_woken_is_passed_over_for_the_next_and_doctor_says_why(
    stacks: StackFactory,
) -> None:
    async with (
        stacks.start(changes=changes(ON), served=SLEEPERS, stored=True) as stack,
        aiohttp.ClientSession() as http,
    ):
        first = stack.engines[0]
        async with http.post(f"{first.url}/sleep?level=2") as answer:
            assert answer.status == 200
        async with http.post(f"{stack.engines[1].url}/sleep?level=1") as answer:
            assert answer.status == 200
        for engine in stack.engines:
            await eventually(stack.state_is(engine, "asleep"))
        assert await ask(http, stack) == 200
        assert [await wakes(engine) for engine in stack.engines] == [0, 1]

        async def told() -> bool:
            _, said = await stack.command("doctor")
            return "it sleeps and can't be woken (its weights were discarded (sleep level 2)" in said

        await eventually(told)


async def test_engines_that_say_that_they_woke_hang_or_sleep_again_are_passed_over_one_after_the_other(
    stacks: StackFactory,
) -> None:
    quick: dict[str, JsonValue] = {"enabled": True, "serve_within": "1500ms"}
    async with (
        stacks.start(changes=changes(quick), served=SLEEPERS, engines=4) as stack,
        aiohttp.ClientSession() as http,
    ):
        for engine, fault in zip(stack.engines, ("wake-ignored", "wake-hang", "wake-short"), strict=False):
            await engine.set_faults(fault)
        await put_to_sleep(stack, http)
        statuses = await asyncio.gather(*[ask(http, stack) for _ in range(REQUESTS)])
        assert statuses == [200] * REQUESTS
        assert [await wakes(engine) for engine in stack.engines] == [1, 1, 1, 1]


async def test_without_wake_requests_wait_for_whoever_wakes_an_engine_and_demand_is_published(
    stacks: StackFactory,
) -> None:
    async with (
        stacks.start(changes=changes({}), served=SLEEPERS) as stack,
        observing(stack.nats.url) as observer,
        aiohttp.ClientSession() as http,
    ):
        wanted = observer.listen(PoolWanted, ANY)
        await put_to_sleep(stack, http)
        asking = asyncio.create_task(ask(http, stack))
        await eventually(lambda: len(wanted) > 0)
        assert (wanted[0].there, wanted[0].asleep, wanted[0].waiting) == ("asleep", 2, 1)
        assert [await wakes(engine) for engine in stack.engines] == [0, 0]
        async with http.post(f"{stack.engines[1].url}/wake_up") as answer:
            assert answer.status == 200
        assert await asking == 200
        await eventually(lambda: wanted[-1].ended == "served")


def _sources(wanted: list[PoolWanted]) -> set[str]:
    return {event.source for event in wanted}


def _last(wanted: list[PoolWanted], source: str) -> PoolWanted:
    return [event for event in wanted if event.source == source][-1]
