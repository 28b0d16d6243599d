"""FastStream handlers, the event stream and buckets on a real server."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from nats.errors import Error as NatsError
from nats.errors import OutboundBufferLimitError
from nats.js.errors import NotFoundError, ServerError
from nats.js.kv import KeyValue

from pointsman_contracts.presence import OpenRequests, OpenRequestsQuery
from pointsman_contracts.response import ResponseStarted
from pointsman_contracts.subjects import ANY, subject
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.errors import NoListener
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.jetstream.buckets import Bucket, BucketMissing
from pointsman_runtime.jetstream.events import PENDING, Events, try_until_done
from pointsman_runtime.jetstream.stores import DESCRIPTIONS, EVENT_STREAM, POOLS_BUCKET
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_runtime.telling.process import Process
from pointsman_testing import NatsServer, eventually
from pointsman_testing.nats_server import LocalNatsServer


class Connected:
    """A bus and an events connection, as one service has them."""

    def __init__(self, url: str, instance: str) -> None:
        self.service = Bus(Connection([url], name=instance), Process("test", instance))
        self.events = Events(ServiceSettings(nats_url=url), self.service.process, self.service.hub.tallies)
        self.buckets: list[Bucket] = []

    async def open(self) -> None:
        self.service.open()
        self.events.open()
        await self.service.wait_connected()
        await self.events.jetstream()

    def bucket(self, name: str, ttl_s: float | None = None, *, make: bool = True) -> Bucket:
        bucket = Bucket(self.events, name, ttl_s=ttl_s, make=make)
        self.buckets.append(bucket)
        return bucket

    async def close(self) -> None:
        for bucket in self.buckets:
            await bucket.close()
        await self.events.close()
        await self.service.close()


@pytest.fixture
async def process(own_nats_server: NatsServer) -> AsyncIterator[Connected]:
    made = Connected(own_nats_server.url, "one")
    yield made
    await made.close()


def started(sequence: int) -> ResponseStarted:
    return ResponseStarted(request_id="r", source="e", sequence=sequence, at_ms=1, pool="p", worker="w", ttft_ms=1)


async def test_a_request_is_answered_by_a_handler(process: Connected) -> None:
    process.events.handle(OpenRequestsQuery, lambda query: OpenRequests(request_ids=query.request_ids[:1]), "edge-1")
    await process.open()

    async def answered() -> bytes:
        try:
            return await process.service.ask(OpenRequestsQuery(request_ids=("a", "b")), "edge-1", timeout=30)
        except NoListener as error:  # the two connections are made apart
            raise AssertionError(str(error)) from error

    assert OpenRequests.decode(await eventually(answered)) == OpenRequests(request_ids=("a",))


async def test_a_message_that_cannot_be_decoded_or_handled_is_counted_and_the_next_one_works(
    process: Connected, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[int] = []

    async def keep(event: ResponseStarted) -> None:
        if event.sequence == 13:
            raise ValueError("canary")
        got.append(event.sequence)

    process.events.handle(ResponseStarted, keep, ANY)
    await process.open()

    def heard() -> bool:
        process.service.publish(started(1), "p")
        return 1 in got

    await eventually(heard)  # the two connections are made apart
    with caplog.at_level(logging.INFO, "pointsman"):
        process.service.link.publish(subject(ResponseStarted, "p"), b"{canary")
        process.service.publish(started(13), "p")
        process.service.publish(started(2), "p")
        tally = next(tally for tally in process.service.hub.tallies if tally.name == "response.started.v1")
        await eventually(lambda: (tally.malformed, tally.failed) == (1, 1) and 2 in got)
        await eventually(lambda: tally.handled == len(got))
    lines = [record for record in caplog.records if record.getMessage() in ("malformed_message", "handler_failed")]
    assert len(lines) == 2
    assert "canary" not in str([line.__dict__ for line in lines])


async def test_messages_beyond_the_room_of_a_handler_that_hangs_are_dropped_and_counted(process: Connected) -> None:
    going_on = asyncio.Event()
    heard: list[int] = []

    async def hang(event: ResponseStarted) -> None:
        heard.append(event.sequence)
        await going_on.wait()

    process.events.handle(ResponseStarted, hang, ANY)
    await process.open()

    def hangs() -> bool:
        process.service.publish(started(1), "p")
        return bool(heard)

    await eventually(hangs)
    tally = next(tally for tally in process.service.hub.tallies if tally.name == "response.started.v1")
    for sequence in range(PENDING + 10):
        process.service.publish(started(sequence), "p")
    await eventually(lambda: tally.dropped >= 10)
    going_on.set()
    await eventually(lambda: tally.handled + tally.dropped >= PENDING + 10)


async def test_handlers_work_again_after_a_restart_of_the_server(
    process: Connected, own_nats_server: NatsServer
) -> None:
    process.events.handle(OpenRequestsQuery, lambda query: OpenRequests(request_ids=query.request_ids), "edge-1")
    await process.open()
    own_nats_server.kill()
    await eventually(lambda: process.events.reason is not None)
    await asyncio.to_thread(own_nats_server.start)
    await eventually(lambda: process.events.reason is None and process.service.connected)
    assert await process.service.ask(OpenRequestsQuery(request_ids=()), "edge-1", timeout=30)


async def test_the_stream_keeps_each_event_once(process: Connected) -> None:
    await process.open()
    await process.events.make_event_stream()
    await process.events.make_event_stream()
    for sequence in (1, 2, 2, 3):
        process.service.publish(started(sequence), "p")
    await process.service.link.flush(1)
    js = await process.events.jetstream()

    async def kept() -> bool:
        return (await js.stream_info(EVENT_STREAM)).state.messages == 3

    await eventually(kept)
    config = (await js.stream_info(EVENT_STREAM)).config
    assert (config.subjects, config.storage, config.max_age) == (["pm.evt.>", "pm.owed.>"], "file", 7 * 86400)
    # The server's memory holds the ids of so many seconds.
    assert config.duplicate_window == 5


async def test_a_stream_that_is_there_keeps_its_owners_limits(process: Connected) -> None:
    await process.open()
    js = await process.events.jetstream()
    await js.add_stream(name=EVENT_STREAM, subjects=["pm.evt.>"], max_age=3600)  # pyright: ignore[reportUnknownMemberType]
    await process.events.make_event_stream()
    config = (await js.stream_info(EVENT_STREAM)).config
    assert (config.max_age, config.subjects) == (3600, ["pm.evt.>", "pm.owed.>"])
    # An event that is sent again is stored with its own kind.
    await js.publish("pm.owed.response.started.v1.p", b"{}")
    assert (await js.get_last_msg(EVENT_STREAM, "pm.evt.response.started.v1.p")).data == b"{}"


async def test_events_are_sent_once_to_a_stream_that_may_not_be_changed(
    process: Connected, caplog: pytest.LogCaptureFixture
) -> None:
    await process.open()
    js = await process.events.jetstream()
    takes: list[bool] = []
    process.events.on_event_stream = takes.append
    # Its owner keeps it as it is.
    await js.add_stream(name=EVENT_STREAM, subjects=["pm.evt.>"], deny_delete=True, sealed=False)  # pyright: ignore[reportUnknownMemberType]
    await js.add_stream(name="OTHER", subjects=["pm.owed.>"])  # pyright: ignore[reportUnknownMemberType]
    for _ in range(2):
        await process.events.make_event_stream()
    assert takes == [False, False]
    assert caplog.text.count("event_stream_not_changed") == 1


async def test_an_event_stream_that_was_lost_with_its_server_is_made_again(
    process: Connected, own_nats_server: NatsServer
) -> None:
    keeping = asyncio.create_task(process.events.keep_events())
    await process.open()
    js = await process.events.jetstream()

    async def made() -> bool:
        try:
            return bool(await js.stream_info(EVENT_STREAM))
        except (NatsError, TimeoutError):
            return False

    await eventually(made)
    await js.delete_stream(EVENT_STREAM)
    own_nats_server.kill()
    await eventually(lambda: process.events.reason is not None)
    await asyncio.to_thread(own_nats_server.start)
    await eventually(made)
    await end_all([keeping])


async def test_an_event_stream_that_is_deleted_is_made_again_while_the_connection_stays(
    process: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman_runtime.jetstream.events.LOOK_S", 0.2)
    await process.open()
    keeping = asyncio.create_task(process.events.keep_events())
    js = await process.events.jetstream()

    async def made() -> object:
        try:
            return (await js.stream_info(EVENT_STREAM)).created
        except NotFoundError:
            return None

    for _ in range(2):
        await eventually(made)
        await js.delete_stream(EVENT_STREAM)
    await eventually(made)
    await end_all([keeping])


class Watched:
    """The events of a watch."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.gone: list[str] = []
        self.listed = 0

    def put(self, entry: Entry) -> None:
        self.values[entry.key] = entry.value

    def lost(self, key: str) -> None:
        del self.values[key]
        self.gone.append(key)

    def complete(self) -> None:
        self.listed += 1


