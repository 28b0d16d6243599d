"""The stages on the bus, as an edge asks them for a decision."""

import asyncio
from collections.abc import Awaitable
from typing import Final, NamedTuple, Protocol

from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.reply import STAGE_UNAVAILABLE, Decision, Rejection
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.deciding.static_choice import Closed
from pointsman_runtime.bus.errors import (
    BusCongested,
    BusDisconnected,
    BusError,
    NoListener,
    NoReply,
)
from pointsman_runtime.journey.held_requests import MissingStage
from pointsman_runtime.journey.journey_client import FIRST_STAGE, JourneyClient, Settled
from pointsman_runtime.journey.journeys import Journeys
from pointsman_runtime.journey.presence import NoInstance

RECONNECTING_S: Final = 5.0
"""Seconds after the bus came back in which a stage without a live instance is assumed to reconnect. They include the
longest wait between two tries to reconnect."""
_ON_EVERY_JOURNEY: Final = (FIRST_STAGE, "profile-picker")


class UnusableStages(NamedTuple):
    """Why the stages can't be asked."""

    reason: str
    alone: bool
    """Whether an edge may decide alone meanwhile."""


class StagesMissing(Exception):
    """The stages can't decide, and an edge may decide alone. The text is the reason."""


class Stages(Protocol):
    """Asks the stages."""

    def ask(
        self, request: PreprocessRequest, body: bytes, policy: EdgePolicy, traceparent: str | None
    ) -> Awaitable[Settled]:
        """Send a request into the stages and wait for their reply. Raises BusError and StagesMissing."""
        ...

    def usable(self, reply: Settled) -> Settled:
        """The reply, with its level as an edge sees it. Raises StagesMissing for one that says that a stage is
        missing without which an edge may decide alone."""
        ...

    def explained(self, error: BusError) -> StagesMissing | Refusal:
        """Why there is no reply: StagesMissing if an edge may decide alone, else the error for the client."""
        ...


class BusStages:
    """The stages on one bus."""

    def __init__(self, journeys: Journeys, client: JourneyClient) -> None:
        self._bus = journeys.bus
        self._peers = journeys.heartbeat.table
        self._client = client

    def ask(
        self, request: PreprocessRequest, body: bytes, policy: EdgePolicy, traceparent: str | None
    ) -> Awaitable[Settled]:
        """As `Stages.ask`."""
        limits = policy.limits
        return self._client.send(
            request,
            body,
            hop_budget_s=limits.hop_budget,
            timeout_s=limits.decision_timeout,
            traceparent=traceparent,
            gives_up=self._decided_alone if policy.static.closed is None else None,
        )

    def usable(self, reply: Settled) -> Settled:
        """As `Stages.usable`."""
        if isinstance(reply, Decision):
            missing = None if self._bus.up else self._bus.missing
            if missing is not None and reply.level == "full":
                # Stages of this process decided, without the state that other processes publish.
                return reply.model_copy(update={"level": "degraded", "reasons": (*reply.reasons, missing)})
        elif isinstance(reply, Rejection) and reply.code == STAGE_UNAVAILABLE:
            if not self._scheduler_lives(reply.target.pool if reply.target else None):
                raise StagesMissing("no live scheduler")
            if self._reconnecting():
                raise StagesMissing("the bus is back, a stage isn't yet")
        return reply

    def explained(self, error: BusError) -> StagesMissing | Refusal:
        """As `Stages.explained`."""
        if isinstance(error, BusDisconnected):
            return StagesMissing(f"bus disconnected: {error.reason}")
        if isinstance(error, BusCongested):
            return StagesMissing(str(error))
        if isinstance(error, NoListener):
            if (reason := self._bus.missing) is not None:
                return StagesMissing(reason)
            if self._reconnecting():
                return StagesMissing(f"the bus is back, {error.who} isn't yet")
            return Closed(f"No live instance of {error.who}; try again shortly.", STAGE_UNAVAILABLE)
        if isinstance(error, NoReply):
            if self._reconnecting():
                return StagesMissing("the bus is back, the stages don't answer yet")
            return Closed(
                "The gateway could not decide in time; try again shortly.",
                "decision_timeout",
                dropped_reason="rejected-deadline-exceeded",
            )
        raise error

    def missing(self, policy: EdgePolicy) -> UnusableStages | None:
        """Why no request can be decided by the stages at the moment; None if some can."""
        if (reason := self._bus.missing) is not None:
            return UnusableStages(reason, alone=True)
        table, now = self._peers, asyncio.get_running_loop().time()
        within_s = policy.limits.decision_timeout
        for stage in _ON_EVERY_JOURNEY:
            # Requests that are held for a stage which lived a moment ago are still served, only later.
            if isinstance(table.where(stage, None, now, patient=True), NoInstance) and not (
                self._client.waits_for(MissingStage(stage), within_s, now)
            ):
                return UnusableStages(f"no live {stage}", alone=self._reconnecting())
        if policy.config.pools and not self._scheduler_lives(None):
            if policy.static.closed is not None and self._client.waits_for(MissingStage("scheduler"), within_s, now):
                return None
            return UnusableStages("no live scheduler", alone=True)
        return None

    def _decided_alone(self, stage: str) -> bool:
        """Whether an edge that may decide alone does so while this stage is missing."""
        return stage == "scheduler" or self._reconnecting()

    def _reconnecting(self) -> bool:
        return self._bus.back_for < RECONNECTING_S

    def _scheduler_lives(self, pool: str | None) -> bool:
        where = self._peers.where("scheduler", pool, asyncio.get_running_loop().time())
        return not isinstance(where, NoInstance)


def refusal_of(rejection: Rejection) -> Refusal:
    """The rejection as an error for the client. A status that isn't an error's becomes 500; without a reason for its
    header, the header names the stage."""
    reason = "rejected-unavailable" if rejection.code == STAGE_UNAVAILABLE else f"rejected-by-{rejection.stage}"
    return Refusal(
        rejection.status if 400 <= rejection.status <= 599 else 500,
        rejection.message,
        type=rejection.type,
        code=rejection.code,
        param=rejection.param,
        retry_after_s=rejection.retry_after_s,
        dropped_reason=rejection.dropped_reason or reason,
    )
