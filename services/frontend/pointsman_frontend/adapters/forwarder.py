"""Sends a decided request to its endpoints, one after the other, until one answers."""

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from pointsman_apis.errors import SERVER_ERROR
from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.static_choice import EngineState, elsewhere
from pointsman_edge.edge import Edge
from pointsman_edge.sending.cache_key import session_key
from pointsman_edge.sending.header_edits import edited_headers
from pointsman_edge.sending.moving_on import (
    BLAMELESS,
    DRAINED,
    FAILED,
    NO_TRIES,
    STALLED,
    Tries,
    is_doubtful,
    weight,
)
from pointsman_edge.sending.provider_book import ProviderRequestParts
from pointsman_edge.sending.retry_budget import RetryBudgets
from pointsman_edge.sending.unasked_ids import asks_for_ids
from pointsman_frontend.adapters.answer_relay import AnswerRelay, AttemptMade
from pointsman_frontend.adapters.attempt_reports import AttemptReports
from pointsman_frontend.adapters.engine_call import engine_call
from pointsman_frontend.adapters.engine_client import EngineClient
from pointsman_frontend.adapters.engine_connection import EndpointFailed
from pointsman_frontend.adapters.further_endpoints import FurtherEndpoints
from pointsman_frontend.adapters.kept_answer import checked, error_of, unanswered
from pointsman_frontend.adapters.outgoing import Outgoing
from pointsman_frontend.adapters.prefill_leg import PrefillLegs
from pointsman_frontend.adapters.providers import Providers, final, refusal_of, told
from pointsman_frontend.adapters.resumed_streams import ResumedStreams, StreamBroken
from pointsman_runtime.telling.telemetry import NO_SPAN

_ERROR: Final = 400
_WRONG_REQUEST: Final = (400, 422)


