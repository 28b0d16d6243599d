"""The connection on a real server: lost, stopped, restarted, refused, flooded."""

# nats-py's count of unanswered pings is private.
# pyright: reportPrivateUsage=false

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from pointsman_runtime.bus import cancellation
from pointsman_runtime.bus.backoff import CAP_S, OUTSTANDING_PINGS, full_jitter
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.errors import BusCongested, BusDisconnected
from pointsman_runtime.bus.lasting_client import LastingClient, NamedTransport
from pointsman_runtime.bus.outbox import UNSENT_LIMIT
from pointsman_runtime.configuring.settings import NatsLogin
from pointsman_runtime.telling.lag import LagMeter
from pointsman_testing import NatsServer, eventually
from pointsman_testing.fake_names import answering_names, unanswering
from pointsman_testing.nats_server import LocalNatsServer

CERTIFICATE = Path(__file__).resolve().parents[3] / "services/epp-adapter/tests/certificates/first.crt"


@asynccontextmanager
async def connected(url: str, credentials: NatsLogin | None = None) -> AsyncGenerator[Connection]:
    connection = Connection([url], name="test", echo=True, login=credentials)
    connection.open()
    try:
        await eventually(lambda: connection.connected)
        yield connection
    finally:
        await connection.close()


def keep(into: list[bytes]) -> Callable[[str, str, bytes, bytes], None]:
    return lambda _subject, _reply, _headers, payload: into.append(payload)


@pytest.mark.parametrize("client", [Connection, LastingClient])
async def test_a_server_is_reached_though_another_address_of_its_name_is_dead(
    own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, client: type[LastingClient]
) -> None:
    port = int(own_nats_server.url.rpartition(":")[2])
    url = f"nats://bus.test:{port}"
    with answering_names(monkeypatch) as names, unanswering("127.0.0.3", port):
        names.addresses["bus.test"] = ["127.0.0.3", "127.0.0.1"]
        if client is Connection:
            async with connected(url) as connection:
                assert connection.connected
            return
        lasting = LastingClient()
        await lasting.connect(url, connect_timeout=5)
        assert lasting.is_connected
        await lasting.close()


async def test_publishing_without_a_connection_fails_at_once_and_buffers_nothing(
    own_nats_server: NatsServer,
) -> None:
    async with connected(own_nats_server.url) as connection:
        got: list[bytes] = []
        connection.subscribe("a", keep(got))
        own_nats_server.kill()
        await eventually(lambda: not connection.connected)
        for _ in range(10):
            with pytest.raises(BusDisconnected, match=r"not connected to NATS: \w"):
                connection.publish("a", b"lost")
        await asyncio.to_thread(own_nats_server.start)
        await eventually(lambda: connection.connected)
        connection.publish("a", b"found")
        await eventually(lambda: got)
        assert got == [b"found"]


