"""Reads one ext_proc stream: in order, heeded while something else is waited for, and a request's body whole."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Final, NamedTuple, TypeVar

from pointsman_edge.taking_in.bodies import check_length
from pointsman_epp_adapter.adapters.grpc_call import Call
from pointsman_epp_adapter.adapters.wire import CHUNK, CONTINUE, answer_in, decode, piece, response_head, streamed
from pointsman_epp_adapter.domain.envoy_events import Body, BodyMode, Event, RequestHead, ResponseHead, Trailers
from pointsman_epp_adapter.domain.envoys_answers import AnsweredByEnvoy
from pointsman_epp_adapter.domain.mutation import HeaderChanges

T = TypeVar("T")

_AHEAD: Final = 2
"""Messages that may come while a request is decided: trailers."""


class EnvoyGone(Exception):
    """Envoy closed the stream: its client left, or it goes on without the picker."""


class ProtocolViolation(Exception):
    """A message that the protocol doesn't allow here. The text has no content of the request."""


class WholeBody(NamedTuple):
    """A request's body."""

    data: bytes
    buffered: bool
    """The body came as one message; otherwise the headers aren't answered yet."""
    trailers: bool
    """Trailers have come, and aren't answered yet."""


class Stream:
    """One stream of Envoy's."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.heeds_modes = call.metadata.get(b"x-pointsman-mode-override") == b"heeded"
        """Envoy heeds the mode that the answer to a request's headers sets, in full duplex too."""
        self._listener: asyncio.Task[object] | None = None
        self._interruption: EnvoyGone | ProtocolViolation | AnsweredByEnvoy | None = None

    async def next_message(self) -> Event:
        """The next message. Raises EnvoyGone."""
        message = await self._call.read()
        if message is None:
            raise EnvoyGone
        return decode(message)

    def write(self, message: bytes) -> Coroutine[object, object, None]:
        """Answer."""
        return self._call.write(message)

    def send_if_taken(self, *messages: bytes) -> bool:
        """Answer at once; False where Envoy takes nothing at the moment, or is gone."""
        return self._call.send_if_taken(*messages)

    async def write_all(self, messages: Iterable[bytes]) -> None:
        """Answer with several messages, small ones together. The others wait while Envoy takes none."""
        held: list[bytes] = []
        size = 0
        for message in messages:
            held.append(message)
            size += len(message)
            if size >= CHUNK:
                await self._call.write(*held)
                held, size = [], 0
        if held:
            await self._call.write(*held)

    def write_body(self, data: bytes, *, of_request: bool, end: bool) -> Coroutine[object, object, None]:
        """Answer with a piece of a body in full-duplex mode."""
        if len(data) <= CHUNK:
            return self._call.write(piece(data, of_request, end))
        return self.write_all(streamed(data, of_request=of_request, end=end))

    async def listen_while(self, work: Coroutine[object, object, T]) -> T:
        """Do `work`, unless Envoy goes or answers meanwhile: then it is cancelled, and EnvoyGone or AnsweredByEnvoy
        raised."""
        if self._call.unread or self._call.ended:
            self._heard()
        if self._interruption is not None:
            work.close()
            raise self._interruption
        task = self._listener = asyncio.current_task()
        self._call.heard = self._heard
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
        if self._interruption is not None:
            return
        unread = self._call.unread
        answered = next(filter(None, map(answer_in, unread)), None)
        if answered is not None:
            self._interruption = AnsweredByEnvoy(answered.status, answered.details)
        elif self._call.ended:
            self._interruption = EnvoyGone()
        elif len(unread) > _AHEAD:
            self._interruption = ProtocolViolation("more messages came than trailers before the request was decided")
        else:
            return
        if self._listener is not None:
            self._listener.cancel()

    async def read_body(self, head: RequestHead, limit: int) -> WholeBody:
        """The whole body of a request. Raises Refusal 413, AnsweredByEnvoy, EnvoyGone, ProtocolViolation."""
        if head.end:
            return WholeBody(b"", buffered=False, trailers=False)
        buffered = head.request_mode is BodyMode.BUFFERED
        if buffered:
            await self.write(CONTINUE["request_headers"])
        elif head.request_mode is not BodyMode.FULL_DUPLEX_STREAMED:
            raise ProtocolViolation(
                f"request_body_mode {head.request_mode.name}: the epp-adapter needs FULL_DUPLEX_STREAMED or BUFFERED"
            )
        pieces: list[bytes] = []
        size = 0
        while True:
            event = await self.next_message()
            if isinstance(event, Trailers) and event.of_request and not buffered:
                return WholeBody(_joined(pieces), buffered, trailers=True)
            if isinstance(event, ResponseHead):
                # For example, the body is larger than Envoy's buffer, or arrives too slowly.
                raise AnsweredByEnvoy(event.status, event.details)
            if not isinstance(event, Body) or not event.of_request:
                raise ProtocolViolation(f"{type(event).__name__} came where the body of a request is expected")
            pieces.append(event.data)
            size += len(event.data)
            # Where it would end isn't known; over the limit, what has come is too much already.
            check_length(size, limit)
            if buffered or event.end:
                return WholeBody(_joined(pieces), buffered, trailers=False)

    async def pass_answer(self, head: ResponseHead, mode: BodyMode, changes: HeaderChanges) -> None:
        """Let an answer through without reading its body; `changes` are made to its headers. `mode` is how Envoy sends
        the body."""
        duplex = mode is BodyMode.FULL_DUPLEX_STREAMED
        unseen = None if head.end or duplex or mode is BodyMode.NONE else BodyMode.NONE
        await self.write(response_head(changes, unseen))
        if duplex and not head.end:
            await self._pass(of_request=False)

    async def pass_request(self, head: RequestHead) -> ResponseHead:
        """Let the body of a request whose headers are answered through; returns the head of its answer. Raises
        EnvoyGone."""
        duplex = head.request_mode is BodyMode.FULL_DUPLEX_STREAMED
        while True:
            event = await self._pass(of_request=True) if duplex else await self.next_message()
            if isinstance(event, ResponseHead):
                return event
            if isinstance(event, Body | Trailers):
                part = "body" if isinstance(event, Body) else "trailers"
                await self.write(CONTINUE[f"request_{part}" if event.of_request else f"response_{part}"])

    async def _pass(self, *, of_request: bool) -> ResponseHead | None:
        """Send pieces back as they come until one body has ended, or an answer begins: then that is returned."""
        while True:
            event = await self.next_message()
            if isinstance(event, ResponseHead):
                return event
            if isinstance(event, Body):
                await self.write_body(event.data, of_request=event.of_request, end=event.end)
                if not event.end:
                    continue
            elif isinstance(event, Trailers):
                await self.write(CONTINUE["request_trailers" if event.of_request else "response_trailers"])
            else:
                continue
            if event.of_request == of_request:
                return None


def _joined(pieces: list[bytes]) -> bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
