"""Decides where a request goes: asks the stages on the bus, and decides alone while they can't be asked."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from pointsman_contracts.batch import LENT_AUTHORIZATION
from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.reply import STAGE_UNAVAILABLE, Decision, Rejection
from pointsman_core.given_worker import WORKER, given_worker
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.deciding.requested_model import asked_model
from pointsman_edge.deciding.static_choice import Closed, Eligible, EngineState, choose
from pointsman_journey.held_requests import MissingStage
from pointsman_journey.journey_client import FIRST_STAGE, JourneyClient, Settled
from pointsman_journey.journeys import Journeys
from pointsman_journey.presence import NoInstance
from pointsman_runtime.bus.errors import BusCongested, BusDisconnected, BusError, NoListener, NoReply

RECONNECTING_S: Final = 5.0
"""Seconds after the bus came back in which a stage without a live instance is assumed to reconnect. They include the
longest wait between two tries to reconnect."""
_ON_EVERY_JOURNEY: Final = (FIRST_STAGE, "profile-picker")
ELSEWHERE: Final = frozenset({"unknown_worker", "no_endpoints", "saturated"})
"""Codes of rejections after which a request that was meant for the edge's own worker goes to another one."""

AVOIDED_S: Final = 5.0
"""An engine that failed is the last choice for this long."""
_REMEMBERED: Final = 4096

Decide = Callable[[PreprocessRequest, bytes, EdgePolicy, str | None], Coroutine[object, object, Settled]]


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
        """Send a request into the stages and wait for their reply."""
        limits = policy.limits
        return self._client.send_request(
            request,
            body,
            hop_budget_s=limits.hop_budget,
            timeout_s=limits.decision_timeout,
            silent_s=limits.silent_wait,
            traceparent=traceparent,
            gives_up=self._decided_alone if policy.static.closed is None else None,
        )

    def usable(self, reply: Settled) -> Settled:
        """The reply, with its level as an edge sees it."""
        if isinstance(reply, Decision):
            missing = None if self._bus.up else self._bus.missing
            if missing is not None and reply.level == "full":
                # Stages of this process decided, without the state that other processes publish.
                return replace(reply, level="degraded", reasons=(*reply.reasons, missing))
        elif isinstance(reply, Rejection) and reply.code == STAGE_UNAVAILABLE:
            # The stage that rejected it may know less than this edge, e.g. not yet a scheduler that has just started.
            if reply.missing == "scheduler" or not self._scheduler_lives(reply.target.pool if reply.target else None):
                raise StagesMissing("no live scheduler")
            if self._reconnecting():
                raise StagesMissing("the bus is back, a stage isn't yet")
        return reply

    def explained(self, error: BusError) -> StagesMissing | Refusal:
        """Why there is no reply: StagesMissing if an edge may decide alone, else the error for the client."""
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

    def find_unusable_stages(self, policy: EdgePolicy) -> UnusableStages | None:
        """Why no request can be decided by the stages at the moment; None if some can."""
        if (reason := self._bus.missing) is not None:
            return UnusableStages(reason, alone=True)
        table, now = self._peers, asyncio.get_running_loop().time()
        for stage in _ON_EVERY_JOURNEY:
            # Requests that are held for a stage which lived a moment ago are still served, only later.
            if isinstance(table.find_route(stage, None, now, patient=True), NoInstance) and not self._held_for(
                stage, policy, now
            ):
                return UnusableStages(f"no live {stage}", alone=self._reconnecting())
        if policy.config.pools and not self._scheduler_lives(None):
            if policy.static.closed is not None and self._held_for("scheduler", policy, now):
                return None
            return UnusableStages("no live scheduler", alone=True)
        return None

    def _held_for(self, stage: str, policy: EdgePolicy, now: float) -> bool:
        limits = policy.limits
        return self._client.hold_time_left(MissingStage(stage), limits.silent_wait, limits.decision_timeout, now) > 0

    def _decided_alone(self, stage: str) -> bool:
        """Whether an edge that may decide alone does so while this stage is missing."""
        return stage == "scheduler" or self._reconnecting()

    def _reconnecting(self) -> bool:
        return self._bus.back_for < RECONNECTING_S

    def _scheduler_lives(self, pool: str | None) -> bool:
        where = self._peers.find_route("scheduler", pool, asyncio.get_running_loop().time())
        return not isinstance(where, NoInstance)


