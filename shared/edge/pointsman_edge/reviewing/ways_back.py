"""Where answers and errors meet the stages on the way back."""

from collections.abc import Sequence
from typing import Protocol

from pointsman_apis import named
from pointsman_apis.errors import error_headers
from pointsman_apis.paths import WrongMethod
from pointsman_contracts.journey import Stage
from pointsman_contracts.reply import Answer, Decision
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.reviewing.afterwards import Afterwards
from pointsman_edge.reviewing.reviewing import Surrounding
from pointsman_edge.reviewing.reviews import Reviewers
from pointsman_edge.reviewing.way_back import Headers, WayBack, Withheld
from pointsman_edge.taking_in.held_bodies import HeldBodies, HeldBody
from pointsman_edge.telling.announcer import Announcer
from pointsman_edge.telling.exchange import Exchange
from pointsman_runtime.telling.telemetry import Span

_JSON = (b"content-type", b"application/json")


class OpenRequest(Protocol):
    """What an edge keeps of a request while it is open."""

    span: Span | None
    """Of the whole request, once its head is understood."""
    held: HeldBody | None
    """Its body, once it is complete."""
    way_back: WayBack | None
    """What its answer passes, once there is one to pass the stages on the way back."""


class WaysBack:
    """Sets up the way back of each request. One without stages on it costs nothing."""

    def __init__(self, edge: str, reviewers: Reviewers, bodies: HeldBodies, announcer: Announcer) -> None:
        """`bodies`: of the open requests; one is let go when nothing asks for it any more."""
        self._edge = edge
        self._reviewers = reviewers
        self._bodies = bodies
        self._announcer = announcer
        self._afterwards = Afterwards()

    def begin(
        self, reply: Decision | Answer, policy: EdgePolicy, exchange: Exchange, request: OpenRequest
    ) -> WayBack | None:
        """What the answer passes: the stages of the profile and those of every answer. None: there are none."""
        if not reply.response and not policy.postprocessing:
            return None
        return self.way(reply, policy, exchange, request)

    def way(self, reply: Decision | Answer, policy: EdgePolicy, exchange: Exchange, request: OpenRequest) -> WayBack:
        """As `begin`, where an answer is taken apart anyway: a way without stages lets it pass."""
        stages = (*reply.response, *policy.postprocessing)
        request.way_back = self._begin(stages, policy, exchange, request)
        return request.way_back

    async def error(
        self, refusal: Refusal, policy: EdgePolicy, exchange: Exchange, request: OpenRequest
    ) -> tuple[int, Headers, bytes]:
        """Status, headers and body of an error, as the stages of every answer leave it (S0-63)."""
        exchange.code = refusal.told_code
        headers, body = _written(refusal, exchange)
        if not policy.postprocessing:
            return refusal.status, headers, body
        way_back = request.way_back = self._begin(policy.postprocessing, policy, exchange, request)
        try:
            headers, body = await way_back.whole(refusal.status, headers, body, refusal.told_code)
        except Withheld as withheld:
            exchange.code = withheld.told_code
            return withheld.status, *_written(withheld, exchange)
        way_back.left(body)
        return refusal.status, headers, body

    def after(self, policy: EdgePolicy, exchange: Exchange, request: OpenRequest) -> None:
        """The request has ended: ask the stages that come after the last byte, whatever became of it."""
        if request.way_back is None and policy.postprocessing:
            request.way_back = self._begin(policy.postprocessing, policy, exchange, request)
        held = request.held
        if request.way_back is not None and request.way_back.follows:
            told = self._after(request.way_back, exchange)
            self._afterwards.begin(told, lambda: None if held is None else self._bodies.let_go(held))
        elif held is not None:
            self._bodies.let_go(held)

    async def drained(self) -> None:
        """Wait until every stage that was asked has answered, or its time is over."""
        await self._afterwards.drain()

    async def _after(self, way_back: WayBack, exchange: Exchange) -> None:
        self._announcer.reviewed(exchange, await way_back.after())

    def _begin(self, stages: Sequence[Stage], policy: EdgePolicy, exchange: Exchange, request: OpenRequest) -> WayBack:
        traceparent = None if request.span is None else request.span.traceparent
        surrounding = Surrounding(self._edge, policy.revision, traceparent)
        return WayBack(stages, self._reviewers, exchange, surrounding, policy.limits.max_held_answer)


def _written(refusal: Refusal, exchange: Exchange) -> tuple[Headers, bytes]:
    headers = [_JSON, *error_headers(refusal)]
    if isinstance(refusal, WrongMethod):
        headers.append((b"allow", refusal.allowed.encode("ascii")))
    return headers, named(exchange.api).error(refusal)
