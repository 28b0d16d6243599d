"""Reads one ext_proc stream: in order, heeded while something else is waited for, and a request's body whole."""

import asyncio
from collections.abc import Awaitable
from typing import Final, NamedTuple, TypeVar

from pointsman_core.refusal import Refusal
from pointsman_epp_adapter.adapters.grpc_call import Call
from pointsman_epp_adapter.adapters.wire import CONTINUE, Body, BodyMode, Event, RequestHead, Trailers, decode

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

    def __init__(self, call: Call) -> None:
        self._call = call
        self._listener: asyncio.Task[object] | None = None
        self._interruption: EnvoyGone | ProtocolViolation | None = None

    async def next(self) -> Event:
        """The next message. Raises EnvoyGone."""
        message = await self._call.read()
        if message is None:
            raise EnvoyGone
        return decode(message)

    async def write(self, message: bytes) -> None:
        """Answer."""
        await self._call.write(message)

    async def listening(self, work: Awaitable[T]) -> T:
        """Do `work`, unless Envoy goes meanwhile: then it is cancelled, and EnvoyGone raised."""
        task = self._listener = asyncio.current_task()
        self._call.heard = self._heard
        self._heard()
        try:
            return await work
        except asyncio.CancelledError:
            if self._interruption is None or task is None:
                raise
            task.uncancel()
            raise self._interruption from None
        finally:
            self._call.heard = None

    def _heard(self) -> None:
        if self._listener is None or self._interruption is not None:
            return
        if self._call.ended:
            self._interruption = EnvoyGone()
        elif self._call.unread > _AHEAD:
            self._interruption = ProtocolViolation("messages that nobody asked for while a request is decided")
        else:
            return
        self._listener.cancel()

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


def _joined(pieces: list[bytes]) -> bytes:
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if not body:
        raise Refusal(400, "The body is empty; a JSON object is expected.", code="empty_body")
    return body
