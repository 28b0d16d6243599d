"""Has other engines continue a stream whose engine broke off. `domain.resuming` decides what they are asked, and joins
what they answer."""

import time
from collections.abc import Awaitable
from functools import partial
from typing import Final, Protocol

from pointsman_contracts.reply import ChosenEndpoint, Decision
from pointsman_contracts.response import Seam
from pointsman_core.config import Config
from pointsman_edge.edge import Edge
from pointsman_edge.sending.moving_on import DRAINED, failed_workers
from pointsman_edge.sending.retry_budget import RetryBudget
from pointsman_edge.sending.unasked_usage import Rewriting
from pointsman_frontend.adapters.attempt_reports import AttemptReports
from pointsman_frontend.adapters.engine_call import engine_call
from pointsman_frontend.adapters.engine_client import EngineClient
from pointsman_frontend.adapters.engine_connection import AnswerCutOff, EndpointFailed
from pointsman_frontend.adapters.outgoing import Outgoing
from pointsman_frontend.adapters.relay import end_cut_off
from pointsman_frontend.adapters.rest_connections import RestConnections, longest_sequence
from pointsman_frontend.adapters.rest_of_stream import CUT_OFF, RestOfStream, learn_tokens
from pointsman_frontend.domain.resuming.question import CantContinue, Question
from pointsman_frontend.domain.resuming.resumable import resuming_of, token_ids_of
from pointsman_frontend.domain.resuming.resuming import Resuming
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.telemetry import NO_SPAN

NO_ENGINE: Final = "no_engine"
"""Reason of streams that no further engine was left for."""
_NEVER: Final = "never"
_KNOWN_S: Final = 60.0
"""An engine that starts anew may have another longest sequence."""

_log = Log("engines")


class StreamBroken(EndpointFailed):
    """A stream broke off that another engine may continue. `rewriting`: changes its events."""

    def __init__(self, cut: AnswerCutOff, rewriting: Rewriting | None) -> None:
        super().__init__(DRAINED if cut.outcome == DRAINED else CUT_OFF, str(cut), 200)
        self.cut: Final = cut
        self.rewriting: Final = rewriting
        self.at: Final = time.monotonic()


class DecideAgain(Protocol):
    """Gives an endpoint of a new decision; `free`: the request leaves a drained engine."""

    def __call__(self, *, free: bool) -> Awaitable[ChosenEndpoint | None]: ...


