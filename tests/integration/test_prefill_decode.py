"""Two engines serve one request, through every service of a gateway."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import aiohttp
import pytest
import pytest_asyncio
from pydantic import JsonValue

from pointsman_contracts.response import LegReport, ResponseCompleted
from pointsman_testing import Processes, eventually
from pointsman_testing.nixl_pair import NixlPair
from pointsman_testing.observer import observing
from pointsman_testing.ports import free_port
from pointsman_testing.stack import ServedPool, Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

POOL, MODEL = "split", "split-8b"
SERVED = ServedPool(POOL, (MODEL,), ())
StartEnvoy = Callable[..., Awaitable[str]]


class Split(NamedTuple):
    """A gateway and its two engines."""

    stack: Stack
    pair: NixlPair


def configuration(pair: NixlPair, decode_url: str) -> dict[str, JsonValue]:
    """Every prompt goes to the pair's first engine, and every answer's part to `decode_url`."""
    roles: dict[str, JsonValue] = {
        role: {"filters": ["healthy", {"use": "role", "role": role}], "scorers": ["queue"]}
        for role in ("prefill", "decode")
    }
    engines: list[JsonValue] = [
        {"url": pair.prefill.url, "name": "p", "role": "prefill"},
        {"url": decode_url, "name": "d", "role": "decode"},
    ]
    return {
        "pools": {POOL: {"models": [MODEL], "discovery": "static", "engines": engines, "scheduling": "split"}},
        "models": {MODEL: {"pool": POOL}},
        "scheduling": {"split": {"handler": "disaggregated", "profiles": roles}},
        "selectors": {},
        "profiles": {"standard": {"request": ["scheduler"]}},
        "profile-picker": {"use": "single", "profile": "standard"},
        "preprocessing": [],
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def split(stacks: StackFactory) -> AsyncIterator[Split]:
    async with (
        NixlPair(MODEL) as pair,
        stacks.start(
            engines=0,
            changes=configuration(pair, pair.decode.url),
            served=SERVED,
            bundled=True,
            static=None,
            replicas={"recorder": 1},
        ) as stack,
    ):
        yield Split(stack, pair)


async def test_behind_envoy_the_agent_before_the_engine_sends_the_first_leg(
    stacks: StackFactory, module_processes: Processes, start_envoy: StartEnvoy
) -> None:
    port = free_port()
    sidecar = f"http://127.0.0.1:{port}"
    async with (
        NixlPair(MODEL) as pair,
        stacks.start(
            engines=0, changes=configuration(pair, sidecar), served=SERVED, bundled=True, static=None
        ) as stack,
        observing(stack.nats.url) as seen,
        aiohttp.ClientSession() as http,
    ):
        module_processes.fork(
            "pointsman-worker-agent",
            "--pd-sidecar",
            f"127.0.0.1:{port}",
            env={
                **stack.env,
                "POINTSMAN_ENGINE_URL": pair.decode.url,
                "POINTSMAN_ADVERTISE_URL": sidecar,
                "POINTSMAN_POOL": "elsewhere",
                "POINTSMAN_PD_PREFILLERS": '["127.0.0.1"]',
            },
        )
        adapter = module_processes.fork("pointsman-epp-adapter", env={**stack.env, "POINTSMAN_PORT": "0"})
        await adapter.wait_ready()
        url = next(str(line["url"]) for line in adapter.log_lines() if line["event"] == "serving")
        ends = seen.listen(ResponseCompleted, POOL)
        door = await start_envoy(("127.0.0.1", int(url.rpartition(":")[2])), [("127.0.0.1", port)])
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True}

        async def transferred() -> bool:
            async with http.post(f"{door}/v1/chat/completions", json=body) as answer:
                text = await answer.text()
                assert "x-pointsman-prefill-leg" not in answer.headers
                return answer.status == 200 and "answer" in text and pair.transfers > 0

        await eventually(transferred)

        async def named() -> LegReport | None:
            # An adapter that has just started may know the engine by its address alone.
            await transferred()
            return next((leg for end in reversed(ends) for leg in end.legs if leg.worker == "p"), None)

        leg = await eventually(named)
    assert (leg.leg, leg.outcome, leg.status) == ("prefill", "answered", 200)
    assert pair.held == {}


async def test_a_request_is_one_to_its_client_and_two_legs_to_its_operator(split: Split) -> None:
    stack, pair = split
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True}
    async with observing(stack.nats.url) as seen, aiohttp.ClientSession() as http:
        ends = seen.listen(ResponseCompleted, POOL)

        async def transferred() -> bool:
            async with http.post(f"{stack.door}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200
                assert "answer" in await answer.text()
                return pair.transfers > 0 and answer.headers["x-pointsman-level"] == "full"

        # The second engine may be known a moment before the first one is, and each before its load is.
        await eventually(transferred)
        await eventually(lambda: bool(ends) and bool(ends[-1].legs) and ends[-1].level == "full")
    end = ends[-1]
    assert (end.worker, end.status, end.level) == ("d", 200, "full")
    assert [(leg.leg, leg.worker, leg.outcome) for leg in end.legs] == [("prefill", "p", "answered")]
    assert pair.held == {}

    async def explained() -> bool:
        code, text = await stack.command("explain", end.request_id)
        assert code == 0, text
        return "prefill" in text and "answered" in text and "ms" in text

    await eventually(explained)


async def test_a_prefiller_that_dies_is_left_out_of_decisions_and_fails_no_request(split: Split) -> None:
    stack, pair = split
    await pair.prefill.stop()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    before = pair.computed
    async with aiohttp.ClientSession() as http:
        for _ in range(10):
            async with http.post(f"{stack.door}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
    assert pair.computed == before + 10
