"""The doctor's facts about JetStream on a real server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.errors import ServerError

from pointsman_cli.doctor import jetstream_facts
from pointsman_runtime.jetstream.stores import EVENT_STREAM, PROBE_STREAM
from pointsman_testing import NatsServer
from pointsman_testing.nats_server import LocalNatsServer


@asynccontextmanager
async def jetstream(url: str) -> AsyncGenerator[JetStreamContext]:
    client = await nats.connect(url)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    yield client.jetstream(timeout=30)  # pyright: ignore[reportUnknownMemberType]
    await client.close()


async def test_a_disk_that_takes_writes_is_no_problem_and_nothing_is_left_on_it(own_nats_server: NatsServer) -> None:
    async with jetstream(own_nats_server.url) as js:
        assert await jetstream_facts.usable(js) is None
        assert await jetstream_facts.disk_problem(js) is None
        assert PROBE_STREAM not in [info.config.name for info in await js.streams_info()]


async def test_a_server_that_cannot_make_a_stream_on_disk_is_a_problem_in_its_words(
    own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise ServerError(code=500, err_code=10049, description="error creating store for stream")

    async with jetstream(own_nats_server.url) as js:
        monkeypatch.setattr(js, "add_stream", full)
        assert await jetstream_facts.disk_problem(js) == "error creating store for stream"


async def test_events_that_came_while_the_stream_took_none_are_counted(own_nats_server: NatsServer) -> None:
    async with jetstream(own_nats_server.url) as js:
        assert await jetstream_facts.last_event(js) is None
        await js.add_stream(name=EVENT_STREAM, subjects=["pm.evt.>"])  # pyright: ignore[reportUnknownMemberType]
        await js.publish("pm.evt.one", b"1")
        before = await jetstream_facts.last_event(js)
        assert before == 1
        stuck = await jetstream_facts.stream(js, before, heard=3)
        assert stuck is not None
        assert stuck.unkept == 3
        await js.publish("pm.evt.one", b"2")
        kept = await jetstream_facts.stream(js, before, heard=3)
        assert kept is not None
        assert kept.unkept == 0


async def test_a_server_without_jetstream_says_so() -> None:
    server = LocalNatsServer(jetstream=False)
    server.start()
    async with jetstream(server.url) as js:
        assert "without JetStream" in (await jetstream_facts.usable(js) or "")
    server.close()
