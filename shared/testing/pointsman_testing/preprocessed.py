"""Preprocessors with their surroundings, but without an engine."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pointsman_contracts.journey import Journey
from pointsman_contracts.reply import Decision, Rejection
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_journey.hop import Hop
from pointsman_journey.hop_budget import HOP_BUDGET_S
from pointsman_journey.journey_client import JourneyClient
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.process import Process
from pointsman_testing import builders
from pointsman_testing.eventually import eventually

POOL = "p"


@dataclass(frozen=True)
class Judged:
    """The outcome of one request."""

    request_id: str
    at: float
    """`time.monotonic()` at its end."""
    status: int
    """200 when the preprocessor let it pass; 0 without an answer."""
    headers: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    code: str | None = None
    retry_after_s: float | None = None


class PreprocessorSurroundings:
    """An edge that sends requests, and a profile-picker that decides every request it gets."""

    def __init__(self, url: str, hop_budget_s: float) -> None:
        self.edge = Journeys(Bus(Connection([url], name="edge"), Process("frontend", "edge-1")))
        self._picker = Journeys(Bus(Connection([url], name="picker"), Process("profile-picker", "picker-1")))
        self._picker.stage(Journey, _decide)
        for each in (self.edge, self._picker):
            each.allow(hop_budget_s)
        self._client = JourneyClient(self.edge)
        self._numbers = itertools.count(1)
        self._sequence = itertools.count(1)
        self._body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 300}]}).encode()

    async def send(self, tenant: str, *, max_tokens: int | None = None) -> Judged:
        """A chat of this tenant."""
        request = builders.preprocess_request(
            request_id=f"{tenant}-{next(self._numbers)}", edge="edge-1", headers={"x-pointsman-tenant": tenant}
        )
        body = self._body
        if max_tokens is not None:
            body = body[:-1] + b',"max_tokens":%d}' % max_tokens
        try:
            reply = await self._client.send_request(request, body, hop_budget_s=self.edge.hop_budget_s)
        except BusError as error:
            return Judged(request.request_id, time.monotonic(), 0, code=type(error).__name__)
        headers = {edit.name: edit.value for edit in reply.answer_headers}
        if isinstance(reply, Rejection):
            return Judged(request.request_id, time.monotonic(), reply.status, headers, reply.code, reply.retry_after_s)
        return Judged(request.request_id, time.monotonic(), 200, headers)

    def complete(self, judged: Judged, usage: Usage | None) -> None:
        """Publish that the request has ended."""
        self.edge.bus.publish(
            ResponseCompleted(
                request_id=judged.request_id,
                source="edge-1",
                sequence=next(self._sequence),
                at_ms=builders.unix_ms(),
                pool=POOL,
                model="m",
                status=judged.status,
                outcome="ok" if judged.status == 200 else "rejected",
                usage=usage,
            ),
            POOL,
        )

    async def begin(self, preprocessors: int) -> None:
        """Connect, and wait until this number of preprocessors take requests."""
        for each in (self.edge, self._picker):
            each.open()
            await each.bus.wait_connected()
            each.serve()
        loop = asyncio.get_running_loop()
        table = self.edge.heartbeat.table
        await eventually(lambda: sum(table.list_instances("preprocessor", loop.time()).values()) == preprocessors)

    async def end(self) -> None:
        """Disconnect."""
        await self.edge.close()
        await self._picker.close()


@asynccontextmanager
async def surroundings(
    url: str, preprocessors: int, hop_budget_s: float = HOP_BUDGET_S
) -> AsyncGenerator[PreprocessorSurroundings]:
    """Connected, around this number of running preprocessors."""
    made = PreprocessorSurroundings(url, hop_budget_s)
    try:
        await made.begin(preprocessors)
        yield made
    finally:
        await made.end()


def _decide(journey: Journey, hop: Hop[Journey]) -> Decision:
    del hop
    return builders.decision(journey.request_id, attempt=journey.attempt, answer_headers=journey.answer_headers)