async def watching_one_entry(bucket: Bucket) -> Watched:
    """The events of a watch of the bucket, which is `a` by now."""
    watched = Watched()
    bucket.watch(watched.put, watched.lost)
    await bucket.put("a", b"1")
    await eventually(lambda: watched.values)
    return watched


async def test_a_watch_tells_what_is_there_and_every_change(process: Connected) -> None:
    await process.open()
    bucket = process.bucket("test-watch")
    await bucket.put("a", b"1")
    watched = Watched()
    bucket.watch(watched.put, watched.lost, watched.complete)
    await eventually(lambda: watched.listed == 1)
    assert watched.values == {"a": b"1"}
    second = await bucket.put("b", b"2")
    assert await bucket.put("b", b"3") == second + 1
    await bucket.delete("a")
    await eventually(lambda: watched.values == {"b": b"3"})
    assert watched.gone == ["a"]
    assert await bucket.get("a") is None
    assert await bucket.get("b") == Entry("b", b"3", second + 1)


async def test_a_watch_goes_on_behind_a_malformed_entry(process: Connected, caplog: pytest.LogCaptureFixture) -> None:
    await process.open()
    bucket = process.bucket("test-broken")
    await bucket.put("a", b"1")
    watched = Watched()

    def put(entry: Entry) -> None:
        if entry.value == b"bad":
            raise OSError("no such file")
        watched.put(entry)

    bucket.watch(put, watched.lost, watched.complete)
    await bucket.put("b", b"bad")
    await bucket.put("c", b"3")
    await eventually(lambda: watched.values == {"a": b"1", "c": b"3"})
    assert [record.getMessage() for record in caplog.records].count("watcher_failed") == 1
    await bucket.delete("c")
    await eventually(lambda: watched.gone == ["c"])


