"""The consumer of the stream of events is made anew where an earlier process left messages in flight."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import pytest
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError

from pointsman_recorder.adapters.event_feed import EventFeed
from pointsman_recorder.adapters.event_table import ReadPlace
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.jetstream.events import Events
from pointsman_testing.memory_nats import MemoryNats

ACKNOWLEDGED = 40


class Server:
    """JetStream with a stream and a consumer, whose leader is away when the consumer is to be made again."""

    def __init__(self) -> None:
        self.created = datetime(2026, 1, 1, tzinfo=UTC)
        self.there = True
        self.away = True
        self.last = ACKNOWLEDGED + 2
        self.started_at: list[int | None] = []

    async def make_event_stream(self) -> object:
        state = SimpleNamespace(last_seq=self.last)
        return SimpleNamespace(config=SimpleNamespace(max_age=0), created=self.created, state=state)

    async def jetstream(self) -> "Server":
        return self

    def on_connected(self, action: object) -> None:
        del action

    async def consumer_info(self, *names: str) -> object:
        del names
        if not self.there:
            raise NotFoundError
        floor = SimpleNamespace(stream_seq=ACKNOWLEDGED)
        config = SimpleNamespace(ack_policy=AckPolicy.ALL)
        return SimpleNamespace(ack_floor=floor, num_ack_pending=2, config=config, delivered=None)

    async def delete_consumer(self, *names: str) -> None:
        del names
        self.there = False

    async def add_consumer(self, stream: str, wanted: ConsumerConfig) -> None:
        del stream
        if self.away:
            raise TimeoutError
        self.started_at.append(wanted.opt_start_seq)


async def open_twice(server: Server, *, made_anew: bool) -> int | None:
    """Where the consumer begins that the second of two processes makes: the first one is killed between the end of the
    former consumer and the new one."""

    def new_feed() -> EventFeed:
        bus = SimpleNamespace(outside=MemoryNats().link(), process=SimpleNamespace(inbox="_INBOX.recorder"))
        return EventFeed(cast("Events", server), cast("Bus", bus), "recorder")

    kept = ReadPlace(server.created.isoformat(), ACKNOWLEDGED)
    with pytest.raises(TimeoutError):
        await new_feed().open_feed(ReadPlace("", 0), from_the_beginning=False)
    server.away = False
    if made_anew:
        server.created = datetime(2026, 1, 2, tzinfo=UTC)
    await new_feed().open_feed(kept, from_the_beginning=False)
    (started_at,) = server.started_at
    return started_at


async def test_a_consumer_that_could_not_be_made_again_at_once_goes_on_where_it_was() -> None:
    """Otherwise the recorder reads all events of the stream once more before it charges new ones."""
    assert await open_twice(Server(), made_anew=False) == ACKNOWLEDGED + 1


async def test_a_stream_that_lost_its_events_meanwhile_is_read_from_its_beginning() -> None:
    server = Server()
    server.last = 3
    assert await open_twice(server, made_anew=False) == 1


async def test_a_stream_that_was_made_anew_meanwhile_is_read_from_its_beginning() -> None:
    assert await open_twice(Server(), made_anew=True) == 1
