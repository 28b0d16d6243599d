"""The answer to a request that Envoy forwards."""

import time
from abc import ABC, abstractmethod
from typing import Final

from pointsman_edge.edge import TICK_S
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_epp_adapter.adapters.duplex_answer import DuplexAnswer
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.reviewed_answer import ReviewedAnswer
from pointsman_epp_adapter.adapters.stream import Stream
from pointsman_epp_adapter.adapters.wire import CONTINUE
from pointsman_epp_adapter.domain.envoy_events import Body, BodyMode, ResponseHead, Trailers
from pointsman_epp_adapter.domain.envoys_answers import AnsweredByEnvoy
from pointsman_epp_adapter.domain.mutation import Header, HeaderChanges

_ERROR: Final = 400
COMMENTS_AFTER_S: Final = 0.5
"""An engine or provider that says nothing for so long lets its client wait for comments, too."""


class AwaitedAnswer(ABC):
    """Reads the answer as Envoy shows it. Engines and providers each have a class for theirs."""

    def __init__(self, envoy: EnvoyEdge, record: RequestRecord, mode: BodyMode) -> None:
        """`mode`: how Envoy sends answers."""
        self._envoy = envoy
        self._edge = envoy.edge
        self._record = record
        self._mode = mode
        self._reviewed: ReviewedAnswer | None = None
        self._way: DuplexAnswer | None = None
        """Its way to the client in full duplex, once the provider or engine has sent headers."""
        self._quiet_at = 0
        """The writes of that way, when"""
        self._quiet_since = time.monotonic()
        """the client was last seen to get something."""
        self._thinking_since = 0.0

    async def run(self, stream: Stream) -> None:
        """Until the answer has ended. Raises EnvoyGone, and Refusal if the client gets an error instead of it."""
        while self._record.outcome is None or (self._reviewed is not None and self._reviewed.withholds):
            event = await stream.next_message()
            if isinstance(event, Body) and not event.of_request:
                await self._body(event, stream)
            elif isinstance(event, ResponseHead):
                await self._head(event, stream)
            elif isinstance(event, Trailers):
                if not event.of_request:
                    await self._rest(stream)
                await stream.write(CONTINUE["request_trailers" if event.of_request else "response_trailers"])

    def keep_alive(self, now: float) -> None:
        """Like `EdgeRequest.keep_alive`. Envoy takes bytes of the edge's own in full duplex alone, and once it has
        headers."""
        way = self._way
        if way is None:
            return
        if way.writes != self._quiet_at:
            self._quiet_at, self._quiet_since = way.writes, now
            return
        after_s = self._record.policy.limits.keep_alive
        # By the next tick it would be too long.
        if after_s and now - self._quiet_since > after_s - 2 * TICK_S:
            self._keep_open(now)

    def _thinking(self) -> None:
        """Something came that says nothing, e.g. a comment while a model thinks."""
        now = time.monotonic()
        if not self._thinking_since:
            self._thinking_since = now
        elif now - self._thinking_since >= COMMENTS_AFTER_S:
            self._keep_open(now)

    def _keep_open(self, now: float) -> None:
        record, way = self._record, self._way
        if way is None or not record.stream or record.outcome is not None or not self._may_begin():
            return
        if way.write_aside(record.api.keep_alive):
            self._quiet_at, self._quiet_since = way.writes, now

    @abstractmethod
    def _may_begin(self) -> bool:
        """Have the head leave before its answer says something, unless it has left. False where it must wait."""

    @abstractmethod
    def close(self) -> None:
        """The stream has ended: record the attempt, and the request's outcome if it has none."""

    @abstractmethod
    async def _head(self, head: ResponseHead, stream: Stream) -> None:
        """Status and headers."""

    @abstractmethod
    async def _body(self, piece: Body, stream: Stream) -> None: ...

    @abstractmethod
    async def _rest(self, stream: Stream) -> None:
        """Trailers have come: pass on the bytes that are held. Raises Refusal if Envoy takes none of them any more."""

    @abstractmethod
    def _own(self) -> list[Header]:
        """The gateway's own headers in the answer."""

    async def _refused_by_envoy(self, head: ResponseHead, stream: Stream) -> None:
        """Another filter or a route of Envoy's answered, below status 500: the client gets that answer as it is. No
        endpoint had the request."""
        record = self._record
        record.worker = None
        record.end("rejected", head.status, head.details)
        if head.status >= _ERROR:
            self._edge.events.publish_rejection(record, AnsweredByEnvoy(head.status, head.details))
        await stream.pass_answer(head, self._mode, HeaderChanges(self._own(), []))
