"""An unruly engine does what its behaviour says, and counts what was asked of it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from pointsman_testing import eventually
from pointsman_testing.processes import Processes
from pointsman_testing.unruly.behaviour import GOOD, Behaviour
from pointsman_testing.unruly.engine import CHAT, UnrulyEngine
from pointsman_testing.unruly.fleet import start_fleet

BRIEF = aiohttp.ClientTimeout(total=0.3)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[UnrulyEngine]:
    async with UnrulyEngine(first_token_s=0.0, token_s=0.0) as started:
        yield started


@pytest_asyncio.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield session


async def chat(http: aiohttp.ClientSession, engine: UnrulyEngine, **fields: object) -> tuple[int, str]:
    body = {"model": "m", "messages": [{"role": "user", "content": "r1 hello"}], "max_tokens": 4, **fields}
    async with http.post(engine.url + CHAT, json=body) as answer:
        return answer.status, await answer.text()


async def page(http: aiohttp.ClientSession, engine: UnrulyEngine, path: str) -> tuple[int, str]:
    async with http.get(engine.url + path) as answer:
        return answer.status, await answer.text()


async def test_a_good_engine_answers_and_counts(engine: UnrulyEngine, http: aiohttp.ClientSession) -> None:
    status, text = await chat(http, engine)
    assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 4)
    status, text = await chat(http, engine, stream=True)
    assert (status, text.count('"content"'), text.endswith("data: [DONE]\n\n")) == (200, 4, True)
    await eventually(lambda: [work.end for work in engine.work] == ["done", "done"])
    assert [work.request for work in engine.work] == ["r1", "r1"]
    assert (engine.running, engine.waiting) == (0, 0)


async def test_an_error_is_no_work(engine: UnrulyEngine, http: aiohttp.ClientSession) -> None:
    await engine.behave(Behaviour(status=429, part=0.5))
    assert [(await chat(http, engine))[0] for _ in range(4)] == [200, 429, 200, 429]
    await eventually(lambda: [work.started for work in engine.work] == [True, False, True, False])


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("cut", "end"), [("head", "refused"), ("body", "cut"), ("event", "cut")])
async def test_a_cut_answer_ends_its_connection(
    engine: UnrulyEngine, http: aiohttp.ClientSession, cut: str, end: str, stream: bool, reset: bool
) -> None:
    await engine.behave(Behaviour(cut=cut, reset=reset))  # pyright: ignore[reportArgumentType] - one of its literals
    with pytest.raises(aiohttp.ClientError):
        await chat(http, engine, stream=stream)
    await eventually(lambda: [work.end for work in engine.work] == [end])


async def test_an_engine_may_answer_what_is_not_http(engine: UnrulyEngine, http: aiohttp.ClientSession) -> None:
    await engine.behave(Behaviour(garbage=True))
    with pytest.raises(aiohttp.ClientError):
        await chat(http, engine)
    await eventually(lambda: [work.end for work in engine.work] == ["refused"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hang", ["head", "body", "event"])
async def test_a_hung_request_goes_on_when_the_engine_is_good_again(
    engine: UnrulyEngine, http: aiohttp.ClientSession, hang: str, stream: bool
) -> None:
    await engine.behave(Behaviour(hang=hang))  # pyright: ignore[reportArgumentType] - one of its literals
    asking = asyncio.create_task(chat(http, engine, stream=stream))
    await eventually(lambda: engine.running == 1)
    await engine.behave(GOOD)
    assert (await asking)[0] == 200
    await eventually(lambda: engine.work[0].end == "done")


async def test_a_client_that_leaves_is_counted(engine: UnrulyEngine, http: aiohttp.ClientSession) -> None:
    await engine.behave(Behaviour(hang="head"))
    asking = asyncio.create_task(chat(http, engine))
    await eventually(lambda: engine.running == 1)
    asking.cancel()
    await eventually(lambda: engine.work[0].end == "aborted" and engine.running == 0)


async def test_connections_misbehave_too(engine: UnrulyEngine, http: aiohttp.ClientSession) -> None:
    await engine.behave(Behaviour(listens=False))
    with pytest.raises(aiohttp.ClientConnectorError):
        await page(http, engine, "/health")
    await engine.behave(GOOD)
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    writer.write(b"GET /health HTTP/1.1\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await engine.behave(Behaviour(accepts=False))
    with contextlib.suppress(ConnectionError):
        await reader.read()  # an idle connection ends
    writer.close()
    with pytest.raises(TimeoutError):
        async with http.get(engine.url + "/health", timeout=BRIEF):
            pass
    await engine.behave(Behaviour(frozen=True))
    asking = asyncio.create_task(page(http, engine, "/health"))
    await eventually(lambda: engine.connections > 0)
    assert not asking.done()
    await engine.behave(GOOD)
    assert (await asking)[0] == 200
    await engine.behave(Behaviour(idle_close_s=0.05))
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    writer.write(b"GET /health HTTP/1.1\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n")
    assert await reader.read() == b""
    writer.close()


async def test_pages_lie(engine: UnrulyEngine, http: aiohttp.ClientSession) -> None:
    async def metrics() -> str:
        return (await page(http, engine, "/metrics"))[1]

    await engine.behave(Behaviour(waiting=500, health=503, metrics=500))
    assert [(await page(http, engine, path))[0] for path in ("/health", "/metrics")] == [503, 500]
    await engine.behave(Behaviour(waiting=500))
    assert 'num_requests_waiting{engine="0",model_name="m"} 500.0' in await metrics()
    await engine.behave(Behaviour(exposition="nan"))
    assert 'num_requests_waiting{engine="0",model_name="m"} NaN' in await metrics()
    await engine.behave(Behaviour(exposition="renamed"))
    assert "num_requests_waiting" not in await metrics()
    await engine.behave(Behaviour(exposition="two_lives"))
    assert len({(await metrics()).splitlines()[0] for _ in range(4)}) == 2
    await engine.behave(Behaviour(health=503, flap_s=0.05))
    seen: set[int] = set()

    async def both() -> bool:
        seen.add((await page(http, engine, "/health"))[0])
        return seen == {200, 503}

    await eventually(both)
    await engine.behave(Behaviour(models=("other",)))
    assert "other" in (await page(http, engine, "/v1/models"))[1]
    assert (await chat(http, engine))[0] == 404
    await engine.behave(Behaviour(usage="negative", cached_tokens=7))
    assert json.loads((await chat(http, engine))[1])["usage"]["completion_tokens"] == -3


async def test_a_process_of_engines_is_told_at_run_time(processes: Processes, http: aiohttp.ClientSession) -> None:
    fleet = await start_fleet(processes, http, {"a": "m", "b": "m"})
    await fleet.behave({"a": Behaviour(status=500)})
    body = {"model": "m", "messages": [{"role": "user", "content": "r7 x"}]}

    async def ask(name: str) -> int:
        async with http.post(fleet.urls[name] + CHAT, json=body) as answer:
            return answer.status

    assert [await ask(name) for name in ("a", "b")] == [500, 200]

    async def seen() -> dict[str, list[str]]:
        return {
            name: [f"{one.request} {one.end}" for one in found]
            for name, found in (await fleet.work(fleet.urls)).items()
        }

    assert await seen() == {"a": ["r7 refused"], "b": ["r7 done"]}
    assert await seen() == {"a": [], "b": []}
    await fleet.restart(["b"])
    assert await ask("b") == 200
    with pytest.raises(AssertionError, match="unknown field"):
        await fleet.send("PUT", "/behaviours", b'{"a": {"wrong": 1}}')
