"""One connection of a gRPC client's: HTTP/2 by libnghttp2, and gRPC's headers and statuses on it.

All of it runs on the event loop; docs/adr/0011 explains why it isn't gRPC's own server for asyncio.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, cast
from urllib.parse import quote

from ngh2 import (
    Configuration,
    Connection,
    ConnectionClosed,
    DataReceived,
    Header,
    NGH2Error,
    PingAcknowledged,
    RequestReceived,
    Role,
    Setting,
    StreamClosed,
    StreamProtocolError,
    TrailersReceived,
)

from pointsman_epp_adapter.adapters.grpc_call import Call, CallFailed, Status
from pointsman_runtime.telling.logs import Log

Method = Callable[[Call], Awaitable[None]]
"""Serves one call. Raises CallFailed."""

_STREAM_WINDOW: Final = 2**20
_CONNECTION_WINDOW: Final = 2**24
"""Bytes that a client may send ahead of what is read."""
_QUEUED: Final = 2**20
"""Bytes that wait for a client which doesn't take them, before its call waits too."""
_OFTEN: Final = (2**20, 2**20)
"""Burst and rate a second of what libnghttp2 takes for an attack. Envoy resets a stream whenever its client leaves, and
whenever it is answered before it has ended its own side."""
_CONFIGURATION: Final = Configuration(
    auto_window_update=False, stream_reset_rate_limit=_OFTEN, glitch_rate_limit=_OFTEN
)
_SETTINGS: Final = {Setting.INITIAL_WINDOW_SIZE: _STREAM_WINDOW}
_HEAD: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_NOT_GRPC: Final = ((b":status", b"415"),)
_READABLE: Final = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}"

_log = Log("grpc")


class Calls:
    """The calls of all connections of one server."""

    def __init__(self, methods: Mapping[bytes, Method], limit: int) -> None:
        """`methods` by path; more than `limit` calls at a time are refused."""
        self.methods: Final = methods
        self.limit: Final = limit
        self.open: set[asyncio.Task[None]] = set()
        self.connections: set[GrpcConnection] = set()


