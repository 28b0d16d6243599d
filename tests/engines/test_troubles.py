"""The fleet view of an engine that is killed, restarted, put to sleep, full, or loses its cache."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
import pytest
from pydantic import JsonValue

from pointsman_testing import eventually
from pointsman_testing.engine_stack import EngineStack
from pointsman_testing.real_engine import RealEngine

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.ours,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(1800),
]

KNOWN_S: Final = 5.0
"""Bound of what a busy machine may take; what it took is in the results."""
MORE_THAN_FITS: Final = 120
"""Both engines run 16 requests and queue 16."""
CHAT: Final = "/v1/chat/completions"


async def ask(fleet: EngineStack, http: aiohttp.ClientSession, **fields: JsonValue) -> int:
    body = {"model": fleet.model, "messages": [{"role": "user", "content": "Which track?"}], "max_tokens": 2}
    async with http.post(fleet.door + CHAT, json=body | fields) as answer:
        await answer.read()
        return answer.status


async def metric(url: str, name: str) -> float:
    """The sum of the samples whose line begins so."""
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def timed(fleet: EngineStack, engine: RealEngine, state: str, act: Callable[[], Awaitable[object]]) -> float:
    """Seconds from the act's end until the fleet view shows the state."""
    await act()
    began = time.monotonic()
    await eventually(fleet.state_is(engine, state), timeout=60)
    return time.monotonic() - began


async def test_a_sleeping_engine_gets_no_requests_until_it_is_woken(
    fleet: EngineStack, http: aiohttp.ClientSession, measured: dict[str, JsonValue]
) -> None:
    sleeper, other = fleet.real[1], fleet.real[0]
    asleep = await timed(fleet, sleeper, "asleep", lambda: sleeper.post("/sleep?level=1"))
    before = await other.metric("vllm:request_success_total")
    assert await asyncio.gather(*(ask(fleet, http) for _ in range(8))) == [200] * 8
    assert await other.metric("vllm:request_success_total") == before + 8
    awake = await timed(fleet, sleeper, "serving", lambda: sleeper.post("/wake_up"))
    measured["sleep"] = {"asleep known, seconds": round(asleep, 2), "awake known, seconds": round(awake, 2)}
    assert max(asleep, awake) < KNOWN_S


async def test_full_queues_refuse_what_is_too_much_and_serve_the_rest(
    fleet: EngineStack, measured: dict[str, JsonValue]
) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as http:
        statuses = await asyncio.gather(
            *(ask(fleet, http, max_tokens=150, min_tokens=150, ignore_eos=True) for _ in range(MORE_THAN_FITS))
        )
    counts = {str(status): statuses.count(status) for status in sorted(set(statuses))}
    rejected = sum([await engine.metric("vllm:admission_rejections_total") for engine in fleet.real])
    measured["full queues"] = {**counts, "refused by the engines": round(rejected)}
    assert set(statuses) <= {200, 429, 503}
    assert statuses.count(200) >= 32
    for engine in fleet.real:
        await eventually(fleet.state_is(engine, "serving"), timeout=60)


async def test_a_reset_cache_is_forgotten_with_the_next_batch_of_events(
    fleet: EngineStack, http: aiohttp.ClientSession, measured: dict[str, JsonValue]
) -> None:
    engine = fleet.real[0]
    agent = engine.agent.http_url
    prompt = "Which track does the train take at the points? " * 20
    await engine.post("/v1/completions", {"model": fleet.model, "prompt": prompt, "max_tokens": 1})

    async def held() -> float:
        return await metric(f"{agent}/metrics", "pointsman_kv_blocks_held")

    async def some() -> bool:
        return await held() > 0

    async def none() -> bool:
        return await held() == 0

    await eventually(some, timeout=30)
    assert await engine.post("/reset_prefix_cache") == 200
    # vLLM tells of it when it next works.
    await engine.post("/v1/completions", {"model": fleet.model, "prompt": "a", "max_tokens": 1})
    began = time.monotonic()
    await eventually(none, timeout=30)
    measured["cache reset"] = {"known after the next request, seconds": round(time.monotonic() - began, 2)}


async def test_batches_that_were_missed_are_sent_again(fleet: EngineStack) -> None:
    engine = fleet.real[0]
    agent = engine.agent
    agent.kill()
    for number in range(3):
        prompt = f"{number}: which track does the train take at the points? " * 12
        await engine.post("/v1/completions", {"model": fleet.model, "prompt": prompt, "max_tokens": 1})
    engine.start_agent({**fleet.env, **fleet.logins(f"worker-agent/{engine.name}")})
    await engine.agent.wait_ready()
    url = engine.agent.http_url

    async def knows() -> bool:
        return await metric(f"{url}/metrics", "pointsman_kv_blocks_held") > 0

    await eventually(knows, timeout=30)
    assert not any(line.get("event") == "kv_replay_unanswered" for line in engine.agent.log_lines())
    assert await metric(f"{url}/metrics", 'pointsman_kv_batches_total{outcome="lost"') == 0


async def test_a_killed_engine_is_unreachable_at_once_and_serves_again_in_a_new_life(
    fleet: EngineStack, http: aiohttp.ClientSession, measured: dict[str, JsonValue]
) -> None:
    victim = fleet.real[1]

    async def kill() -> None:
        await asyncio.to_thread(victim.kill)

    gone = await timed(fleet, victim, "unreachable", kill)
    assert await asyncio.gather(*(ask(fleet, http) for _ in range(6))) == [200] * 6
    back = await timed(fleet, victim, "serving", victim.start)
    measured["kill"] = {"gone known, seconds": round(gone, 2), "back known, seconds": round(back, 2)}
    assert max(gone, back) < KNOWN_S
    assert await asyncio.gather(*(ask(fleet, http) for _ in range(8))) == [200] * 8
