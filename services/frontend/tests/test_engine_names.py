"""Engines that are addressed by name: names that move, fail, take long, or lead to addresses of which some are dead."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import pytest

from pointsman_contracts.response import AttemptFailed, ResponseCompleted
from pointsman_runtime.reaching import host_names
from pointsman_testing import eventually
from pointsman_testing.fake_names import SLOW, Names, answering_names, unanswering
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import RawResponse, post, raw_request
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'
NAME = "engine-1.test"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Generator[Names]:
    with answering_names(monkeypatch) as names:
        yield names


@asynccontextmanager
async def two_engines() -> AsyncGenerator[tuple[ScriptedEngine, ScriptedEngine]]:
    """At one port of two addresses."""
    async with ScriptedEngine() as first:
        second = ScriptedEngine(host="127.0.0.2")
        second.port = first.port
        async with second:
            yield first, second


async def ask(edge: EdgeUnderTest) -> RawResponse:
    return await raw_request(edge.url, post(CHAT, BODY))


def reasons(edge: EdgeUnderTest) -> list[str]:
    return [attempt.reason for done in edge.events.of(ResponseCompleted) for attempt in done.attempts]


async def close_each(request: Received) -> None:
    await request.answer(ANSWER, more="connection: close\r\n")


async def test_a_dead_address_costs_a_name_with_a_live_one_nothing(start_edge: StartEdge, names: Names) -> None:
    async with ScriptedEngine(close_each) as engine:
        names.addresses[NAME] = ["127.0.0.3", "127.0.0.1"]
        with unanswering("127.0.0.3", engine.port):
            edge = await start_edge(f"http://{NAME}:{engine.port}")
            for _ in range(3):
                assert (await ask(edge)).body == ANSWER
    assert edge.events.of(AttemptFailed) == []


async def test_a_route_of_ipv6_that_is_refused_leaves_the_one_of_ipv4(start_edge: StartEdge, names: Names) -> None:
    async with ScriptedEngine() as engine:
        names.addresses[NAME] = ["::1", "127.0.0.1"]
        edge = await start_edge(f"http://{NAME}:{engine.port}")
        assert (await ask(edge)).body == ANSWER
    assert edge.events.of(AttemptFailed) == []


async def test_a_name_that_moves_takes_its_requests_along_though_the_old_address_still_answers(
    start_edge: StartEdge, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_names, "FRESH_S", 0.0)
    monkeypatch.setattr(host_names, "REFRESHED_S", 0.0)
    monkeypatch.setattr(host_names, "LEFT_AFTER_S", 0.2)
    async with two_engines() as (first, second):
        names.addresses[NAME] = ["127.0.0.1"]
        edge = await start_edge(f"http://{NAME}:{first.port}")
        assert (await ask(edge)).status == 200
        names.addresses[NAME] = ["127.0.0.2"]

        async def moved() -> bool:
            assert (await ask(edge)).status == 200
            return bool(second.received)

        async with asyncio.timeout(20):
            while not await moved():
                pass
        before = len(first.received)
        assert (await ask(edge)).status == 200
        assert len(first.received) == before
    assert edge.events.of(AttemptFailed) == []


async def test_an_address_that_one_lookup_leaves_out_keeps_its_connections(
    start_edge: StartEdge, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_names, "REFRESHED_S", 0.0)
    async with two_engines() as (first, second):
        names.addresses[NAME] = ["127.0.0.1"]
        edge = await start_edge(f"http://{NAME}:{first.port}")
        assert (await ask(edge)).status == 200
        names.addresses[NAME] = ["127.0.0.2"]
        looked_up = len(names.asked)
        await eventually(lambda: len(names.asked) > looked_up + 2)
        assert (await ask(edge)).status == 200
        assert (first.connections, second.connections) == (1, 0)


async def test_after_a_refused_connection_the_name_is_looked_up_anew(start_edge: StartEdge, names: Names) -> None:
    async with two_engines() as (first, second):
        first.script = second.script = close_each
        names.addresses[NAME] = ["127.0.0.1"]
        edge = await start_edge(f"http://{NAME}:{first.port}")
        assert (await ask(edge)).status == 200
        await first.stop()
        names.addresses[NAME] = ["127.0.0.2"]
        assert [(await ask(edge)).status, (await ask(edge)).status] == [502, 200]


@pytest.mark.parametrize("error", [socket.EAI_AGAIN, socket.EAI_FAIL])
async def test_a_resolver_that_fails_for_a_while_costs_no_request(
    start_edge: StartEdge, names: Names, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(host_names, "FRESH_S", 0.0)
    async with ScriptedEngine(close_each) as engine:
        names.addresses[NAME] = ["127.0.0.1"]
        edge = await start_edge(f"http://{NAME}:{engine.port}")
        assert (await ask(edge)).status == 200
        del names.addresses[NAME]
        names.error = socket.gaierror(error, "Temporary failure in name resolution")
        for _ in range(5):
            assert (await ask(edge)).status == 200
        names.addresses[NAME] = ["127.0.0.1"]
        assert (await ask(edge)).status == 200
    assert edge.events.of(AttemptFailed) == []


async def test_a_name_that_is_gone_leads_nowhere_until_it_is_back(
    start_edge: StartEdge, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old address may be another pod's by now, to which no prompt must go."""
    monkeypatch.setattr(host_names, "FRESH_S", 0.0)
    async with ScriptedEngine(close_each) as engine:
        names.addresses[NAME] = ["127.0.0.1"]
        edge = await start_edge(f"http://{NAME}:{engine.port}")
        assert (await ask(edge)).status == 200
        del names.addresses[NAME]
        assert (await ask(edge)).status == 502
        assert len(engine.received) == 1
        assert reasons(edge) == ["", "Name or service not known"]
        names.addresses[NAME] = ["127.0.0.1"]
        assert (await ask(edge)).status == 200


async def test_a_slow_resolver_holds_up_no_other_name_and_is_asked_once(start_edge: StartEdge, names: Names) -> None:
    async with ScriptedEngine() as engine:
        names.addresses |= {NAME: ["127.0.0.1"], SLOW: ["127.0.0.1"]}
        slow = await start_edge(f"http://{SLOW}:{engine.port}", config={"edge": {"connect_timeout": "200ms"}})
        other = await start_edge(f"http://{NAME}:{engine.port}")
        answers = await asyncio.gather(*(ask(slow) for _ in range(40)))
        assert {answer.status for answer in answers} == {502}
        assert names.asked.count(SLOW) == 1
        assert (await ask(other)).status == 200
        names.answers.set()

        async def answered() -> bool:
            return (await ask(slow)).status == 200

        async with asyncio.timeout(20):
            while not await answered():
                pass


async def test_a_name_whose_lookup_takes_long_is_reached_at_its_known_address_meanwhile(
    start_edge: StartEdge, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_names, "FRESH_S", 0.0)
    async with ScriptedEngine(close_each) as engine:
        names.addresses[SLOW] = ["127.0.0.1"]
        names.answers.set()
        edge = await start_edge(f"http://{SLOW}:{engine.port}")
        assert (await ask(edge)).status == 200
        names.answers.clear()
        for _ in range(2):
            assert (await ask(edge)).status == 200
    assert edge.events.of(AttemptFailed) == []
