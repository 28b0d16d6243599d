"""Where a request goes: as the stages say or, while they can't be asked, as the edge decides alone."""

import asyncio
import itertools
import time
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.reply import STAGE_UNAVAILABLE, Decision, Rejection
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.eligible import Eligible
from pointsman_edge.deciding.engine_load import EngineLoad
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.deciding.requested_model import requested_model
from pointsman_edge.deciding.static_choice import Closed, EngineState, choose
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusCongested, BusDisconnected, NobodyListens, NoReply, PayloadTooLarge
from pointsman_runtime.journey.held_requests import Place
from pointsman_runtime.journey.journey_client import JourneyClient
from pointsman_runtime.journey.pending_request import FIRST_STAGE, Settled
from pointsman_runtime.journey.presence import Nobody

SETTLING_S: Final = 5.0
"""After the bus came back: how long a stage that nobody answers for counts as one that still reconnects. The longest
wait between two tries to reconnect is part of it."""


_EVERY_JOURNEY: Final = (FIRST_STAGE, "profile-picker")


class Missing(NamedTuple):
    """Why the stages can't be asked."""

    reason: str
    alone: bool
    """Whether an edge may decide alone meanwhile."""


class StagesMissing(Exception):
    """The bus or the scheduler is gone; an edge may decide alone."""


class DecisionSource(Protocol):
    """Asks the stages."""

    async def decide(
        self, request: PreprocessRequest, body: bytes, policy: EdgePolicy, traceparent: str | None
    ) -> Settled:
        """What the stages say. Raises StagesMissing, and Refusal when there is no answer."""
        ...


class Stages:
    """The stages on the bus."""

    def __init__(self, bus: Bus, client: JourneyClient) -> None:
        self._bus = bus
        self._client = client

    async def decide(
        self, request: PreprocessRequest, body: bytes, policy: EdgePolicy, traceparent: str | None
    ) -> Settled:
        """As `DecisionSource.decide`."""
        limits = policy.limits
        try:
            reply = await self._client.send(
                request,
                body,
                hop_budget_s=limits.hop_budget,
                timeout_s=limits.decision_timeout,
                traceparent=traceparent,
                gives_up=self._decided_alone if policy.static.closed is None else None,
            )
        except BusDisconnected as error:
            raise StagesMissing(f"bus disconnected: {error.reason}") from error
        except BusCongested as error:
            raise StagesMissing(str(error)) from error
        except PayloadTooLarge as error:
            raise Refusal(
                413,
                f"The request has {error.size} bytes with its headers; the gateway's bus takes {error.limit}.",
                code="body_too_large",
            ) from error
        except NobodyListens as error:
            if (reason := self._bus.missing) is not None:
                raise StagesMissing(reason) from error
            if self._settling():
                raise StagesMissing(f"the bus is back, {error.who} isn't yet") from error
            raise Closed(f"No live instance of {error.who}; try again shortly.", STAGE_UNAVAILABLE) from error
        except NoReply as error:
            if self._settling():
                raise StagesMissing("the bus is back, the stages don't answer yet") from error
            raise Closed(
                "The gateway could not decide in time; try again shortly.",
                "decision_timeout",
                dropped_reason="rejected-deadline-exceeded",
            ) from error
        if isinstance(reply, Rejection) and reply.code == STAGE_UNAVAILABLE:
            if self._without_scheduler(reply):
                raise StagesMissing("no live scheduler")
            if self._settling():
                raise StagesMissing("the bus is back, a stage isn't yet")
        if isinstance(reply, Decision) and reply.level == "full" and (missing := self._bus.missing) is not None:
            # Stages of this process decided; what other processes know didn't reach them.
            return reply.model_copy(update={"level": "degraded", "reasons": (*reply.reasons, missing)})
        return reply

    def missing(self, policy: EdgePolicy) -> Missing | None:
        """What keeps every request from being decided by the stages; None when nothing is known to."""
        if (reason := self._bus.missing) is not None:
            return Missing(reason, alone=True)
        table, now = self._bus.heartbeat.table, asyncio.get_running_loop().time()
        within_s = policy.limits.decision_timeout
        for stage in _EVERY_JOURNEY:
            # While requests are held for a stage that was there a moment ago, they are served, if late.
            if isinstance(table.where(stage, None, now, patient=True), Nobody) and not (
                self._client.waits_for(Place(stage), within_s, now)
            ):
                return Missing(f"no live {stage}", alone=self._settling())
        if policy.config.pools and isinstance(table.where("scheduler", None, now), Nobody):
            if policy.static.closed is not None and self._client.waits_for(Place("scheduler"), within_s, now):
                return None
            return Missing("no live scheduler", alone=True)
        return None

    def _decided_alone(self, stage: str) -> bool:
        """Whether an edge that may decide alone does so while this stage is missing."""
        return stage == "scheduler" or self._settling()

    def _settling(self) -> bool:
        return self._bus.back_for < SETTLING_S

    def _without_scheduler(self, rejection: Rejection) -> bool:
        pool = rejection.target.pool if rejection.target else None
        where = self._bus.heartbeat.table.where("scheduler", pool, asyncio.get_running_loop().time())
        return isinstance(where, Nobody)


class Decider:
    """Falls back from the stages to the edge's own choice."""

    def __init__(self, source: DecisionSource, pools: Mapping[str, PoolSnapshot], load: EngineLoad) -> None:
        self._source = source
        self._pools = pools
        self._load = load
        self._turns = itertools.count()

    async def decide(
        self, request: PreprocessRequest, body: bytes, policy: EdgePolicy, traceparent: str | None
    ) -> Settled:
        """Raises Refusal; Closed when the configuration insists on what is missing."""
        try:
            return await self._source.decide(request, body, policy, traceparent)
        except StagesMissing as missing:
            return self._alone(request, body, policy, str(missing))

    async def ask(self, request: PreprocessRequest, policy: EdgePolicy) -> Settled:
        """What the stages say to a request without a body, which the edge can't answer alone. Raises StagesMissing, and
        Refusal when there is no answer."""
        return await self._source.decide(request, b"", policy, None)

    def _alone(self, request: PreprocessRequest, body: bytes, policy: EdgePolicy, missing: str) -> Decision:
        if policy.static.closed is not None:
            raise Closed(
                "The gateway can't decide at the moment; try again shortly.",
                detail=f"{missing}; not decided alone because {policy.static.closed}",
            )
        model = requested_model(body)
        eligible = Eligible.by(request.headers)
        choice = choose(
            policy.config,
            policy.static,
            self._pools,
            model,
            EngineState(self._load.open_on, self._avoided),
            next(self._turns),
            eligible,
        )
        return Decision(
            request_id=request.request_id,
            revision=policy.revision,
            profile=policy.static.profile,
            model=model,
            target=choice.target,
            endpoints=choice.endpoints,
            body=choice.body,
            level="static",
            reasons=(missing,),
            scheduler="",
        )

    def _avoided(self, worker: str) -> bool:
        return self._load.avoided(worker, time.monotonic())
