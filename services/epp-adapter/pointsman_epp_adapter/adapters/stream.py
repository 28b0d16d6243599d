"""Reads one ext_proc stream: in order, ahead while something else is waited for, and a request's body whole."""

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Final, NamedTuple, TypeVar

import grpc.aio

from pointsman_core.refusal import Refusal
from pointsman_epp_adapter.adapters.context import Context
from pointsman_epp_adapter.adapters.wire import (
    CONTINUE,
    Body,
    BodyMode,
    Event,
    RequestHead,
    ResponseHead,
    Trailers,
    Unknown,
)

T = TypeVar("T")

_AHEAD: Final = 2
"""Messages that may come while a request is decided: trailers."""


class EnvoyGone(Exception):
    """Envoy says no more: its client left, or it went on without us."""


class ProtocolViolation(Exception):
    """Envoy, or somebody who isn't one, sent what can't come here. The text has no content of the request."""


class WholeBody(NamedTuple):
    """A request's body."""

    data: bytes
    buffered: bool
    """It came as one message; otherwise the headers aren't answered yet."""
    trailers: bool
    """Trailers have come, and aren't answered yet."""


class Stream:
    """One stream of Envoy's."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reading: asyncio.Task[Event | object] | None = None
        self._ahead: deque[Event | object] = deque()
        self._listener: asyncio.Task[object] | None = None
        self._interruption: EnvoyGone | ProtocolViolation | None = None

    async def next(self) -> Event:
        """The next message. Raises EnvoyGone."""
        if self._ahead:
            event = self._ahead.popleft()
        elif self._reading is not None:
            event = await self._reading
            self._reading = None
        else:
            event = await self._context.read()
        if isinstance(event, RequestHead | ResponseHead | Body | Trailers | Unknown):
            return event
        raise EnvoyGone

    async def write(self, message: bytes) -> None:
        """Answer."""
        await self._context.write(message)

    async def listening(self, work: Awaitable[T]) -> T:
        """Do `work`, unless Envoy goes meanwhile: then it is cancelled, and EnvoyGone raised."""
        task = self._listener = asyncio.current_task()
        self._read_ahead()
        try:
            return await work
        except asyncio.CancelledError:
            if self._interruption is None or task is None:
                raise
            task.uncancel()
            raise self._interruption from None
        finally:
            self._listener = None

    def _read_ahead(self) -> None:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._context.read())
            self._reading.add_done_callback(self._heard)

    def _heard(self, reading: "asyncio.Task[Event | object]") -> None:
        """While somebody listens; otherwise what was read waits for `next`."""
        listener = self._listener
        if reading.cancelled() or reading.exception() is not None or listener is None:
            return
        self._reading = None
        event = reading.result()
        self._ahead.append(event)
        if event is grpc.aio.EOF:
            self._interruption = EnvoyGone()
        elif len(self._ahead) > _AHEAD:
            self._interruption = ProtocolViolation("messages that nobody asked for while a request is decided")
        else:
            self._read_ahead()
            return
        listener.cancel()

    async def body(self, head: RequestHead, limit: int) -> WholeBody:
        """The whole body of a request. Raises Refusal 400 and 413, EnvoyGone, ProtocolViolation."""
        if head.end:
            raise Refusal(400, "The body is empty; a JSON object is expected.", code="empty_body")
        buffered = head.request_mode is BodyMode.BUFFERED
        if buffered:
            await self.write(CONTINUE["request_headers"])
        elif head.request_mode is not BodyMode.FULL_DUPLEX_STREAMED:
            raise ProtocolViolation(
                f"request_body_mode {head.request_mode.name}: this picker needs FULL_DUPLEX_STREAMED or BUFFERED"
            )
        pieces: list[bytes] = []
        size = 0
        while True:
            event = await self.next()
            if isinstance(event, Trailers) and event.of_request and not buffered:
                return WholeBody(_joined(pieces), buffered, trailers=True)
            if not isinstance(event, Body) or not event.of_request:
                raise ProtocolViolation(f"{type(event).__name__} while a request's body is expected")
            pieces.append(event.data)
            size += len(event.data)
            if size > limit:
                # Where it would end isn't known; what has come is too much already.
                raise Refusal(413, f"The body has {size} bytes; at most {limit} are taken.", code="body_too_large")
            if buffered or event.end:
                return WholeBody(_joined(pieces), buffered, trailers=False)

    def close(self) -> None:
        """Nothing more is read."""
        if self._reading is not None:
            self._reading.cancel()


def _joined(pieces: list[bytes]) -> bytes:
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if not body:
        raise Refusal(400, "The body is empty; a JSON object is expected.", code="empty_body")
    return body
