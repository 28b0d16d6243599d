"""The answer to a request that Envoy forwards."""

from abc import ABC, abstractmethod
from typing import Final

from pointsman_edge.telling.request_record import RequestRecord
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.reviewed_answer import ReviewedAnswer
from pointsman_epp_adapter.adapters.stream import Stream
from pointsman_epp_adapter.adapters.wire import CONTINUE
from pointsman_epp_adapter.domain.envoy_events import Body, BodyMode, ResponseHead, Trailers
from pointsman_epp_adapter.domain.envoys_answers import AnsweredByEnvoy
from pointsman_epp_adapter.domain.mutation import Header, HeaderChanges

_ERROR: Final = 400


class AwaitedAnswer(ABC):
    """Reads the answer as Envoy shows it. Engines and providers each have a class for theirs."""

    def __init__(self, envoy: EnvoyEdge, record: RequestRecord, mode: BodyMode) -> None:
        """`mode`: how Envoy sends answers."""
        self._envoy = envoy
        self._edge = envoy.edge
        self._record = record
        self._mode = mode
        self._reviewed: ReviewedAnswer | None = None

    async def run(self, stream: Stream) -> None:
        """Until the answer has ended. Raises EnvoyGone, and Refusal if the client gets an error instead of it."""
        while self._record.outcome is None or (self._reviewed is not None and self._reviewed.withholds):
            event = await stream.next()
            if isinstance(event, Body) and not event.of_request:
                await self._body(event, stream)
            elif isinstance(event, ResponseHead):
                await self._head(event, stream)
            elif isinstance(event, Trailers):
                if not event.of_request:
                    await self._rest(stream)
                await stream.write(CONTINUE["request_trailers" if event.of_request else "response_trailers"])

    @abstractmethod
    def close(self) -> None:
        """The stream has ended: record the attempt, and the request's outcome if it has none."""

    @abstractmethod
    async def _head(self, head: ResponseHead, stream: Stream) -> None:
        """Status and headers."""

    @abstractmethod
    async def _body(self, piece: Body, stream: Stream) -> None:
        """A piece of the body."""

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
            self._edge.events.rejected(record, AnsweredByEnvoy(head.status, head.details))
        await stream.pass_answer(head, self._mode, HeaderChanges(self._own(), []))