async def test_an_entry_without_renewal_is_gone_after_its_ttl(process: Connected) -> None:
    await process.open()
    bucket = process.bucket("test-ttl", ttl_s=1.0)
    watched = await watching_one_entry(bucket)
    await eventually(lambda: watched.gone == ["a"])
    await bucket.put("a", b"2")
    await eventually(lambda: watched.values == {"a": b"2"})


async def test_an_entry_without_renewal_is_gone_while_others_are_renewed_all_the_time(process: Connected) -> None:
    await process.open()
    bucket = process.bucket("test-busy", ttl_s=1.0)
    watched = Watched()
    bucket.watch(watched.put, watched.lost)
    await bucket.put("dead", b"1")

    async def others_are_renewed() -> None:
        while True:
            for key in ("a", "b", "c"):
                await bucket.put(key, b"1")
            await asyncio.sleep(0.1)

    renewing = asyncio.create_task(others_are_renewed())
    await eventually(lambda: "dead" in watched.gone)
    js = await process.events.jetstream()
    assert len(await js.consumers_info("KV_test-busy")) < 10
    await end_all([renewing])


async def test_renewed_entries_stay_when_the_server_ends_the_consumer_behind_a_watch(process: Connected) -> None:
    # As in a cluster, when the server that it is on restarts and this connection's doesn't.
    await process.open()
    bucket = process.bucket("test-consumer", ttl_s=2.0)
    watched = Watched()
    bucket.watch(watched.put, watched.lost, watched.complete)
    await bucket.put("a", b"0")
    await eventually(lambda: watched.values)
    js = await process.events.jetstream()
    for consumer in await js.consumers_info("KV_test-consumer"):
        await js.delete_consumer("KV_test-consumer", consumer.name)

    async def renewed() -> bool:
        await bucket.put("a", b"1")
        return watched.values != {"a": b"0"}

    await eventually(renewed)
    assert (watched.values, watched.gone) == ({"a": b"1"}, [])