class ResumedStreams:
    """Those of one edge."""

    def __init__(self, edge: Edge, engines: EngineClient, reports: AttemptReports) -> None:
        self._edge = edge
        self._engines = engines
        self._reports = reports
        self._longest: dict[str, tuple[int, float]] = {}
        """The longest sequence of each engine in tokens and when it was asked, monotonic, by URL."""

    def prepare_resuming(self, request: Outgoing, endpoint: ChosenEndpoint) -> Resuming | None:
        """For a request that is about to be sent to an engine; None where its stream can't be continued."""
        record, decision = request.record, request.decision
        profile = record.policy.config.profiles.get(decision.profile)
        if profile is None or profile.resume == "off" or not profile.resume_attempts:
            return None
        exact = profile.resume == "exact"
        if (exact and decision.token_ids == _NEVER) or record.held is None or endpoint.target is not None:
            return None
        body = record.held.current
        resuming = resuming_of(
            api=record.api,
            body=body,
            setting=profile.resume,
            attempts=profile.resume_attempts,
            kind=self._edge.engine_of(record.pool, endpoint.worker),
            ids=decision.token_ids or token_ids_of(record.api, body),
            one=decision.answers == 1,
            thinking_end=_thinking_end(record.policy.config, decision),
        )
        if resuming is not None:
            resuming.sent = partial(_sent_body, request, endpoint)
        return resuming

    def broken(self, request: Outgoing, cut: AnswerCutOff, rewriting: Rewriting | None) -> StreamBroken | None:
        """The failure of a stream that another engine may continue; None where none can."""
        resuming, record = request.resuming, request.record
        if resuming is None or not request.client.started or record.outcome is not None:
            return None
        try:
            resuming.break_off()
        except CantContinue as unable:
            self._give_up(request, unable.reason)
            return None
        return StreamBroken(cut, rewriting)

    async def carry_on(
        self,
        request: Outgoing,
        broken: StreamBroken,
        left: list[ChosenEndpoint],
        budget: RetryBudget,
        decided_again: "DecideAgain",
    ) -> None:
        """Have other engines continue the stream; end it with an error if none does. `left`: the further endpoints of
        the decision. `decided_again`: gives one of a new decision."""
        record = request.record
        resuming = request.resuming
        failure: EndpointFailed = broken
        reason = NO_ENGINE
        while resuming is not None and record.outcome is None:
            following = None
            drained = failure.outcome == DRAINED
            if drained:
                # It is the gateway that moves the stream: that takes neither attempts nor budget.
                following = await self._engine_for_drained(request, resuming, left, decided_again)
            elif resuming.attempts_left:
                following = self._next_engine(request, resuming, left, budget)
                if following is None:
                    again = await decided_again(free=False)
                    following = again if again is not None and self._may_take(request, resuming, again) else None
            self._reports.report_failure(record, failure, following)
            if following is None:
                break
            resuming.attempts_left -= not drained
            try:
                await self._try(request, resuming, following, broken)
            except EndpointFailed as failed:
                failure = failed
            except CantContinue as unable:
                reason = unable.reason
                break
            else:
                record.end("ok", 200)
                return
        self._give_up(request, reason)
        await end_cut_off(record, request.client, 200, broken.cut)

    def _give_up(self, request: Outgoing, reason: str) -> None:
        record = request.record
        record.unresumed = reason
        self._edge.metrics.unresumed[reason] += 1

    def _may_take(self, request: Outgoing, resuming: Resuming, endpoint: ChosenEndpoint) -> bool:
        """Whether an endpoint can be asked for the rest: an engine of the same model that hasn't failed the request."""
        if endpoint.target is not None or not endpoint.url:
            return False
        record, worker = request.record, endpoint.worker
        if worker in failed_workers(record.attempts) or self._edge.draining.is_draining(record.pool, worker):
            return False
        return resuming.can_ask(self._edge.engine_of(record.pool, worker))

    async def _engine_for_drained(
        self, request: Outgoing, resuming: Resuming, left: list[ChosenEndpoint], decided_again: "DecideAgain"
    ) -> ChosenEndpoint | None:
        """The engine for a stream that leaves a drained one: of a new decision, or else of the last one, or by this
        edge's own knowledge."""
        again = await decided_again(free=True)
        if again is not None and self._may_take(request, resuming, again):
            return again
        record = request.record
        able = [endpoint for endpoint in left if self._may_take(request, resuming, endpoint)]
        if able:
            left.remove(able[0])
            return able[0]
        other = self._edge.find_engine(record.pool, request.decision.target, failed_workers(record.attempts))
        return other if other is not None and self._may_take(request, resuming, other) else None

    def _next_engine(
        self, request: Outgoing, resuming: Resuming, left: list[ChosenEndpoint], budget: RetryBudget
    ) -> ChosenEndpoint | None:
        able = [endpoint for endpoint in left if self._may_take(request, resuming, endpoint)]
        if not able or not budget.spend(time.monotonic()):
            return None
        unwell = self._edge.unwell_workers(request.record.pool)
        following = min(able, key=lambda each: self._edge.is_avoided(each.worker) + (each.worker in unwell))
        left.remove(following)
        return following

    async def _try(self, request: Outgoing, resuming: Resuming, endpoint: ChosenEndpoint, broken: StreamBroken) -> None:
        """Have one engine continue the stream to its end. Raises EndpointFailed and CantContinue."""
        record, before = request.record, request.record.attempts[-1].worker
        record.worker = endpoint.worker
        sent_at = time.monotonic()
        span = NO_SPAN
        if record.traceparent is not None:
            span = self._reports.begin_span(record, record.traceparent, endpoint, request.decision.target)
        problem: str | None = "aborted"
        self._edge.load.begin_attempt(endpoint.worker)

        def begins(question: Question) -> None:
            now = time.monotonic()
            self._edge.events.publish_start(record, endpoint.worker, now - sent_at)
            seam = Seam(
                worker=before,
                next_worker=endpoint.worker,
                form=resuming.form,
                at_ms=round((broken.at - record.received_at) * 1e6) / 1e3,
                gap_ms=round((now - broken.at) * 1e6) / 1e3,
                kept_tokens=question.kept,
                computed_again=len(question.sent) or request.decision.prompt_tokens + question.kept,
            )
            record.seams = (*record.seams, seam)
            self._edge.metrics.count_seam(seam)
            _log.info(
                "stream_resumed", request_id=record.request_id, worker=endpoint.worker, before=before, form=seam.form
            )

        connections = RestConnections(self._engines, request, endpoint, span.traceparent)
        try:
            await learn_tokens(resuming, self._edge.engine_of(record.pool, endpoint.worker), connections.ask_tokens)
            longest = await self._longest_of(connections, endpoint.url) if resuming.is_open_ended else None
            usage = record.tail or record.api.usage()
            rest = RestOfStream(
                resuming,
                request.client,
                usage,
                broken.rewriting,
                request.decision.prompt_tokens,
                quiet_s=record.policy.engine.idle_s,
            )
            await rest.relay_to_end(connections.ask_rest, begins, longest)
            problem = None
            record.record_attempt(endpoint.worker, "answered", 200, time.monotonic() - sent_at)
        except EndpointFailed as failed:
            problem = failed.outcome
            took_s = time.monotonic() - sent_at
            record.record_attempt(endpoint.worker, failed.outcome, failed.status, took_s, reason=failed.detail)
            raise
        finally:
            connections.give_back()
            self._edge.load.end_attempt(endpoint.worker)
            if span is not NO_SPAN and span.is_recording:
                span.end_span(problem, error__type=problem)

    async def _longest_of(self, connections: RestConnections, url: str) -> int:
        """The longest sequence of an engine in tokens. Raises EndpointFailed where it doesn't say."""
        now = time.monotonic()
        known = self._longest.get(url)
        if known is None or now - known[1] > _KNOWN_S:
            self._longest = {each: found for each, found in self._longest.items() if now - found[1] <= _KNOWN_S}
            known = self._longest[url] = longest_sequence(await connections.ask_models()), now
        return known[0]


def _sent_body(request: Outgoing, endpoint: ChosenEndpoint) -> bytes:
    return engine_call(request, endpoint, None, (), movable=False).body


def _thinking_end(config: Config, decision: Decision) -> str | None:
    model = config.models.get(decision.model) or config.models.get(decision.target.model)
    return None if model is None else model.thinking_end
