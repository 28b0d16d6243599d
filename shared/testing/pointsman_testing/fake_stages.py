"""Stands in for the stages and the event bus that an edge talks to."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from pointsman_contracts.content import PromptTokens
from pointsman_contracts.journey import PreprocessRequest, Stage
from pointsman_contracts.message import Message
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.presence import OpenRequests, OpenRequestsQuery
from pointsman_contracts.reply import Answer, ChosenEndpoint, Decision, Rejection
from pointsman_contracts.response_stage import ResponseReview, Verdict
from pointsman_contracts.verdicts import MovedRequests, MoveRequests
from pointsman_runtime.bus.errors import BusError
from pointsman_testing import builders

M = TypeVar("M", bound=Message)
Reply = Decision | Rejection | Answer
Says = Callable[[PreprocessRequest], Reply]


class FakeStages:
    """Makes the decisions that a test sets. Endpoints are tried in the order of `urls`, as workers `worker-1`,
    `worker-2`, …"""

    def __init__(self, *urls: str) -> None:
        self.urls = urls
        self.asked: list[tuple[PreprocessRequest, bytes, str | None]] = []
        """Request, body and trace context of everything that was asked."""
        self.changes: dict[str, object] = {}
        """Fields of the decision that differ from the builder's."""
        self.reply: Says | None = None
        """Instead of a decision."""
        self.failure: Exception | None = None
        self.let_go = asyncio.Event()
        """Answers wait for it; set unless a test clears it."""
        self.let_go.set()
        self.abandoned = 0
        """Requests whose edge stopped waiting."""

    def usable(self, reply: Reply) -> Reply:
        """Called by an edge with a reply."""
        return reply

    def explained(self, error: BusError) -> NoReturn:
        """Called by an edge when the bus fails, which no test causes."""
        raise error

    async def ask(self, request: PreprocessRequest, body: bytes, policy: object, traceparent: str | None) -> Reply:
        """Called by an edge."""
        del policy
        self.asked.append((request, body, traceparent))
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        if self.failure is not None:
            raise self.failure
        if self.reply is not None:
            return self.reply(request)
        endpoints = tuple(
            ChosenEndpoint(worker=f"worker-{number}", url=url) for number, url in enumerate(self.urls, start=1)
        )
        return builders.decision(request.request_id, **({"endpoints": endpoints} | self.changes))


class FakeReviewers:
    """Stages on the way back with verdicts set by the test; by default they let everything pass."""

    def __init__(self) -> None:
        self.asked: list[ResponseReview] = []
        """Everything that they were asked, in order."""
        self.say: Callable[[ResponseReview], Verdict] = lambda review: Verdict(request_id=review.request_id)
        """May raise the exceptions that an edge expects of a failing stage."""
        self.worked_for: list[str] = []
        """Stages whose verdict was of use, each time."""
        self.failures: list[tuple[str, str]] = []
        """Stages without a usable verdict, and the problem of each."""

    async def ask_stage(self, stage: Stage, review: ResponseReview, traceparent: str | None) -> Verdict:
        """Called by an edge."""
        del stage, traceparent
        self.asked.append(ResponseReview.decode(review.encode()))
        await asyncio.sleep(0)
        return Verdict.decode(self.say(review).encode())

    def count_success(self, stage: Stage) -> None:
        """Called by an edge when a verdict is usable."""
        self.worked_for.append(stage.service)

    def count_failure(self, stage: Stage, failure: Exception, request_id: str) -> None:
        """Called by an edge when a verdict is missing or unusable."""
        del request_id
        self.failures.append((stage.service, str(failure)))


class RecordedEvents:
    """Keeps the events that an edge publishes."""

    def __init__(self) -> None:
        self.sent: list[tuple[Message, tuple[str, ...]]] = []
        self.hastened: list[type[Message]] = []
        """Types of the messages that were to leave sooner."""
        self.awaited: list[Callable[[], None]] = []
        """For each message that left at once, to call when the stream has it."""

    def publish(self, message: Message, *route: str) -> None:
        """See `Bus.publish`."""
        message.decode(message.encode())
        self.sent.append((message, route))

    def hasten(self) -> None:
        """See `Bus.hasten`."""
        if self.sent:
            self.hastened.append(type(self.sent[-1][0]))

    def await_event(self, message: Message, *route: str, done: Callable[[], None]) -> None:
        """See `Bus.await_event`."""
        del message, route
        self.awaited.append(done)

    def of(self, kind: type[M]) -> list[M]:
        """The messages of one type, in order."""
        return [message for message, _ in self.sent if isinstance(message, kind)]


@dataclass
class EdgeUnderTest:
    """A running edge and everything around it."""

    url: str
    stages: FakeStages
    reviewers: FakeReviewers
    events: RecordedEvents
    hear: Callable[[PoolSnapshot | PromptTokens], None]
    """Gives the edge a signal."""
    ask_open: Callable[[OpenRequestsQuery], OpenRequests]
    """Asks the edge which requests are open."""
    metric: Callable[[str], float]
    """Sum over the samples of a metric, by its exposed name."""
    stop: Callable[[], Awaitable[None]] = field(repr=False)
    """The effect of SIGTERM on its HTTP side."""
    move: Callable[[MoveRequests], MovedRequests] = field(kw_only=True)
    """Has the edge move requests off an engine."""


StartEdge = Callable[..., Awaitable[EdgeUnderTest]]
"""`await start_edge(*engine_urls, config={…}, **settings)`."""