async def test_a_removed_bucket_is_made_again_by_the_next_writer(process: Connected) -> None:
    await process.open()
    bucket = process.bucket("test-rewritten")
    await bucket.put("a", b"1")
    js = await process.events.jetstream()
    await js.delete_key_value("test-rewritten")

    async def replaced() -> bool:
        try:
            return await bucket.replace("a", b"2", 0) is not None
        except NatsError:
            return False

    await eventually(replaced)
    assert (await bucket.get("a") or Entry("", b"", 0)).value == b"2"


async def test_a_service_that_makes_no_buckets_uses_one_once_another_service_has_made_it(process: Connected) -> None:
    await process.open()
    agents = process.bucket("test-made-elsewhere", make=False)
    with pytest.raises(BucketMissing, match="the bucket test-made-elsewhere doesn't exist yet"):
        await agents.put("a", b"1")
    await process.bucket("test-made-elsewhere").put("b", b"2")
    await agents.put("a", b"1")
    assert (await agents.get("b") or Entry("", b"", 0)).value == b"2"


async def test_a_removed_bucket_is_made_again_and_watched_on(process: Connected) -> None:
    await process.open()
    bucket = process.bucket("test-removed", ttl_s=1.0)
    watched = await watching_one_entry(bucket)
    js = await process.events.jetstream()
    await js.delete_key_value("test-removed")

    async def renewed() -> bool:
        try:
            await bucket.put("a", b"2")
        except NatsError:
            return False
        return watched.values == {"a": b"2"}

    await eventually(renewed)


async def test_a_watch_notices_that_its_bucket_was_removed_and_made_anew_by_another(
    process: Connected, own_nats_server: NatsServer
) -> None:
    await process.open()
    watched = await watching_one_entry(process.bucket("test-anew"))
    js = await process.events.jetstream()
    await js.delete_key_value("test-anew")
    other = Connected(own_nats_server.url, "two")
    await other.open()
    bucket = other.bucket("test-anew")

    async def made_anew() -> bool:
        try:
            return await bucket.put("b", b"2") == 1
        except NatsError:  # the server is still removing the folder of the former one
            return False

    try:
        await eventually(made_anew)
        await eventually(lambda: watched.values == {"b": b"2"})
    finally:
        await other.close()


async def test_a_watch_goes_on_when_jetstream_restarts_in_a_server_that_runs_on() -> None:
    server = LocalNatsServer()
    server.start()
    made = Connected(server.url, "one")
    await made.open()
    watched = await watching_one_entry(made.bucket("test-restarted"))
    await asyncio.to_thread(server.restart_jetstream)

    async def written() -> bool:
        try:
            await made.buckets[0].put("b", b"2")
        except (NatsError, TimeoutError):
            return False
        return True

    await eventually(written)
    await eventually(lambda: watched.values == {"a": b"1", "b": b"2"})
    assert made.events.reason is None
    await made.close()
    server.close()


