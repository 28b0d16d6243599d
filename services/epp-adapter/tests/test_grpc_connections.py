"""One connection and a client in memory: what calls leave behind for those after them."""

import asyncio
from collections.abc import Awaitable, Callable

import ngh2
import pytest

from pointsman_epp_adapter.adapters.grpc_call import Call, CallFailed, Status
from pointsman_epp_adapter.adapters.grpc_connection import Calls, GrpcConnection

PATH = b"/service/method"
HEADERS = [
    (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"here"), (b":path", PATH),
    (b"content-type", b"application/grpc"),
]  # fmt: skip
BODY = bytes(5) + b"\0" + (2**19).to_bytes(4, "big") + bytes(2**19)
"""An empty message and one of 512 KiB: the second comes while the first waits to be read."""


class Transport(asyncio.Transport):
    """Keeps what the server writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True


class Both:
    """Client and server; bytes pass between them only when the test says so."""

    def __init__(self, method: Callable[[Call], Awaitable[None]]) -> None:
        self.calls = Calls({PATH: method}, 100)
        self.server = GrpcConnection(self.calls)
        self.transport = Transport()
        self.client = ngh2.Connection(ngh2.Role.CLIENT)
        self.client.initiate_connection()
        self.server.connection_made(self.transport)

    async def up(self) -> None:
        """Delivers the client's bytes to the server, which calls its method."""
        self.server.data_received(self.client.data_to_send())
        for _ in range(5):
            await asyncio.sleep(0)

    def down(self) -> list[ngh2.Event]:
        """Delivers the server's bytes to the client."""
        written, self.transport.written = b"".join(self.transport.written), []
        self.client.receive_data(written)
        return self.client.events()

    async def begin(self) -> int:
        number = self.client.send_request(HEADERS)
        await self.up()
        return number


async def refuse(call: Call) -> None:
    raise CallFailed(Status.INVALID_ARGUMENT, "100 % no")


async def never_read(call: Call) -> None:
    await asyncio.Event().wait()


async def keep_writing(call: Call) -> None:
    while True:
        await call.write(bytes(2**18))


async def test_a_failed_call_says_why_in_its_trailers() -> None:
    both = Both(refuse)
    number = await both.begin()
    (answer,) = [event for event in both.down() if isinstance(event, ngh2.ResponseReceived)]
    assert (answer.stream_id, answer.end_stream) == (number, True)
    assert dict(answer.headers)[b"grpc-status"] == b"3"
    assert dict(answer.headers)[b"grpc-message"] == b"100 %25 no"


@pytest.mark.parametrize("method", [refuse, never_read], ids=["of a call that has ended", "of a call that is reset"])
async def test_unread_bytes_take_no_room_from_the_next_call(method: Callable[[Call], Awaitable[None]]) -> None:
    both = Both(method)
    await both.up()
    for _ in range(40):
        both.down()
        number = await both.begin()
        both.client.send_data(number, BODY)
        await both.up()
        both.client.reset_stream(number)
        await both.up()
    both.down()
    # More has come than a client may send ahead; half of it back is when libnghttp2 says so.
    assert both.client.remote_window_size >= 2**23
    assert not both.calls.open


async def test_a_client_that_takes_nothing_is_sent_no_more() -> None:
    both = Both(keep_writing)
    await both.begin()
    both.down()
    for _ in range(100):
        await both.up()
    # Its windows are 64 KiB; the rest waits here, and so does the method.
    assert sum(map(len, both.transport.written)) < 2**17
    (task,) = both.calls.open
    both.server.connection_lost(None)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_slow_transport_holds_the_writers_up() -> None:
    both = Both(keep_writing)
    both.client.set_local_window_size(2**30)
    both.server.pause_writing()
    number = await both.begin()
    both.client.set_local_window_size(2**30, stream_id=number)
    before = len(both.transport.written)
    await both.up()
    assert len(both.transport.written) == before
    both.server.resume_writing()
    assert len(both.transport.written) > before
    both.server.connection_lost(None)


async def test_a_client_is_asked_to_go_elsewhere_and_its_calls_go_on() -> None:
    both = Both(never_read)
    await both.begin()
    both.down()
    both.server.refuse_more()
    # Streams that it opened before it got that are served.
    number = await both.begin()
    assert [event.stream_id for event in both.down() if isinstance(event, ngh2.StreamClosed)] == []
    assert not both.server.told.done()
    await both.up()
    (goaway,) = [event for event in both.down() if isinstance(event, ngh2.GoAwayReceived)]
    assert (goaway.last_stream_id, goaway.error_code) == (number, 0)
    assert both.server.told.done()
    assert len(both.calls.open) == 2
    both.server.close()
    assert both.transport.closed
    both.server.connection_lost(None)


async def test_a_client_that_is_gone_is_waited_for_no_longer() -> None:
    both = Both(never_read)
    both.server.refuse_more()
    both.server.connection_lost(None)
    assert both.server.told.done()


@pytest.mark.parametrize("path", [PATH, b"/unheard"])
async def test_a_call_that_is_reset_at_once_affects_no_other_call(path: bytes) -> None:
    both = Both(refuse)
    await both.up()
    both.down()
    number = both.client.send_request([*HEADERS[:3], (b":path", path), HEADERS[4]])
    request = both.client.data_to_send()
    both.client.reset_stream(number)
    both.server.data_received(request + both.client.data_to_send())
    other = await both.begin()
    assert other in [event.stream_id for event in both.down() if isinstance(event, ngh2.ResponseReceived)]


async def test_calls_of_a_client_that_breaks_the_protocol_end_with_its_connection() -> None:
    both = Both(keep_writing)
    await both.begin()
    (task,) = both.calls.open
    both.server.data_received(b"\0\0\0\4\0\0\0\0\7" * 40)  # settings of a stream
    for _ in range(5):
        await asyncio.sleep(0)
    assert both.transport.closed
    assert task.cancelled()
    both.server.connection_lost(None)
