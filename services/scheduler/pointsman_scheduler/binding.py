"""Binds requests to engines: chooses for each as it comes, or keeps its journey until the pool binds it, and makes the
decision that its edge gets."""

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import FIELDS_LIMIT, Journey, RequestFacts, Target
from pointsman_contracts.reply import Decision, Parked, Rejection, TokenIds
from pointsman_contracts.service_level import ServicePromise
from pointsman_contracts.session import RequestSession
from pointsman_core.refusal import Refusal
from pointsman_core.service_level import promise_of
from pointsman_hosting.configuration import Configuration, Revision
from pointsman_journey.hop import Hop
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.announcer import DecisionPublisher
from pointsman_scheduler.domain.flow_control import Drop, Unserved
from pointsman_scheduler.domain.late_binding import TELL_AGAIN_MS, Because, Bound
from pointsman_scheduler.domain.lateness import refuse_late
from pointsman_scheduler.domain.outcome import Postponed, Refused, Scheduled
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.foreseen_times import in_time_left, time_in_stages
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.waiting_room import PoolTimers, finish_waiting

PARKED: Final = "it waits for the engine that suits it best"
_ENDPOINT: Final = attrgetter("endpoint")
_STREAMS_OF_CHOICES: Final = frozenset({"chat.completions", "completions"})
_HASHES: Final = np.dtype("<u8")


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
        self,
        journey: Journey,
        hop: Hop[Journey],
        queued_s: float,
        bound: Bound | None = None,
        unserved: Unserved | None = None,
    ) -> Decision | Rejection | Postponed:
        """Choose endpoints for a request that has waited `queued_s` seconds in flow control, `unserved` of them for any
        endpoint. `bound` is set for a request that has since waited for its engine; it doesn't wait again."""
        revision = self._configuration.revisions[journey.revision]
        target = journey.target
        name = "" if target is None else target.pool or ""
        policy = revision.compiled.get(name)
        if target is None or policy is None:
            return hop.refuse(no_pool(journey, revision))
        if bound is not None and bound.because is Because.LATE:
            facts, passed_ms = journey.request, time_in_stages(journey) + queued_s * 1000.0
            self._metrics.late.labels(name, facts.slo_class, "refused").inc()
            return hop.refuse(refuse_late(facts, passed_ms + bound.predicted_ms))
        if bound is not None and bound.because is Because.EXPIRED:
            self._metrics.of(name).count_drop(Drop.EXPIRED.name.lower())
            return hop.refuse(Drop.EXPIRED.build_refusal(policy.flow_control.settings.ttl))
        began = time.perf_counter()
        pool = self._pools.of(name)
        if journey.request.block_tokens != pool.block_tokens and journey.request.blocks:
            journey = fitting(journey, pool.block_tokens)
        request = schedule_request(journey, target, queued_s) if bound is None else bound.request
        outcome = pool.decide(request, time.monotonic(), seed_of(journey.request_id), policy)
        took_s = time.perf_counter() - began
        metrics = self._metrics.of(name)
        metrics.took(took_s)
        if not isinstance(outcome, Scheduled):
            if isinstance(outcome, Refused):
                metrics.count_refusal(outcome.refusal.code or "refused")
                return hop.refuse(outcome.refusal)
            return outcome
        (metrics.held if outcome.held else metrics.decided).total += 1
        if queued_s:
            metrics.queued(queued_s)
        self._announcer.record_decision(
            journey=journey,
            target=target,
            policy=policy,
            revision=revision.number,
            outcome=outcome,
            took_s=took_s,
            queued_s=queued_s,
            hop=hop,
            bound=bound,
            unserved=unserved,
        )
        if bound is not None:
            metrics.count_late_binding(bound.because, bound.waited_ms / 1000)
            queued_s += bound.waited_ms / 1000
        return self._decision(
            journey=journey, target=target, revision=revision.number, pool=pool, outcome=outcome, queued_s=queued_s
        )

    def _decision(
        self,
        journey: Journey,
        target: Target,
        revision: int,
        pool: PoolScheduler,
        outcome: Scheduled,
        queued_s: float,
    ) -> Decision:
        request, degraded = journey.request, outcome.reasons
        promise: ServicePromise | None = None
        if request.slo_ttft_ms is not None or request.slo_itl_ms is not None:
            promise = promise_of(
                request, _predicted_ms(journey, pool, outcome, queued_s), _predicted_itl_ms(request, pool, outcome)
            )
            if promise is not None and _is_late(promise):
                self._metrics.late.labels(pool.pool, promise.service_class, "served").inc()
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
            identity=Identity.from_attributes(request.attributes) if request.attributes else None,
            prompt_tokens=request.prompt_tokens,
            answers=request.answers,
            token_ids=token_ids_of(request),
            first_byte_within_ms=_within_ms(pool, outcome) if len(outcome.endpoints) > 1 else None,
            prefill=outcome.selection.prefill,
            cascade=journey.cascade,
            session=None if request.session is None else RequestSession.from_facts(request.session, request.attributes),
            promise=promise,
        )