async def test_a_watch_goes_on_after_a_restart_and_tells_what_vanished_meanwhile(
    process: Connected, own_nats_server: NatsServer
) -> None:
    await process.open()
    bucket = process.bucket("test-restart")
    await bucket.put("stays", b"1")
    await bucket.put("goes", b"1")
    watched = Watched()
    bucket.watch(watched.put, watched.lost, watched.complete)
    await eventually(lambda: len(watched.values) == 2)
    other = Connected(own_nats_server.url, "other")
    own_nats_server.kill()
    await eventually(lambda: process.events.reason is not None)
    await asyncio.to_thread(own_nats_server.start)
    await other.open()
    meanwhile = other.bucket("test-restart")

    async def change() -> None:
        await meanwhile.put("new", b"2")
        await meanwhile.delete("goes")

    await try_until_done("the change", change)
    await eventually(lambda: watched.values == {"stays": b"1", "new": b"2"})
    await other.close()


async def test_a_bucket_that_was_lost_with_its_server_is_made_again(
    process: Connected, own_nats_server: NatsServer
) -> None:
    await process.open()
    bucket = process.bucket("test-lost")
    watched = await watching_one_entry(bucket)
    js = await process.events.jetstream()
    await js.delete_key_value("test-lost")
    own_nats_server.kill()
    await eventually(lambda: process.events.reason is not None)
    await asyncio.to_thread(own_nats_server.start)

    async def put() -> None:
        await bucket.put("b", b"2")

    await eventually(lambda: process.events.reason is None)
    await try_until_done("the put", put)
    await eventually(lambda: watched.values == {"b": b"2"})


async def test_a_bucket_says_what_it_has(process: Connected) -> None:
    await process.open()
    bucket = process.bucket(POOLS_BUCKET)
    await bucket.put("a", b"1")
    js = await process.events.jetstream()
    info = await js.stream_info(f"KV_{POOLS_BUCKET}")
    assert info.config.description == DESCRIPTIONS[POOLS_BUCKET]
    await js.delete_key_value(POOLS_BUCKET)


async def test_a_watch_reports_the_entries_of_a_bucket_made_anew_though_their_revisions_are_low(
    process: Connected, own_nats_server: NatsServer
) -> None:
    await process.open()
    bucket = process.bucket("test-anew")
    for value in (b"1", b"2", b"3"):
        await bucket.put("a", value)
    watched = Watched()
    bucket.watch(watched.put, watched.lost, watched.complete)
    await eventually(lambda: watched.values == {"a": b"3"})
    js = await process.events.jetstream()
    await js.delete_key_value("test-anew")
    # Another writer wrote again before this one looked. It waits until the server has removed the former one's folder.
    anew: list[KeyValue] = []

    async def made_anew() -> bool:
        try:
            anew.append(await js.create_key_value(bucket="test-anew"))  # pyright: ignore[reportUnknownMemberType]
        except ServerError:
            return False
        return True

    await eventually(made_anew)
    await anew[0].put("a", b"4")
    own_nats_server.kill()
    await eventually(lambda: process.events.reason is not None)
    await asyncio.to_thread(own_nats_server.start)
    await eventually(lambda: watched.values == {"a": b"4"})
    await anew[0].put("a", b"5")
    await eventually(lambda: watched.values == {"a": b"5"})
    assert watched.gone == []


