"""From a journey to the decision that its edge gets."""

import hashlib
import time
from collections.abc import Mapping
from operator import attrgetter
from typing import Final

import numpy as np

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import Journey, Target
from pointsman_contracts.reply import Decision, Rejection
from pointsman_core.refusal import Refusal
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_runtime.journey.hop import Hop
from pointsman_runtime.service.configuration import Configuration, Revision
from pointsman_scheduler.announcer import DecisionPublisher
from pointsman_scheduler.domain.late_binding import Bound
from pointsman_scheduler.domain.outcome import Postponed, Refused, Scheduled
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.metrics import SchedulerMetrics

_ENDPOINT: Final = attrgetter("endpoint")
_HASHES: Final = np.dtype("<u8")
# Each reads its facts in one call, in the order of `ScheduleRequest`'s fields.
_OF_THE_PROMPT: Final = attrgetter("prompt_tokens", "tokens_exact", "max_output_tokens", "stream")
_OTHERS: Final = attrgetter(
    "block_tokens", "blocks_precise", "headers", "session", "priority", "fairness_id", "body_bytes", "slo_ttft_ms",
    "slo_itl_ms", "subset", "workers", "features",
)  # fmt: skip


class Chooser:
    """Decides by the configuration revision that each request started with."""

    def __init__(
        self,
        configuration: Configuration[Mapping[str, Policy]],
        pools: Pools,
        announcer: DecisionPublisher,
        metrics: SchedulerMetrics,
    ) -> None:
        self._configuration: Final = configuration
        self._pools: Final = pools
        self._announcer: Final = announcer
        self._metrics: Final = metrics

    def decide(
        self, journey: Journey, hop: Hop[Journey], queued_s: float, bound: Bound | None = None
    ) -> Decision | Rejection | Postponed:
        """Choose endpoints for a request that has waited `queued_s` seconds in flow control. `bound` is set for a
        request that has since waited for its engine; it doesn't wait again."""
        revision = self._configuration.revisions[journey.revision]
        target = journey.target
        name = "" if target is None else target.pool or ""
        policy = revision.compiled.get(name)
        if target is None or policy is None:
            return hop.refuse(_no_pool(journey, revision))
        began = time.perf_counter()
        pool = self._pools.of(name)
        if journey.request.block_tokens != pool.block_tokens and journey.request.blocks:
            journey = _fitting(journey, pool.block_tokens)
        request = _request(journey, target, queued_s) if bound is None else bound.request
        outcome = pool.decide(request, time.monotonic(), _seed(journey.request_id), policy)
        took_s = time.perf_counter() - began
        metrics = self._metrics.of(name)
        metrics.took(took_s)
        if not isinstance(outcome, Scheduled):
            if isinstance(outcome, Refused):
                metrics.refused(outcome.refusal.code or "refused")
                return hop.refuse(outcome.refusal)
            return outcome
        (metrics.held if outcome.held else metrics.decided).total += 1
        if queued_s:
            metrics.queued(queued_s)
        self._announcer.scheduled(journey, target, policy, revision.number, outcome, took_s, queued_s, hop, bound)
        if bound is not None:
            metrics.bound(bound.because, bound.waited_ms / 1000)
            queued_s += bound.waited_ms / 1000
        return self._decision(journey, target, revision.number, outcome, queued_s)

    def _decision(
        self, journey: Journey, target: Target, revision: int, outcome: Scheduled, queued_s: float
    ) -> Decision:
        request, degraded = journey.request, bool(outcome.reasons)
        return Decision(
            request_id=journey.request_id,
            attempt=journey.attempt,
            revision=revision,
            profile=journey.profile or "",
            model=journey.model,
            target=target,
            endpoints=tuple(map(_ENDPOINT, outcome.endpoints)),
            alternatives=journey.alternatives,
            headers=(*journey.headers, *outcome.headers),
            body=journey.body,
            answer_headers=journey.answer_headers,
            response=journey.response,
            level="degraded" if degraded else journey.level,
            reasons=(*journey.reasons, *outcome.reasons) if degraded else journey.reasons,
            scheduler=self._announcer.instance,
            queued_ms=round(queued_s * 1000, 1) if queued_s else 0.0,
            identity=Identity.of(request.attributes) if request.attributes else None,
            prompt_tokens=request.prompt_tokens,
            answers=request.answers,
        )


def _fitting(journey: Journey, block_tokens: int) -> Journey:
    """The journey with blocks of the pool's size. Its blocks have another size after a stage that didn't know the pool,
    a fallback to another pool, or a change of the configuration. Such blocks would match nothing."""
    request = journey.request
    reason = f"prefix not known: hashed in blocks of {request.block_tokens} tokens, the pool has {block_tokens}"
    facts = request.in_blocks_of(block_tokens)
    return journey.changed(request=facts, level="degraded", reasons=(*journey.reasons, reason))


def _request(journey: Journey, target: Target, queued_s: float) -> ScheduleRequest:
    facts = journey.request
    return ScheduleRequest(
        journey.request_id,
        target.model,
        target.lora,
        *_OF_THE_PROMPT(facts),
        np.frombuffer(facts.blocks, _HASHES),
        *_OTHERS(facts),
        edge=journey.edge,
        attempt=journey.attempt,
        queued_s=queued_s,
    )


def _seed(request_id: str) -> int:
    """The seed of a request: 48 bits, which every JSON reader keeps exactly. A request that is sent again has the same
    seed."""
    return int.from_bytes(hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=6).digest(), "big")


def _no_pool(journey: Journey, revision: Revision[Mapping[str, Policy]]) -> Refusal:
    target = journey.target
    if target is None or target.pool is None:
        return Refusal(
            500,
            f"The profile sends {journey.model!r} to the scheduler, but no pool serves it.",
            type="server_error",
            code="itinerary_invalid",
        )
    known = ", ".join(sorted(revision.compiled)) or "none"
    return Refusal(
        404,
        f"The model {journey.model!r} is served by the pool {target.pool!r}, which doesn't exist; pools: {known}.",
        code="model_not_found",
        param="model",
    )