class GrpcConnection(asyncio.Protocol):
    """From its acceptance to its end."""

    def __init__(self, calls: Calls) -> None:
        self._all = calls
        self._calls: dict[int, Call] = {}
        self._http = Connection(Role.SERVER, _CONFIGURATION)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._paused = False
        self._progress: asyncio.Future[None] | None = None
        self.lost: Final = self._loop.create_future()
        """Done when the socket is closed, which is some time after `close` where the client is slow to agree."""
        self.told: Final = self._loop.create_future()
        """Done when the client has received `refuse_more`, or is gone."""
        self._socket: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implements `asyncio.Protocol`."""
        # uvloop's transports are none of asyncio's classes.
        self._transport = self._socket = cast("asyncio.Transport", transport)
        self._all.connections.add(self)
        self._http.initiate_connection(_SETTINGS)
        self._http.set_local_window_size(_CONNECTION_WINDOW)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Implements `asyncio.Protocol`."""
        try:
            self._http.receive_data(data)
        except NGH2Error as error:
            _log.warning("connection_broken", reason=str(error))
            self._drop()
            return
        self._handle()
        if not self._flushing:
            self._flush_soon()

    def pause_writing(self) -> None:
        """Implements `asyncio.Protocol`."""
        self._paused = True

    def resume_writing(self) -> None:
        """Implements `asyncio.Protocol`."""
        self._paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implements `asyncio.Protocol`."""
        del exc  # a client that is gone is gone
        self._all.connections.discard(self)
        self._drop()
        self._heard()
        self.lost.set_result(None)

    def refuse_more(self) -> None:
        """Have the client open further calls elsewhere. Calls that it began before it received this are
        served: the last of them is named afterwards (RFC 9113, section 6.8)."""
        if self._transport is not None:
            self._http.send_shutdown_notice()
            self._http.ping()
            self._flush()

    def close(self) -> None:
        """Send what is left, and end."""
        self._flush()
        self._drop()

    def abort(self) -> None:
        """End without waiting for the client."""
        if self._socket is not None:
            self._socket.abort()

    def send(self, call: Call, data: bytes) -> bool:
        """Send bytes of a call's body, after its headers."""
        http, stream_id = self._http, call.stream_id
        if not call.headers_sent:
            call.headers_sent = True
            http.send_response(stream_id, _HEAD)
        http.send_data(stream_id, data)
        if not self._flushing:
            self._flush_soon()
        return not self._paused and http.queued_body_size(stream_id) <= _QUEUED

    def return_credit(self, stream_id: int, size: int) -> None:
        """So many of the received bytes are done with: the client may send as many more."""
        if self._transport is not None:
            self._http.acknowledge_received_data(size, stream_id)
            if not self._flushing:
                self._flush_soon()

    def backed_up(self, stream_id: int) -> bool:
        """Whether the client doesn't take what it is sent."""
        return self._paused or self._http.queued_body_size(stream_id) > _QUEUED

    async def wait_for_progress(self) -> None:
        """Wait until the client has read some bytes, or is gone."""
        if self._progress is None:
            self._progress = self._loop.create_future()
        await asyncio.shield(self._progress)  # others wait for it too

    def _handle(self) -> None:
        for event in self._http.events():
            if isinstance(event, DataReceived):
                call = self._calls.get(event.stream_id)
                if call is not None:
                    call.receive_body(event.data, end=event.end_stream)
                elif event.data:
                    # The call has ended; unacknowledged bytes would be missing in the connection's window for ever.
                    self._http.acknowledge_received_data(len(event.data), event.stream_id)
            elif isinstance(event, RequestReceived):
                self._begin(event)
            elif isinstance(event, StreamClosed):
                call = self._calls.pop(event.stream_id, None)
                if call is not None:
                    call.lose_client()
            elif isinstance(event, TrailersReceived):
                call = self._calls.get(event.stream_id)
                if call is not None:
                    call.receive_body(b"", end=True)
            elif isinstance(event, PingAcknowledged):
                self._http.send_goaway()
                self._heard()
            elif isinstance(event, ConnectionClosed):
                self._drop()

    def _begin(self, request: RequestReceived) -> None:
        headers = dict(request.headers)
        if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            self._answer(request.stream_id, _NOT_GRPC)
            return
        call = self._calls[request.stream_id] = Call(request.stream_id, self, headers)
        method = self._all.methods.get(headers.get(b":path", b""))
        if method is None:
            self._end(call, Status.UNIMPLEMENTED, "This server doesn't have the method that was called.")
        elif len(self._all.open) >= self._all.limit:
            self._end(
                call,
                Status.RESOURCE_EXHAUSTED,
                f"{self._all.limit} calls are open, which is the limit; try again when one has ended.",
            )
        else:
            task = call.task = self._loop.create_task(self._serve(method, call))
            self._all.open.add(task)
            task.add_done_callback(self._all.open.discard)
            if request.end_stream:
                call.receive_body(b"", end=True)

    async def _serve(self, method: Method, call: Call) -> None:
        status, words = Status.CANCELLED, ""
        try:
            await method(call)
            status = Status.OK
        except CallFailed as failed:
            status, words = failed.status, str(failed)
        except Exception as error:  # noqa: BLE001 - the client must hear that the call has ended
            _log.error("call_failed", error)
            status = Status.UNKNOWN
        finally:
            self._end(call, status, words)

    def _end(self, call: Call, status: Status, words: str) -> None:
        if call.closed:
            return
        del self._calls[call.stream_id]
        call.closed = True
        call.stop_reading()
        trailers = [(b"grpc-status", b"%d" % status)]
        if words:
            trailers.append((b"grpc-message", quote(words, safe=_READABLE).encode("ascii")))
        if call.headers_sent:
            self._http.send_trailers(call.stream_id, trailers)
        else:
            self._answer(call.stream_id, (*_HEAD, *trailers))
        if not self._flushing:
            self._flush_soon()

    def _answer(self, stream_id: int, headers: Iterable[Header]) -> None:
        """The whole of an answer."""
        with suppress(StreamProtocolError):  # reset in the same piece of data that brought the request
            self._http.send_response(stream_id, headers, end_stream=True)

    def _flush_soon(self) -> None:
        """Flush after the tasks that are ready now have run: their output leaves in one piece."""
        self._flushing = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is None or self._paused:
            return
        data = self._http.data_to_send()
        if data:
            self._transport.write(data)
        self._handle()
        if self._progress is not None:
            self._progressed()

    def _heard(self) -> None:
        if not self.told.done():
            self.told.set_result(None)

    def _progressed(self) -> None:
        waiting, self._progress = self._progress, None
        if waiting is not None:
            waiting.set_result(None)

    def _drop(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.lose_client()
        self._progressed()
