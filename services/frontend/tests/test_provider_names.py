"""Providers whose names move, fail, take long, or lead to addresses of which some are dead."""

import asyncio
import socket
from collections.abc import Generator
from functools import partial

import pytest

from pointsman_contracts.journey import Target
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_runtime.reaching import host_names
from pointsman_testing import eventually
from pointsman_testing.fake_names import SLOW, Names, answering_names, unanswering
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import RawResponse, post, raw_request
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'
NAME = "far.test"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Generator[Names]:
    monkeypatch.setenv("TEST_PROVIDER_KEY", "key-of-the-test")
    monkeypatch.setattr(host_names, "FRESH_S", 0.0)
    with answering_names(monkeypatch) as names:
        yield names


async def close_each(request: Received) -> None:
    await request.answer(ANSWER, more="connection: close\r\n")


async def edge_with(start_edge: StartEdge, **urls: str) -> EdgeUnderTest:
    """Its requests go to the provider `far`."""
    providers: dict[str, object] = {
        name: {
            "kind": "openai",
            "base_url": f"{url}/v1",
            "credential": "env:TEST_PROVIDER_KEY",
            "connect_timeout": 5,
            "plaintext": True,
        }
        for name, url in urls.items()
    }
    edge = await start_edge(config={"providers": providers, "models": {}})
    go_to(edge, "far")
    return edge


def go_to(edge: EdgeUnderTest, name: str) -> None:
    target = Target(model="llama-8b", provider=name)
    endpoint = ChosenEndpoint(worker=name, url="", target=target)
    edge.stages.changes = {"model": "llama-8b", "target": target, "endpoints": (endpoint,), "scheduler": ""}


def has_asked(edge: EdgeUnderTest, times: int) -> bool:
    return len(edge.stages.asked) == times


async def ask(edge: EdgeUnderTest) -> RawResponse:
    return await raw_request(edge.url, post(CHAT, BODY))


async def test_a_dead_address_costs_a_name_with_a_live_one_nothing(start_edge: StartEdge, names: Names) -> None:
    async with ScriptedEngine(close_each) as far:
        names.addresses[NAME] = ["127.0.0.3", "127.0.0.1"]
        with unanswering("127.0.0.3", far.port):
            edge = await edge_with(start_edge, far=f"http://{NAME}:{far.port}")
            assert [(await ask(edge)).status for _ in range(3)] == [200] * 3


async def test_a_name_that_moves_takes_its_new_connections_along(start_edge: StartEdge, names: Names) -> None:
    async with ScriptedEngine(close_each) as far:
        names.addresses[NAME] = ["127.0.0.1"]
        edge = await edge_with(start_edge, far=f"http://{NAME}:{far.port}")
        assert (await ask(edge)).status == 200
        await far.stop()
        async with ScriptedEngine(close_each, host="127.0.0.2") as moved:
            pass
        moved.port = far.port
        async with moved:
            names.addresses[NAME] = ["127.0.0.2"]
            assert (await ask(edge)).status == 200
            assert len(moved.received) == 1


@pytest.mark.parametrize("error", [socket.EAI_AGAIN, socket.EAI_FAIL])
async def test_a_resolver_that_fails_for_a_while_costs_no_request(
    start_edge: StartEdge, names: Names, error: int
) -> None:
    async with ScriptedEngine(close_each) as far:
        names.addresses[NAME] = ["127.0.0.1"]
        edge = await edge_with(start_edge, far=f"http://{NAME}:{far.port}")
        assert (await ask(edge)).status == 200
        del names.addresses[NAME]
        names.error = socket.gaierror(error, "Temporary failure in name resolution")
        assert [(await ask(edge)).status for _ in range(3)] == [200] * 3


async def test_names_that_hang_hold_up_no_other_provider(start_edge: StartEdge, names: Names) -> None:
    async with ScriptedEngine(close_each) as far:
        names.addresses[NAME] = ["127.0.0.1"]
        slow = {f"slow-{number}": f"http://{number}.{SLOW}:{far.port}" for number in range(40)}
        edge = await edge_with(start_edge, far=f"http://{NAME}:{far.port}", **slow)
        hanging: list[asyncio.Task[RawResponse]] = []
        for name in slow:
            go_to(edge, name)
            asked = len(edge.stages.asked) + 1
            hanging.append(asyncio.create_task(ask(edge)))
            await eventually(partial(has_asked, edge, asked))
        go_to(edge, "far")
        assert (await ask(edge)).status == 200
        names.answers.set()
        await asyncio.gather(*hanging)