Choose = Callable[[Journey, Hop[Journey], float, Bound | None, Unserved | None], Decision | Rejection | Postponed]
"""Decides one request; see `Chooser.decide`."""


class _Kept(NamedTuple):
    journey: Journey
    hop: Hop[Journey]
    queued_s: float
    """Seconds that it waited in flow control."""
    unserved: Unserved | None
    pool: str


class Binding:
    """`decide` is called for each request that flow control lets pass."""

    def __init__(
        self,
        pools: Pools,
        choose: Choose,
        announcer: DecisionPublisher,
        stop_requests: Callable[[str, list[Hold]], None],
    ) -> None:
        """`stop_requests`: asks the edges to send these requests of a pool into the stages again."""
        self._stop_requests: Final = stop_requests
        self._pools: Final = pools
        self._choose: Final = choose
        self._announcer: Final = announcer
        self.kept: Final[dict[RequestKey, _Kept]] = {}
        """The requests that wait, in the order in which they came. The caller only reads it."""
        self._timers: Final = PoolTimers(self._wake)
        self._told: dict[str, float] = {}
        """Pool → when its waiting requests were last published after a look."""

    def decide(
        self, journey: Journey, hop: Hop[Journey], queued_s: float, unserved: Unserved | None = None
    ) -> Decision | Rejection | Parked:
        """Choose now, or let the request wait until its engine takes it up."""
        if self.kept and (key := (journey.edge, journey.request_id)) in self.kept:
            self.forget(key)  # sent again: only the later journey is answered
        outcome = self._choose(journey, hop, queued_s, None, unserved)
        if not isinstance(outcome, Postponed):
            return outcome
        pool = journey.target.pool if journey.target is not None else None
        self.kept[journey.edge, journey.request_id] = _Kept(journey, hop, queued_s, unserved, pool or "")
        self._announcer.record_waiting(pool or "")
        self.stirred(self._pools.of(pool or ""))
        return hop.park(PARKED)

    def stirred(self, pool: PoolScheduler) -> None:
        """Look at the pool in the next turn of the event loop: something happened that may let a request go."""
        self._timers.wake_after(pool.pool, 0.0)

    def forget(self, request: RequestKey) -> None:
        """Drop a request that waits."""
        kept = self.kept.pop(request)
        if self._pools.of(kept.pool).binder.cancel(request):
            self._announcer.record_waiting(kept.pool)

    def edge_gone(self, edge: str) -> None:
        """An edge died, and its clients' connections with it."""
        for request in [request for request in self.kept if request[0] == edge]:
            self.forget(request)

    def close(self) -> None:
        """Send every waiting request to the engine that is best now: flow control has already let it pass."""
        self._timers.cancel_all()
        for key, kept in list(self.kept.items()):
            bound = self._pools.of(kept.pool).binder.leave_now(key, time.monotonic() * 1000.0)
            del self.kept[key]
            if bound is not None:
                self._go_on(kept, bound)

    def _wake(self, name: str) -> None:
        pool = self._pools.of(name)
        binder = pool.binder
        before = binder.version
        for bound in pool.bind(time.monotonic()):
            kept = self.kept.pop(bound.request.key, None)
            if kept is not None:
                self._go_on(kept, bound)
        now = time.monotonic()
        if binder.version != before or (len(binder) and now - self._told.get(pool.pool, 0.0) >= TELL_AGAIN_MS / 1000.0):
            self._told[pool.pool] = now
            self._announcer.record_waiting(pool.pool)
        if binder.background.running:
            stopped = pool.find_stopped(now)
            if stopped:
                self._stop_requests(name, stopped)
        at = pool.look_at(now)
        if at is not None:
            self._timers.wake_after(name, at - now)

    def _go_on(self, kept: _Kept, bound: Bound) -> None:
        journey, hop = kept.journey, kept.hop
        finish_waiting(journey, hop, lambda: self._choose(journey, hop, kept.queued_s, bound, kept.unserved))


