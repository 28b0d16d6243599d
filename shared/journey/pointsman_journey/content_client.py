"""How a stage gets the text of a request, and has it changed: it reads it from an edge of its process, or asks the edge
that holds it."""

from typing import Final, Protocol

from pointsman_contracts.content import Content, ContentEdited, ContentEdits, ContentQuery
from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.message import MalformedMessage
from pointsman_journey.journeys import Journeys

ENVELOPE: Final = 4096
"""Bytes of a message that are reserved for the fields before the body."""
SHARE: Final = 2 / 3
"""How much of an edge's hop budget an answer may take: less than it waits before it sends a journey again."""


class ContentGone(Exception):
    """The edge no longer holds the request: it has ended."""


class ContentUnusable(Exception):
    """An edge gave an answer that can't be used."""


class ContentSource(Protocol):
    """Reads the body of a request, as `ContentClient` does."""

    async def fetch_body(self, edge: str, request_id: str) -> bytes:
        """The body of a request that `edge` holds, as its engine will get it."""
        ...


class ContentClient:
    """Asks edges on behalf of one service. Every method raises ContentGone, ContentUnusable, NoReply, NoListener and
    what `Bus.publish` raises."""

    def __init__(self, journeys: Journeys) -> None:
        self._bus = journeys.bus
        self._journeys = journeys

    @property
    def body_room(self) -> int:
        """Bytes of a body that one message may have."""
        return self._bus.link.max_payload - ENVELOPE

    def body_in_process(self, edge: str, request_id: str, *, original: bool = False) -> bytes | None:
        """Like `body`, of an edge in this process; None for an edge in another one. Raises only ContentGone."""
        body_of = self._journeys.body_of(edge)
        if body_of is None:
            return None
        body = body_of(request_id, original)
        if body is None:
            raise ContentGone(edge)
        return body

    async def fetch_body(self, edge: str, request_id: str, *, original: bool = False) -> bytes:
        """The body of a request that `edge` holds, as its engine will get it; or as the client sent it. One that is
        larger than a message comes in parts."""
        near = self.body_in_process(edge, request_id, original=original)
        if near is not None:
            return near
        parts: list[bytes] = []
        had = 0
        whole: int | None = None
        while True:
            content, part = await self._part(edge, request_id, had, original=original)
            parts.append(part)
            had += len(part)
            # An edge of an earlier version sends all of it, and no size.
            if content.size is None or had >= content.size:
                return part if len(parts) == 1 else b"".join(parts)
            if not part or whole not in (None, content.size):
                raise ContentUnusable(edge)
            whole = content.size

    async def _part(self, edge: str, request_id: str, offset: int, *, original: bool) -> tuple[Content, bytes]:
        query = ContentQuery(request_id=request_id, original=original, offset=offset, at_most=self.body_room)
        answer = await self._bus.ask(query, edge, timeout=self._patience_s())
        document, _, part = answer.partition(b"\n")
        try:
            content = Content.decode(document)
        except MalformedMessage as error:
            raise ContentUnusable(edge) from error
        if not content.held:
            raise ContentGone(edge)
        return content, part

    async def edit_body(self, edge: str, request_id: str, stage: str, edits: tuple[BodyEdit, ...]) -> None:
        """Change what the request's engine gets. Once this returns, the edge has done it."""
        message = ContentEdits(request_id=request_id, stage=stage, edits=edits)
        answer = await self._bus.ask(message, edge, timeout=self._patience_s())
        try:
            edited = ContentEdited.decode(answer)
        except MalformedMessage as error:
            raise ContentUnusable(edge) from error
        if not edited.held:
            raise ContentGone(edge)

    def _patience_s(self) -> float:
        return self._journeys.hop_budget_s * SHARE + self._journeys.heartbeat.table.slack_s