async def test_a_server_that_is_late_with_everything_may_be_late_with_its_answers(
    own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = LagMeter()
    monkeypatch.setattr("pointsman_runtime.bus.connection.LAG", meter)
    async with connected(own_nats_server.url) as connection:
        loop = asyncio.get_running_loop()
        pong: asyncio.Future[bool] = loop.create_future()
        await connection._send_ping(pong)
        connection._asked[pong] -= 1.0
        await pong
        assert meter.slack_s(loop.time()) > 1.0
        await connection.flush(30)
        assert connection.options["max_outstanding_pings"] > OUTSTANDING_PINGS


async def test_a_server_that_sends_anything_lives_whatever_pings_it_has_not_answered(
    own_nats_server: NatsServer,
) -> None:
    async with connected(own_nats_server.url) as connection:
        got: list[int] = []
        connection.subscribe(
            "a", lambda _subject, _reply, _headers, _payload: got.append(connection._pings_outstanding)
        )
        connection._pings_outstanding = OUTSTANDING_PINGS
        connection.publish("a", b"")
        await eventually(lambda: got)
        assert got == [0]


async def test_subscriptions_made_at_any_time_live_through_restarts(own_nats_server: NatsServer) -> None:
    connection = Connection([own_nats_server.url], name="test", echo=True)
    early: list[bytes] = []
    middle: list[bytes] = []
    ended: list[bytes] = []
    connection.subscribe("early", keep(early))
    gone = connection.subscribe("ended", keep(ended))
    connection.open()
    await eventually(lambda: connection.connected)
    for round_number in range(3):
        own_nats_server.kill()
        await eventually(lambda: not connection.connected)
        if round_number == 0:
            connection.subscribe("middle", keep(middle))
            connection.unsubscribe(gone)
        await asyncio.to_thread(own_nats_server.start)
        await eventually(lambda: connection.connected)
        for subject in ("early", "middle", "ended"):
            connection.publish(subject, b"%d" % round_number)
        await connection.flush()
    await connection.close()
    assert early == middle == [b"0", b"1", b"2"]
    assert ended == []


async def test_each_connection_event_calls_back_once(own_nats_server: NatsServer) -> None:
    connection = Connection([own_nats_server.url], name="test", echo=True)
    events: list[str] = []
    connection.on_connected = lambda: events.append("connected")
    connection.on_disconnected = lambda reason: events.append("disconnected")
    connection.open()
    await eventually(lambda: events == ["connected"])
    own_nats_server.kill()
    await eventually(lambda: events == ["connected", "disconnected"])
    await asyncio.to_thread(own_nats_server.start)
    await eventually(lambda: len(events) == 3)
    assert events == ["connected", "disconnected", "connected"]
    await connection.close()


async def test_a_stopped_server_is_noticed_and_a_continued_one_found_again(own_nats_server: NatsServer) -> None:
    async with connected(own_nats_server.url) as connection:
        own_nats_server.pause()
        connection.publish("a", b"x" * 1_000_000)  # an unsent rest must not hold up the end of the connection
        await eventually(lambda: not connection.connected)
        assert "stale" in connection.reason
        own_nats_server.resume()
        await eventually(lambda: connection.connected)
        await connection.flush()


async def test_a_server_that_does_not_read_is_an_error_before_memory_is_full(own_nats_server: NatsServer) -> None:
    async with connected(own_nats_server.url) as connection:
        own_nats_server.pause()
        body = b"x" * 4_000_000

        async def publish_twice_the_limit() -> None:
            for _ in range(2 * UNSENT_LIMIT // len(body)):
                connection.publish("a", body)
                await asyncio.sleep(0)

        with pytest.raises(BusCongested):
            await publish_twice_the_limit()
        own_nats_server.resume()


@pytest.fixture
def locked_server() -> Iterator[LocalNatsServer]:
    server = LocalNatsServer("authorization: {user: pointsman, password: right}")
    server.start()
    yield server
    server.close()


def login(user: str, secret: str) -> NatsLogin:
    return NatsLogin(user=user, password=secret)


async def test_a_wrong_password_is_logged_and_tried_again(locked_server: LocalNatsServer) -> None:
    wrong = Connection([locked_server.url], name="test", echo=True, login=login("pointsman", "wrong"))
    wrong.open()
    await eventually(lambda: "Authorization Violation" in wrong.reason)
    assert "wrong" not in repr(login("pointsman", "wrong"))
    await wrong.close()
    async with connected(locked_server.url, login("pointsman", "right")) as right:
        await right.flush()


@pytest.fixture
def guarded_server() -> Iterator[LocalNatsServer]:
    server = LocalNatsServer(
        "authorization: {users: [{user: a, password: b, permissions: {publish: ['open.>'], subscribe: ['open.>']}}]}"
    )
    server.start()
    yield server
    server.close()


async def test_a_forbidden_subject_is_logged_and_the_connection_lives(guarded_server: LocalNatsServer) -> None:
    async with connected(guarded_server.url, login("a", "b")) as connection:
        refused: list[str] = []
        connection.on_refused = refused.append
        connection.publish("closed.a", b"")
        connection.subscribe("closed.b", keep([]))
        got: list[bytes] = []
        connection.subscribe("open.a", keep(got))
        connection.publish("open.a", b"x")
        await eventually(lambda: len(refused) == 2 and got)
        assert connection.connected


async def test_a_peer_that_is_no_nats_server_is_logged_and_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        connection = Connection([f"nats://127.0.0.1:{port}"], name="test", echo=True)
        connection.open()
        await eventually(lambda: "INFO" in connection.reason or "refused" in connection.reason)
        assert not connection.connected
        await connection.close()
        thread.join()


INFO = b'INFO {"server_id": "x", "version": "2.10.0", "max_payload": 1048576}\r\n'


async def test_a_connection_whose_handshake_failed_is_closed_before_the_next_one_is_opened() -> None:
    opened: list[asyncio.StreamReader] = []
    serving: list[asyncio.Task[None]] = []

    async def lose_the_first_and_fail_the_others(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(reader)
        serving.extend(filter(None, [asyncio.current_task()]))
        # A client that got nothing of the machine for long gives up in between.
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            if len(opened) == 1:
                writer.write(INFO)
                await reader.readuntil(b"PING\r\n")
                writer.write(b"PONG\r\n")
            else:
                writer.write(b"HTTP/1.1 400 Bad Request\r\n")
                await reader.read()

    async with await asyncio.start_server(lose_the_first_and_fail_the_others, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = Connection([f"nats://127.0.0.1:{port}"], name="test", echo=True)
        connection.open()
        await eventually(lambda: len(opened) > 3)
        await eventually(lambda: all(reader.at_eof() or reader.exception() for reader in opened[:-1]))
        await connection.close()
        await eventually(lambda: opened[-1].at_eof() or opened[-1].exception())
        async with asyncio.timeout(30):
            await asyncio.gather(*serving)


async def test_closing_while_nothing_answers_ends_at_once() -> None:
    connection = Connection(["nats://127.0.0.1:9"], name="test", echo=True)
    connection.open()
    await eventually(lambda: "refused" in connection.reason)
    async with asyncio.timeout(30):
        await connection.close()


async def test_closing_does_not_wait_for_the_farewell_of_a_tls_server_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio would wait for it for half a minute, and the cluster kills the pod meanwhile. Here it would
    wait for good, so that a machine without time makes no difference."""
    monkeypatch.setattr("asyncio.constants.SSL_SHUTDOWN_TIMEOUT", 3600.0)
    files = f'cert_file: "{CERTIFICATE}", key_file: "{CERTIFICATE.with_suffix(".key")}"'
    server = LocalNatsServer(f"tls {{ {files} }}")
    server.start()
    context = ssl.create_default_context(cafile=str(CERTIFICATE))
    context.check_hostname = False
    try:
        client = LastingClient()
        await client.connect(server.url, tls=context)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        server.pause()
        async with asyncio.timeout(100):
            await client.close()
    finally:
        server.resume()
        server.close()


async def test_the_first_try_does_not_wait_and_the_server_may_come_later() -> None:
    server = LocalNatsServer()
    server.start()
    server.kill()
    connection = Connection([server.url], name="test", echo=True)
    connection.open()
    await eventually(lambda: "refused" in connection.reason)
    await asyncio.to_thread(server.start)
    await eventually(lambda: connection.connected)
    await connection.close()
    server.close()


async def test_no_message_is_lost_or_reordered_under_load(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as writer, connected(nats_server.url) as reader:
        got: list[bytes] = []
        reader.subscribe("load", keep(got))
        await reader.flush()
        sent = [b"%d" % number * (number % 50 + 1) for number in range(20_000)]
        for start in range(0, len(sent), 500):
            for payload in sent[start : start + 500]:
                writer.publish("load", payload)
            await asyncio.sleep(0)
        await writer.flush()
        await eventually(lambda: len(got) == len(sent))
        assert got == sent


@given(st.integers(0, 10_000))
def test_the_wait_between_tries_is_jittered_over_its_whole_range(attempt: int) -> None:
    assert full_jitter(attempt, lambda low, high: low) == 0
    longest = full_jitter(attempt, lambda low, high: high)
    assert 0 < longest <= CAP_S
    assert full_jitter(attempt + 1, lambda low, high: high) >= longest


async def test_a_closed_client_connects_no_more_although_its_first_cancellation_was_lost(
    own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, tried = await client_without_server(own_nats_server, monkeypatch)
    trying = client._reconnection_task  # pyright: ignore[reportPrivateUsage]
    assert trying is not None
    await asyncio.wait_for(client.close(), 30)
    assert trying.done()
    assert len(tried) > 1


async def test_a_client_that_a_refused_login_closed_connects_no_more_once_it_is_closed(
    own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = await client_without_server(own_nats_server, monkeypatch)
    client._status = Client.CLOSED  # pyright: ignore[reportPrivateUsage] - as nats-py does when a login is refused
    trying = client._reconnection_task  # pyright: ignore[reportPrivateUsage]
    assert trying is not None
    await asyncio.wait_for(client.close(), 30)
    assert trying.done()


async def client_without_server(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> tuple[LastingClient, list[object]]:
    """A client that tries to reconnect. Each try loses its first cancellation, as `asyncio.wait_for` of Python 3.11
    does when a connection fails in the turn in which it is cancelled. Also gives the tries."""
    client = LastingClient()
    tried: list[object] = []

    async def keep(error: Exception) -> None:
        del error

    async def lose_a_cancellation(transport: NamedTransport, to: object, *more: object) -> None:
        del transport, more
        tried.append(to)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if len(tried) > 1:
                raise
            raise ConnectionRefusedError from None

    await client.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0, error_cb=keep)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    monkeypatch.setattr(NamedTransport, "connect", lose_a_cancellation)
    monkeypatch.setattr(cancellation, "AGAIN_S", 0.05)
    server.stop()
    await eventually(lambda: len(tried) == 1)
    return client, tried
