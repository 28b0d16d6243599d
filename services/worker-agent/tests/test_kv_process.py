"""The agent as a process, hearing an engine's KV events and telling the bus."""

import asyncio
import struct
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from pointsman_contracts.kv import WorkerKvEvents, WorkerKvQuery, WorkerKvState
from pointsman_testing import NatsServer, Processes, eventually
from pointsman_testing.observer import observing
from pointsman_testing.stack import POOL, EngineProcess

TOKENS = list(range(100, 116))


@pytest.fixture
async def engine(processes: Processes, tmp_path: Path) -> EngineProcess:
    started = EngineProcess("engine-1", processes, tmp_path, speedup=20.0)
    await started.start()
    return started


async def test_an_engines_stored_blocks_are_published_and_can_be_asked_for(
    own_nats_server: NatsServer, engine: EngineProcess
) -> None:
    context = zmq.asyncio.Context()
    publisher = context.socket(zmq.XPUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    number = 0

    async def publish(*events: object) -> None:
        nonlocal number
        payload = msgspec.msgpack.encode([0.0, list(events), 0])
        await publisher.send_multipart([b"", number.to_bytes(8, "big"), payload])  # pyright: ignore[reportUnknownMemberType]
        number += 1

    async with observing(own_nats_server.url) as seen:
        told = seen.listen(WorkerKvEvents, POOL, "engine-1")
        engine.start_agent(
            {
                "POINTSMAN_NATS_URL": own_nats_server.url,
                "POINTSMAN_KV_EVENTS": f"tcp://127.0.0.1:{port}",
                "POINTSMAN_KV_BLOCK_TOKENS": "8",
            }
        )
        async with asyncio.timeout(30):
            while (await publisher.recv())[:1] != b"\x01":
                pass
        await publish(["BlockStored", [1, 2, 3, 4], None, TOKENS, 4, None])
        await eventually(lambda: any(change.op == "stored" and change.blocks for m in told for change in m.changes))
        stored = [c.blocks for m in told for c in m.changes if c.op == "stored" and c.blocks]
        assert [len(blocks) for blocks in stored] == [16]
        held = struct.unpack("<2Q", stored[0])
        assert told[-1].block_tokens == 8
        assert told[-1].boot_id

        await publish(["BlockRemoved", [4]])
        await eventually(lambda: any(change.op == "removed" for m in told for change in m.changes))
        (gone,) = [change.blocks for m in told for change in m.changes if change.op == "removed"]
        assert struct.unpack("<Q", gone) == held[1:]

        last = told[-1].sequence
        beats = len(told)
        await eventually(lambda: len(told) > beats)  # silence is told as well
        assert (told[-1].sequence, told[-1].changes) == (last, ())

        state = WorkerKvState.decode(await seen.bus.ask(WorkerKvQuery(), POOL, "engine-1", timeout=30))
        assert (state.snapshot, state.total, state.sequence) == (True, 1, last)
        assert struct.unpack("<Q", state.held) == held[:1]
    context.destroy(linger=0)


@pytest.mark.requirement("SIGNAL-4")
@pytest.mark.parametrize("first_number", [0, 50], ids=["counts-anew", "first-heard-above-the-last"])
async def test_of_an_engine_that_restarted_nothing_is_believed_but_its_new_events(
    own_nats_server: NatsServer, engine: EngineProcess, first_number: int
) -> None:
    """llm-d/llm-d-router #2853: without a replay port, and idle at first."""
    context = zmq.asyncio.Context()
    port = 0

    async def publisher() -> zmq.asyncio.Socket:
        nonlocal port
        made = context.socket(zmq.XPUB)
        if port:
            await eventually(lambda: _bound(made, port))
        else:
            port = made.bind_to_random_port("tcp://127.0.0.1")
        return made

    async def subscribed(socket: zmq.asyncio.Socket) -> None:
        async with asyncio.timeout(30):
            while (await socket.recv())[:1] != b"\x01":
                pass

    async def store(socket: zmq.asyncio.Socket, number: int, tokens: list[int]) -> None:
        event = ["BlockStored", [tokens[0], tokens[0] + 1], None, tokens, 4, None]
        payload = msgspec.msgpack.encode([0.0, [event], 0])
        await socket.send_multipart([b"", number.to_bytes(8, "big"), payload])  # pyright: ignore[reportUnknownMemberType]

    async with observing(own_nats_server.url) as seen:
        told = seen.listen(WorkerKvEvents, POOL, "engine-1")
        old = await publisher()
        env = {"POINTSMAN_KV_EVENTS": f"tcp://127.0.0.1:{port}", "POINTSMAN_KV_BLOCK_TOKENS": "8"}
        engine.start_agent({"POINTSMAN_NATS_URL": own_nats_server.url, **env})
        await subscribed(old)
        await eventually(lambda: told)
        for number in range(4):
            await store(old, number, list(range(100 * number, 100 * number + 8)))

        async def held() -> int:
            state = WorkerKvState.decode(await seen.bus.ask(WorkerKvQuery(), POOL, "engine-1", timeout=30))
            return state.total if state.boot_id == told[-1].boot_id else -1

        async def holds(blocks: int) -> bool:
            return await held() == blocks

        await eventually(lambda: holds(4))
        former = told[-1].boot_id
        old.close(linger=0)
        engine.process.kill()
        new = await publisher()
        await engine.restart()
        await eventually(lambda: told[-1].boot_id != former)
        await eventually(lambda: holds(0))
        await subscribed(new)
        await store(new, first_number, list(range(900, 908)))
        await eventually(lambda: holds(1))
    context.destroy(linger=0)


def _bound(socket: zmq.asyncio.Socket, port: int) -> bool:
    try:
        socket.bind(f"tcp://127.0.0.1:{port}")
    except zmq.ZMQError:
        return False
    return True
