"""A server of several data-parallel ranks: one door, and a batch, a cache and KV events for each rank."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio
from pydantic import JsonValue

from pointsman_engines.dialect import detect
from pointsman_engines.exposition import Exposition
from pointsman_engines.reading import Reading, read, read_cache
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.faults import parse_fault
from pointsman_simulator.inference import ModelConfig
from pointsman_simulator.server import ServerConfig, SimulatedEngine
from pointsman_simulator.timing import Timing
from pointsman_testing import eventually

CHAT = "/v1/chat/completions"
LONG: dict[str, JsonValue] = {"max_tokens": 4000, "ignore_eos": True, "stream": True}


class Server:
    """Three ranks, and a client of them."""

    def __init__(self, engine: SimulatedEngine, http: aiohttp.ClientSession) -> None:
        self.engine = engine
        self._http = http

    async def ask(
        self, rank: int | str | None, text: str = "x" * 800, path: str = CHAT, **fields: JsonValue
    ) -> tuple[int, dict[str, JsonValue]]:
        key = "input" if path == "/v1/responses" else "messages"
        content: JsonValue = text if key == "input" else [{"role": "user", "content": text}]
        body: dict[str, JsonValue] = {"model": "m", key: content, "max_tokens": 4, **fields}
        headers = {} if rank is None else {"x-data-parallel-rank": str(rank)}
        async with self._http.post(f"http://127.0.0.1:{self.engine.port}{path}", json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    @asynccontextmanager
    async def running(self, rank: int) -> AsyncGenerator[None]:
        """Meanwhile a request of this rank runs."""
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **LONG}
        url, headers = f"http://127.0.0.1:{self.engine.port}{CHAT}", {"x-data-parallel-rank": str(rank)}
        async with self._http.post(url, json=body, headers=headers) as answer:
            await answer.content.readany()
            yield

    async def read(self) -> tuple[Reading, tuple[str, ...]]:
        """The load and the labels of the ranks, as an agent reads them."""
        async with self._http.get(f"http://127.0.0.1:{self.engine.port}/metrics") as page:
            exposition = Exposition(await page.read())
        dialect = detect(exposition)
        assert dialect is not None
        return read(dialect, exposition), read_cache(dialect, exposition).rank_labels

    async def state(self) -> dict[str, Any]:
        """The counters of the server."""
        async with self._http.get(f"http://127.0.0.1:{self.engine.admin_port}/state") as answer:
            return await answer.json()

    async def finished(self) -> list[int]:
        """Requests that each rank has answered."""
        return [rank["finished"] for rank in (await self.state())["ranks"]]


@asynccontextmanager
async def server(*faults: str, kv: bool = False) -> AsyncGenerator[Server]:
    engine = SimulatedEngine(
        ServerConfig(
            ModelConfig(("m",)),
            EngineConfig(num_blocks=1024, block_size=16, timing=Timing(speedup=20)),
            ranks=3,
            faults=tuple(parse_fault(fault) for fault in faults),
            admin_port=0,
            kv_events="tcp://127.0.0.1:*" if kv else None,
            kv_replay="tcp://127.0.0.1:*" if kv else None,
        )
    )
    await engine.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield Server(engine, http)
    finally:
        await engine.stop()


async def test_a_request_gets_the_rank_that_it_names_and_finds_that_ranks_cache() -> None:
    async with server() as some:
        cached = list[object]()
        for rank in (1, 1, 2):
            status, body = await some.ask(rank)
            assert status == 200
            usage = body["usage"]
            assert isinstance(usage, dict)
            details = usage["prompt_tokens_details"]
            assert isinstance(details, dict)
            cached.append(details["cached_tokens"])
        assert cached[0] == cached[2] == 0
        assert isinstance(cached[1], int)
        assert cached[1] > 0
        assert await some.finished() == [0, 2, 1]


async def test_a_rank_that_the_server_lacks_is_refused_as_vllm_does_it() -> None:
    async with server() as some:
        status, body = await some.ask(3)
        assert status == 400
        error = body["error"]
        assert isinstance(error, dict)
        assert error["message"] == "data_parallel_rank 3 is out of range [0, 3)."


@pytest.mark.parametrize(("rank", "path"), [(None, CHAT), ("second", CHAT), (0, "/v1/responses")])
async def test_without_a_rank_that_is_read_the_rank_with_the_fewest_requests_answers(
    rank: str | int | None, path: str
) -> None:
    async with server() as some, some.running(0), some.running(1):
        assert (await some.ask(rank, path=path))[0] == 200
        assert await some.finished() == [0, 0, 1]


async def test_the_metrics_tell_the_ranks_apart() -> None:
    async with server() as some, some.running(1):
        reading, labels = await some.read()
        assert labels == ("0", "1", "2")
        assert reading.by_rank is not None
        assert {label: rank.running for label, rank in reading.by_rank.items()} == {"0": 0, "1": 1, "2": 0}


async def test_faults_of_ranks_show_where_they_say() -> None:
    async with server("ignore-rank", "stall-rank=2", "hide-rank=2", "idle-rank=1") as some, some.running(0):
        async with some.running(0):
            reading, labels = await some.read()
            assert labels == ("0", "1")
            assert reading.by_rank is not None
            assert {label: rank.running for label, rank in reading.by_rank.items()} == {"0": 1, "1": 0}
        async with some.running(1):
            stuck = asyncio.create_task(some.ask(0))

            async def three_open() -> bool:
                return (await some.state())["open_requests"] == 3

            await eventually(three_open)
            assert await some.finished() == [0, 0, 0]
            stuck.cancel()


async def test_each_rank_publishes_its_blocks_at_the_port_after_the_last_ones() -> None:
    async with server(kv=True) as some:
        endpoints = [each.live for each in some.engine.publishers]
        head, _, port = endpoints[0].rpartition(":")
        assert endpoints == [f"{head}:{int(port) + n}" for n in range(3)]
        context = zmq.asyncio.Context()
        sockets = [context.socket(zmq.SUB) for _ in range(3)]
        try:
            for endpoint, socket in zip(endpoints, sockets, strict=True):
                socket.connect(endpoint)
                socket.subscribe(b"")
            asked = itertools.count()

            async def told() -> bool:
                await some.ask(2, text=f"{next(asked)} " + "y" * 400)
                return bool(await sockets[2].poll(50))

            await eventually(told)  # a subscription takes a moment
            _, _, payload = await sockets[2].recv_multipart()
            assert msgspec.msgpack.decode(payload)[2] == 2
            assert not await sockets[0].poll(0)
            assert not await sockets[1].poll(0)
        finally:
            context.destroy(linger=0)
