"""An engine is judged silent by a process that ran, not by one that stood still."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from pointsman_edge.deciding.policy import EngineLimits
from pointsman_frontend.adapters.engine_client import Call, EngineClient
from pointsman_frontend.adapters.engine_connection import EndpointFailed
from pointsman_frontend.adapters.gathered_writes import GatheredWrites
from pointsman_testing import eventually
from pointsman_testing.scripted_engine import Received, ScriptedEngine


async def test_a_process_that_stood_still_reads_before_it_calls_an_engine_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its timers may run before its sockets are read, in which the bytes of all that time wait."""
    asked = asyncio.Event()

    async def says_nothing(request: Received) -> None:
        asked.set()
        await request.gone.wait()

    later_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later_s)
    monkeypatch.setattr("pointsman_frontend.adapters.engine_client.time", clock)
    async with ScriptedEngine(says_nothing) as engine:
        client = EngineClient(GatheredWrites(), idle_s=9, idle_connections=9)
        call = Call(
            request_id="1",
            worker="w",
            url=engine.url,
            head=b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n",
            body=b"{}",
            tls=None,
            movable=False,
        )
        sending = asyncio.create_task(client.send(call, EngineLimits(connect_s=9, first_byte_s=60, idle_s=60)))
        await asked.wait()
        client.sweep()
        later_s = 100.0
        client.sweep()
        await asyncio.sleep(0)
        assert not sending.done()
        client.sweep()
        await eventually(sending.done)
        with pytest.raises(EndpointFailed) as failed:
            await sending
        assert failed.value.outcome == "timeout"
