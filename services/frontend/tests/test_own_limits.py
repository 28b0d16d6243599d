"""A process that has run out of descriptors says so, and blames no engine."""

import asyncio
import errno
import json
import os
import resource
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from pointsman_contracts.response import AttemptFailed, RequestRejected, ResponseCompleted
from pointsman_edge.sending.own_limits import exhausted
from pointsman_runtime.reaching.host_names import HostNames
from pointsman_testing.fake_names import answering_names
from pointsman_testing.fake_stages import StartEdge
from pointsman_testing.raw_http import post, raw_connection, raw_request
from pointsman_testing.scripted_engine import ANSWER, ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'


@contextmanager
def no_descriptor_left() -> Generator[None]:
    """Nothing can be opened within."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.dup(0)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_a_descriptor_the_gateway_answers_503_and_no_engine_is_blamed(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine, ScriptedEngine() as other:
        edge = await start_edge(engine.url, other.url)
        # The connection that comes first has a descriptor already.
        async with raw_connection(edge.url) as client:
            await client.send(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await client.response()).status == 200
            with no_descriptor_left():
                await client.send(post(CHAT, BODY))
                refused = await client.response()
            await client.send(post(CHAT, BODY))
            answer = await client.response()
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "gateway_exhausted")
    assert refused.header("retry-after") == "1"
    assert (answer.status, answer.body) == (200, ANSWER)
    assert edge.events.of(AttemptFailed) == []
    (rejected,) = edge.events.of(RequestRejected)
    assert (rejected.stage, rejected.code) == ("edge", "gateway_exhausted")
    first, second = edge.events.of(ResponseCompleted)
    assert (first.outcome, first.worker, first.attempts, first.usage) == ("rejected", None, (), None)
    assert second.worker == "worker-1"
    assert edge.metric("pointsman_edge_exhausted_total") == 1


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENFILE, "Too many open files in system"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"),
        MemoryError(),
    ],
)
def test_a_process_without_resources_is_told_from_an_engine_that_refuses(error: Exception) -> None:
    assert exhausted(error) is not None
    assert exhausted(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")) is None
    assert exhausted(socket.gaierror(socket.EAI_NONAME, "Name or service not known")) is None


async def test_a_process_that_stands_still_while_it_connects_blames_no_engine(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    connect, stops = loop.create_connection, [0.3]

    async def connecting(*arguments: Any, **options: Any) -> Any:
        if stops and engine.port in arguments:
            time.sleep(stops.pop())  # as a process that gets no CPU time  # noqa: ASYNC251
            await asyncio.sleep(0)  # uvloop runs timers before it notices connections
            await asyncio.sleep(0)
        return await connect(*arguments, **options)

    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, config={"edge": {"connect_timeout": "200ms"}})
        monkeypatch.setattr(loop, "create_connection", connecting)
        answer = await raw_request(edge.url, post(CHAT, BODY))
    assert (answer.status, stops) == (200, [])
    assert edge.events.of(AttemptFailed) == []


async def test_a_name_that_a_process_without_descriptors_cant_look_up_hasnt_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """glibc's resolver says "Temporary failure in name resolution" then."""
    with answering_names(monkeypatch) as names:
        names.error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
            await HostNames().find_addresses("engine.test", 80)
        with pytest.raises(socket.gaierror):
            await HostNames().find_addresses("engine.test", 80)