async def test_entries_that_must_be_renewed_have_their_ttl_to_come_back_after_the_server_lost_them(
    process: Connected, own_nats_server: NatsServer
) -> None:
    await process.open()
    bucket = process.bucket("test-renewed", ttl_s=30.0)
    await bucket.put("a", b"1")
    watched = Watched()
    bucket.watch(watched.put, watched.lost, watched.complete)
    await eventually(lambda: watched.listed == 1)
    js = await process.events.jetstream()
    await js.delete_key_value("test-renewed")
    own_nats_server.kill()
    await eventually(lambda: process.events.reason is not None)
    await asyncio.to_thread(own_nats_server.start)
    await eventually(lambda: watched.listed == 2)
    assert watched.values == {"a": b"1"}
    await bucket.put("a", b"2")
    await eventually(lambda: watched.values == {"a": b"2"})
    assert watched.gone == []


async def test_a_login_that_is_refused_for_a_while_ends_nothing() -> None:
    right, wrong = (f"authorization: {{user: pointsman, password: {word}}}" for word in ("right", "wrong"))
    server = LocalNatsServer(wrong)
    server.start()
    process = Connected(server.url.replace("//", "//pointsman:right@"), "one")
    opening = asyncio.create_task(process.open())
    await eventually(lambda: "Authorization Violation" in (process.events.reason or ""))
    server.reload(right)
    await opening
    bucket = process.bucket("test-login")
    watched = await watching_one_entry(bucket)
    server.reload(wrong)
    await eventually(
        lambda: "Authorization Violation" in (process.events.reason or "") and not process.service.connected
    )
    server.reload(right)
    await eventually(lambda: process.events.reason is None and process.service.connected)
    await bucket.put("a", b"2")
    await eventually(lambda: watched.values == {"a": b"2"})
    await process.close()
    server.close()


async def test_a_server_without_jetstream_is_reported_in_words(caplog: pytest.LogCaptureFixture) -> None:
    server = LocalNatsServer(jetstream=False)
    server.start()
    process = Connected(server.url, "one")
    await process.open()
    watched = Watched()
    process.bucket("test-none").watch(watched.put, watched.lost)
    await eventually(lambda: "jetstream_unavailable" in caplog.text)
    assert "runs without JetStream" in str([record.__dict__ for record in caplog.records])
    await process.close()
    server.close()


async def test_a_server_without_jetstream_is_tried_again_and_logged_once(
    process: Connected, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    async def fail_twice() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise NotFoundError
        if tries < 4:
            raise OutboundBufferLimitError  # what nats-py says between a loss of the connection and the word of it

    with caplog.at_level(logging.INFO, "pointsman"):
        await try_until_done("a thing", fail_twice, again_after_s=0.001)
    assert tries == 4
    assert len([record for record in caplog.records if record.getMessage() == "jetstream_unavailable"]) == 2


async def test_a_watch_notices_an_update_that_was_lost_on_its_way(
    process: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between two servers of a cluster, one of which ends while it passes the update on."""
    await process.open()
    bucket = process.bucket("test-lost")
    await bucket.put("a", b"1")
    watched = Watched()
    monkeypatch.setattr("pointsman_runtime.jetstream.buckets.ASKED_EVERY_S", 0.1)
    bucket.watch(watched.put, watched.lost, watched.complete)
    await eventually(lambda: watched.listed == 1)
    updates = KeyValue.KeyWatcher.updates
    lost: list[object] = []

    async def lose_the_first(watcher: KeyValue.KeyWatcher, timeout: float) -> object:  # noqa: ASYNC109 - as nats-py's
        update = await updates(watcher, timeout)
        if lost or not isinstance(update, KeyValue.Entry) or update.value != b"2":
            return update
        lost.append(update)
        raise TimeoutError

    monkeypatch.setattr(KeyValue.KeyWatcher, "updates", lose_the_first)
    # The question that is under way already takes the first update.
    await bucket.put("b", b"1")
    await eventually(lambda: "b" in watched.values)
    await bucket.put("a", b"2")
    await eventually(lambda: lost)
    await eventually(lambda: watched.values == {"a": b"2", "b": b"1"})
