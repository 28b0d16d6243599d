"""Decides where a request goes: asks the stages, and decides alone while they can't be asked."""

import itertools
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final

from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.reply import Decision, Rejection
from pointsman_core.given_worker import WORKER, given_worker
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.deciding.requested_model import asked_model
from pointsman_edge.deciding.stages import Stages, StagesMissing
from pointsman_edge.deciding.static_choice import Closed, Eligible, EngineState, choose
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.journey.journey_client import Settled

ELSEWHERE: Final = frozenset({"unknown_worker", "no_endpoints", "saturated"})
"""Codes of rejections after which a request that was meant for the edge's own worker goes to another one."""

AVOIDED_S: Final = 5.0
"""An engine that failed is the last choice for this long."""
_REMEMBERED: Final = 4096

Decide = Callable[[PreprocessRequest, bytes, EdgePolicy, str | None], Coroutine[object, object, Settled]]


class EngineLoad:
    """This edge's own view of engines: its open attempts, and the engines that failed lately. By worker; time is in
    seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._failed: dict[str, float] = {}

    def began(self, worker: str) -> None:
        """An attempt begins."""
        self._open[worker] = self._open.get(worker, 0) + 1

    def ended(self, worker: str) -> None:
        """The attempt has ended."""
        left = self._open[worker] - 1
        if left:
            self._open[worker] = left
        else:
            del self._open[worker]

    def failed(self, worker: str, now: float) -> bool:
        """Record a failure. Returns whether it is the first one lately."""
        first = not self.avoided(worker, now)
        if len(self._failed) >= _REMEMBERED:
            self._failed = {name: at for name, at in self._failed.items() if now - at < AVOIDED_S}
        self._failed[worker] = now
        return first

    def open_on(self, worker: str) -> int:
        """Open attempts at this worker."""
        return self._open.get(worker, 0)

    def avoided(self, worker: str, now: float) -> bool:
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

    async def ask(self, request: PreprocessRequest, policy: EdgePolicy) -> Settled:
        """The reply of the stages to a request without a body, which an edge can't answer alone.

        Raises StagesMissing, and Refusal if there is no reply.
        """
        try:
            return self._stages.usable(await self._stages.ask(request, b"", policy, None))
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
        if policy.static.closed is not None:
            raise Closed(
                "The gateway can't decide at the moment; try again shortly.",
                detail=f"{missing}; the edge may not decide alone because {policy.static.closed}",
            )
        model = asked_model(policy.config, request, body)
        choice = choose(
            policy.config,
            policy.static,
            self._pools,
            model,
            EngineState(self._load.open_on, self._avoided),
            next(self._turns),
            Eligible.by(request.headers),
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