def fitting(journey: Journey, block_tokens: int) -> Journey:
    """The journey with blocks of the pool's size. Its blocks have another size after a stage that didn't know the pool,
    a fallback to another pool, or a change of the configuration. Such blocks would match nothing."""
    request = journey.request
    reason = f"prefix not known: hashed in blocks of {request.block_tokens} tokens, the pool has {block_tokens}"
    facts = request.in_blocks_of(block_tokens)
    return journey.changed(request=facts, level="degraded", reasons=(*journey.reasons, reason))


def schedule_request(journey: Journey, target: Target, queued_s: float) -> ScheduleRequest:
    """The question to the target's pool, for a request that waited this long in flow control."""
    facts = in_time_left(journey, queued_s)
    return ScheduleRequest(
        request_id=journey.request_id,
        facts=facts,
        model=target.model,
        lora=target.lora,
        blocks=np.frombuffer(facts.blocks, _HASHES),
        edge=journey.edge,
        attempt=journey.attempt,
        queued_s=queued_s,
    )


def _predicted_ms(journey: Journey, pool: PoolScheduler, outcome: Scheduled, queued_s: float) -> float | None:
    """From receiving the request to its first token; None while the pool's times aren't known well enough."""
    hold, forecast = outcome.holds[0] if outcome.holds else None, pool.outliers.patience.forecast
    if hold is not None and hold.predicted_ms and forecast is not None and forecast.best.model.was_trusted:
        return round(time_in_stages(journey) + queued_s * 1000.0 + hold.predicted_ms, 1)
    return None


def _is_late(promise: ServicePromise) -> bool:
    predicted, promised = (promise.predicted_ttft_ms, promise.predicted_itl_ms), (promise.ttft_ms, promise.itl_ms)
    return any((ms or 0.0) > (most or math.inf) for ms, most in zip(predicted, promised, strict=True))


def _predicted_itl_ms(request: RequestFacts, pool: PoolScheduler, outcome: Scheduled) -> float | None:
    """Between two tokens of the answer, at the engine that has it on its books; None without a promised time, and while
    the pool's times aren't known well enough."""
    hold, forecast = outcome.holds[0] if outcome.holds else None, pool.outliers.patience.forecast
    if request.slo_itl_ms is None or hold is None or forecast is None:
        return None
    if not (forecast.best.model.was_trusted and forecast.best.model.knows_decode):
        return None
    return round(forecast.predict_token_ms(hold.worker.life, time.monotonic() * 1000.0), 1)


def token_ids_of(request: RequestFacts) -> TokenIds | None:
    """`Decision.token_ids`."""
    if not request.stream or request.api not in _STREAMS_OF_CHOICES:
        return "never"
    fields = request.fields
    if "return_token_ids" in fields:
        return "asked"
    if "echo" in fields:
        # vLLM leaves the prompt's text out of an answer with token ids.
        return "never" if fields["echo"] else "unasked"
    return None if len(fields) >= FIELDS_LIMIT else "unasked"


def _within_ms(pool: PoolScheduler, outcome: Scheduled) -> float | None:
    hold = outcome.holds[0] if outcome.holds else None
    # Envoy can't send a stream elsewhere that has no first byte yet, and frontends are told when to move a request.
    return None if hold is None or hold.change.leg or hold.change.streamed else pool.outliers.within_ms(hold)


def seed_of(request_id: str) -> int:
    """The seed of a request: 48 bits, which every JSON reader keeps exactly. A request that is sent again has the same
    seed."""
    return int.from_bytes(hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=6).digest(), "big")


def no_pool(journey: Journey, revision: Revision[Mapping[str, Policy]]) -> Refusal:
    """The refusal of a request whose pool this revision lacks."""
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