class EngineLoad:
    """This edge's own view of engines: its open attempts, and the engines that failed lately. By worker; time is in
    seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._failed: dict[str, float] = {}

    def begin_attempt(self, worker: str) -> None:
        self._open[worker] = self._open.get(worker, 0) + 1

    def end_attempt(self, worker: str) -> None:
        left = self._open[worker] - 1
        if left:
            self._open[worker] = left
        else:
            del self._open[worker]

    def record_failure(self, worker: str, now: float) -> bool:
        """Record a failure. Returns whether it is the first one lately."""
        first = not self.is_avoided(worker, now)
        if len(self._failed) >= _REMEMBERED:
            self._failed = {name: at for name, at in self._failed.items() if now - at < AVOIDED_S}
        self._failed[worker] = now
        return first

    def open_on(self, worker: str) -> int:
        """Open attempts at this worker."""
        return self._open.get(worker, 0)

    def is_avoided(self, worker: str, now: float) -> bool:
        """Whether it failed lately."""
        at = self._failed.get(worker)
        return at is not None and now - at < AVOIDED_S


class Decider:
    """Asks the stages. An edge beside one worker (S1-29, S1-33) prefers that one."""

    def __init__(
        self, stages: Stages, pools: Mapping[str, PoolSnapshot], load: EngineLoad, own_worker: str | None = None
    ) -> None:
        """`own_worker`: the worker beside this edge; None: every request goes where the stages decide."""
        self._stages = stages
        self._pools = pools
        self._load = load
        self.decide: Final[Decide] = self._decide if own_worker is None else partial(self._decide_beside, own_worker)
        """The reply of the stages, or the edge's own decision at level `static` while they are missing.

        Raises Refusal: Closed if the configuration insists on a part that is missing.
        """
        self._turns = itertools.count()
        self.sent_elsewhere = 0
        """Requests that the edge's own worker couldn't take."""

    async def ask(self, request: PreprocessRequest, policy: EdgePolicy, body: bytes = b"") -> Settled:
        """The reply of the stages to a request that an edge can't answer alone.

        Raises StagesMissing, and Refusal if there is no reply.
        """
        try:
            return self._stages.usable(await self._stages.ask(request, body, policy, None))
        except BusError as error:
            raise self._stages.explained(error) from error

    async def _decide_beside(
        self, worker: str, request: PreprocessRequest, body: bytes, policy: EdgePolicy, traceparent: str | None
    ) -> Settled:
        if given_worker(request.headers) is not None:
            return await self._decide(request, body, policy, traceparent)
        here = request.changed(headers={**request.headers, WORKER[0]: worker})
        try:
            reply = await self._decide(here, body, policy, traceparent)
        except Closed:
            reply = None
        if reply is not None and not (isinstance(reply, Rejection) and reply.code in ELSEWHERE):
            return reply
        self.sent_elsewhere += 1
        return await self._decide(request, body, policy, traceparent)

    async def _decide(
        self, request: PreprocessRequest, body: bytes, policy: EdgePolicy, traceparent: str | None
    ) -> Settled:
        stages = self._stages
        try:
            return stages.usable(await stages.ask(request, body, policy, traceparent))
        except StagesMissing as missing:
            return self._alone(request, body, policy, str(missing))
        except BusError as error:
            failure = stages.explained(error)
            if isinstance(failure, StagesMissing):
                return self._alone(request, body, policy, str(failure))
            raise failure from error

    def _alone(self, request: PreprocessRequest, body: bytes, policy: EdgePolicy, missing: str) -> Decision:
        closed = policy.static.closed
        if request.headers.get("authorization", "").startswith(LENT_AUTHORIZATION):
            closed = "only stages know the identity that is lent to a request of a batch"
        if closed is not None:
            raise Closed(
                "The gateway can't decide at the moment; try again shortly.",
                detail=f"{missing}; the edge may not decide alone because {closed}",
            )
        model = asked_model(policy.config, request, body)
        choice = choose(
            config=policy.config,
            policy=policy.static,
            pools=self._pools,
            model=model,
            engines=EngineState(self._load.open_on, self._avoided),
            turn=next(self._turns),
            eligible=Eligible.from_headers(request.headers),
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
        return self._load.is_avoided(worker, time.monotonic())


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