class Forwarder:
    """Tries each endpoint at most once, and another one only before the first byte."""

    def __init__(self, edge: Edge, engines: EngineClient, providers: Providers, *, tell_endpoint: bool) -> None:
        """`tell_endpoint`: name the worker that answers in a header."""
        self._edge = edge
        self._load = edge.load
        self._engines = engines
        self._reports = AttemptReports(edge)
        self._providers = providers
        self.budgets: Final = RetryBudgets()
        self.legs: Final = PrefillLegs(edge, engines)
        self._further = FurtherEndpoints(edge)
        self._resumed = ResumedStreams(edge, engines, self._reports)
        self._relay = AnswerRelay(edge, self._reports, self._resumed, tell_endpoint=tell_endpoint)

    async def forward(self, request: Outgoing) -> None:
        """Have the request answered. Raises Refusal when no endpoint does."""
        budget = self.budgets.budget_of(request.record.pool)
        budget.requests += 1
        decision, headers = request.decision, request.headers
        if decision.headers:
            request.headers = edited_headers(headers, decision.headers, self._edge.metrics.drop_header_edit)
        endpoints = decision.endpoints
        left: list[ChosenEndpoint] = []
        following: ChosenEndpoint | None
        if len(endpoints) == 1 and not decision.alternatives:
            following = endpoints[0]
        else:
            left = _distinct(endpoints) + self._alternatives(request)
            if not left:
                raise Refusal(502, "The decision names no endpoint.", type=SERVER_ERROR, code="no_endpoint")
            following = left.pop(0)
        last: EndpointFailed | None = None
        answered = following
        """The endpoint of `last`."""
        tries = NO_TRIES
        while following is not None:
            failure = await self._attempt(request, following, tries, others=bool(left))
            if failure is None:
                return
            request.drop_cache_source()
            if isinstance(failure, StreamBroken):
                again = partial(self._further.decide_again, request, headers, budget, left)
                await self._resumed.carry_on(request, failure, left, budget, again)
                return
            if last is None or weight(failure.outcome, failure.status) >= weight(last.outcome, last.status):
                last, answered = failure, following
            tries = tries.after(failure.outcome, failure.status)
            if failure.outcome == "refused" and following.rank is not None:
                # Nothing listens there, so the other ranks of this engine are gone as well.
                left[:] = [each for each in left if each.url != following.url]
            # A client that is gone needs no other answer.
            may_follow = tries.may_follow and not final(failure) and request.record.outcome is None
            if may_follow and failure.outcome in BLAMELESS:
                self._reports.report_failure(request.record, failure, None)
                if failure.outcome == DRAINED:
                    following = await self._further.find_for_drained(request, headers, budget, left)
                else:
                    following = await self._further.find_for_preempted(request, headers, left)
                continue
            moved = failure.outcome == STALLED
            following = self._further.find_next(request.record.pool, left, budget, free=moved) if may_follow else None
            self._reports.report_failure(request.record, failure, following)
            if following is None and may_follow:
                following = await self._further.decide_again(request, headers, budget, left, free=False)
        await self._give_up(request, answered, last)

    async def _give_up(self, request: Outgoing, endpoint: ChosenEndpoint, failure: EndpointFailed | None) -> None:
        """No endpoint answered: pass the engine's own error on. Raises Refusal if there is none."""
        record = request.record
        answer = None if failure is None else error_of(failure)
        if answer is None:
            raise refusal_of(failure) or unanswered(failure, len(record.attempts))
        record.worker = endpoint.worker
        record.target = endpoint.target or request.decision.target
        await self._relay.relay_answer(request, AttemptMade(endpoint, None), answer)

    def _alternatives(self, request: Outgoing) -> list[ChosenEndpoint]:
        """An endpoint for each other model that may serve."""
        edge, config = self._edge, request.record.policy.config
        state = EngineState(edge.load.open_on, edge.is_avoided)
        found = (elsewhere(config, edge.pools, each, state) for each in request.decision.alternatives)
        return [endpoint for endpoint in found if endpoint is not None]

    async def _attempt(
        self, request: Outgoing, endpoint: ChosenEndpoint, tries: Tries, *, others: bool
    ) -> EndpointFailed | None:
        """Have one endpoint answer; the failure when it didn't. `others`: whether another one can be asked."""
        if request.decision.prefill is None or not endpoint.url or endpoint.target is not None:
            # Another model can't use the prompt of this one.
            return await self._try(request, endpoint, tries, others=others)
        try:
            request.record.worker = endpoint.worker
            try:
                carried = await self.legs.carry(request, endpoint)
            except EndpointFailed as failed:
                request.record.record_attempt(endpoint.worker, failed.outcome, failed.status, 0.0, reason=failed.detail)
                return failed
            failure = await self._try(request, endpoint, tries, others=others, carried=carried)
            begun = isinstance(failure, StreamBroken)
            if failure is not None and carried and not begun and self.legs.lost(request, endpoint, failure):
                failure = await self._try(request, endpoint, tries, others=others)
            return failure
        finally:
            self.legs.ended(request)

    async def _try(
        self,
        request: Outgoing,
        endpoint: ChosenEndpoint,
        tries: Tries,
        *,
        others: bool,
        carried: Sequence[BodyEdit] = (),
    ) -> EndpointFailed | None:
        record, worker = request.record, endpoint.worker
        record.worker = worker
        if endpoint.target is not None:
            record.target = endpoint.target
        if not endpoint.url:
            return await self._ask_provider(request, endpoint)
        sent_at = time.monotonic()
        span = NO_SPAN
        if record.traceparent is not None:
            span = self._reports.begin_span(
                record, record.traceparent, endpoint, endpoint.target or request.decision.target
            )
        self._load.begin_attempt(worker)
        problem: str | None = "aborted"
        try:
            try:
                movable = (others and not tries.started) or self.legs.waited_for(request)
                resuming = request.resuming = self._resumed.prepare_resuming(request, endpoint)
                more: Sequence[BodyEdit] = carried
                if record.policy.reads_token_ids and (resuming is None or not resuming.asks_ids):
                    asks = self._asks_for_ids(request, endpoint)
                    request.drops_ids, more = bool(asks), (*carried, *asks)
                call = engine_call(request, endpoint, span.traceparent, more, movable=movable)
                engine = await self._engines.send(call, request.record.policy.engine)
                try:
                    answer = engine
                    if engine.status >= _ERROR:
                        doubted = others and not tries.doubted and self._doubts(record.pool, engine.status)
                        ranked = endpoint.rank is not None
                        answer = await checked(engine, others=others, ranked=ranked, doubted=doubted)
                    if carried and engine.status in _WRONG_REQUEST and not self.legs.waited_for(request):
                        # The other engine took it: what it carried over may be wrong.
                        raise EndpointFailed(FAILED, f"answered {engine.status}", engine.status)
                    moves = others and not tries.started
                    doubts = partial(self.budgets.spend_opinion, record.pool) if moves and not tries.doubted else None
                    attempt = AttemptMade(endpoint, sent_at, moves, doubts)
                    await self._relay.relay_answer(request, attempt, answer)
                finally:
                    self._engines.release_connection(engine)
            except EndpointFailed as failure:
                problem = failure.outcome
                took_s = time.monotonic() - sent_at
                record.record_attempt(worker, failure.outcome, failure.status, took_s, reason=failure.detail)
                return failure
            problem = None
        finally:
            self._load.end_attempt(worker)
            if span is not NO_SPAN and span.is_recording:
                span.end_span(problem, error__type=problem)
        return None

    def _doubts(self, pool: str, status: int) -> bool:
        """Whether a second engine is asked about an error that is usually the client's."""
        return is_doubtful(status) and self.budgets.spend_opinion(pool, time.monotonic())

    def _asks_for_ids(self, request: Outgoing, endpoint: ChosenEndpoint) -> Sequence[BodyEdit]:
        record = request.record
        kind = self._edge.engine_of(record.pool, endpoint.worker)
        return asks_for_ids(record.api, request.decision, record.held, record.policy.reads_token_ids, kind)

    async def _ask_provider(self, request: Outgoing, endpoint: ChosenEndpoint) -> EndpointFailed | None:
        """Have a provider answer; the failure when it didn't."""
        record, decision = request.record, request.decision
        target = endpoint.target or decision.target
        sent_at = time.monotonic()
        span = self._reports.begin_span(record, record.traceparent, endpoint, target)
        problem: str | None = "aborted"
        try:
            try:
                answer = await self._providers.ask_provider(
                    record,
                    ProviderRequestParts(
                        api=record.api.name,
                        body=record.body,
                        request_id=record.request_id,
                        target=target,
                        asked=decision.model,
                        answers=decision.answers,
                        edits=decision.body,
                        headers=request.headers,
                        query=request.query,
                        traceparent=span.traceparent,
                        session_key=session_key(decision.session, decision.identity),
                    ),
                    request.thinking,
                )
            except EndpointFailed as failure:
                problem = failure.outcome
                took_s = time.monotonic() - sent_at
                record.record_attempt(endpoint.worker, failure.outcome, failure.status, took_s, reason=failure.detail)
                record.limited(*told(failure))
                return failure
            try:
                await self._relay.relay_answer(request, AttemptMade(endpoint, sent_at), answer)
            finally:
                answer.close()
                self._providers.record_end(target, answer)
                record.usage = answer.usage
                record.limited(*told(answer))
            problem = None
        finally:
            if span.is_recording:
                span.end_span(problem, error__type=problem)
        return None


def _distinct(endpoints: Iterable[ChosenEndpoint]) -> list[ChosenEndpoint]:
    found: dict[str, ChosenEndpoint] = {}
    for endpoint in endpoints:
        place = endpoint.url or f"{endpoint.worker}/{endpoint.target}"
        found.setdefault(place if endpoint.rank is None else f"{place} {endpoint.rank}", endpoint)
    return list(found.values())
