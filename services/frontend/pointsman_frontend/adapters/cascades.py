"""Serves requests of cascades: a cheap model answers first, and a larger one where that answer isn't confident."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, cast

from msgspec.structs import replace

from pointsman_apis.answer_signs import logprob_edits
from pointsman_apis.errors import SERVER_ERROR
from pointsman_apis.streams import document_of
from pointsman_contracts.cascade import (
    CONFIDENT,
    ESCALATED,
    FAILED,
    LAST,
    LATE,
    UNCONFIDENT,
    UNKNOWN,
    AnswerConfidence,
)
from pointsman_contracts.journey import CascadeStep
from pointsman_contracts.reply import Answer, Decision
from pointsman_contracts.response import UnusedAnswer
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.confidence import judge_answer
from pointsman_edge.edge import Edge
from pointsman_edge.reviewing.answer_review import Withheld
from pointsman_edge.sending.moving_on import failure_of
from pointsman_edge.telling.following import MOVED, end_answer
from pointsman_edge.telling.request_record import CLIENT_GONE, RequestRecord
from pointsman_frontend.adapters.forwarder import Forwarder
from pointsman_frontend.adapters.held_answer import HeldAnswer, NotConfident, PassedAnswer
from pointsman_frontend.adapters.outgoing import Outgoing
from pointsman_runtime.telling.logs import Log

PART_OF_TIME: Final = 0.5
"""Part of the time that a request has left which an answer may take if its cascade doesn't say."""
_REPORTING: Final = frozenset({"openai", "azure"})
"""Kinds of providers that may report log probabilities; the others refuse a request for them."""
_ANSWERED: Final = "answered"
_NOT_FOUND: Final = 404
_DECIDED: Final = ("reply", "decision", "answer_headers", "level", "pool", "target", "decided_s")
_ENDED: Final = (
    *("worker", "first_byte_at", "stream", "tail", "usage", "served", "cost", "cost_nanos"),
    *("status", "outcome", "reason", "code"),
)
"""Members of a record that are about one answer; `_DECIDED` come from its decision."""

DecideNext = Callable[[tuple[str, ...]], Awaitable[Decision | Answer | None]]
"""The decision for a request after these models of its cascade; None when there is none. A
cached answer has been given to the client."""

_log = Log("cascades")


class _Turn:
    """One model's answer."""

    def __init__(self, record: RequestRecord, held: HeldAnswer | None = None) -> None:
        """`held`: None for the last model's, which isn't held."""
        self.held: Final = held
        self.began_at: Final = time.monotonic()
        self.attempts_before: Final = len(record.attempts)
        self.confidence = AnswerConfidence(verdict=FAILED)
        self.refusal: Refusal | None = None
        self.facts: dict[str, object] = {}
        """The record's members about it, once it is set aside."""
        self.unused: UnusedAnswer | None = None

    @property
    def is_usable(self) -> bool:
        """Whether the whole answer is here, and no error."""
        return self.held is not None and self.held.complete and not self.held.is_error


class Cascades:
    """Those of one edge."""

    def __init__(self, edge: Edge, forwarder: Forwarder) -> None:
        self._edge: Final = edge
        self._forwarder: Final = forwarder
        self._unknown: Final[set[str]] = set()
        """Models whose confidence couldn't be judged."""

    async def serve_request(self, request: Outgoing, decide_next: DecideNext) -> None:
        """Have a request answered whose decision is a step of a cascade. Raises Refusal when no model answers."""
        record, headers, decide_again = request.record, request.headers, request.decide_again
        record.cascaded = True
        asked = cast("Mapping[str, object]", document_of(record.body) or {})
        turns: list[_Turn] = []
        names: tuple[str, ...] = ()
        while (step := request.decision.cascade) is not None:
            turn = await self._ask_model(request, step, asked)
            held = turn.held
            if held is None or held.confidence is not None:
                record.confidence = None if held is None else held.confidence
                return
            if _is_to_give(turn, step):
                record.confidence = turn.confidence
                await held.give(turn.confidence.verdict)
                return
            turns.append(turn)
            self._set_aside(record, turn)
            names = (*names, step.model)
            decision = await decide_next(names)
            if isinstance(decision, Answer):
                record.confidence = AnswerConfidence(verdict=LAST, why=f"{decision.stage} had it")
                return
            if decision is None or decision.target == request.decision.target:
                await self._give_best(request, turns, "no larger model could be asked")
                return
            decided_s = record.decided_s
            record.record_decision(decision, time.monotonic())
            record.decided_s = decided_s
            request.decision, request.headers, request.decide_again = decision, headers, decide_again
            request.resuming, request.carried, request.drops_ids = None, None, False
        await self._ask_last(request, turns)

    async def _ask_model(self, request: Outgoing, step: CascadeStep, asked: Mapping[str, object]) -> _Turn:
        record, decision, rule = request.record, request.decision, step.confident
        edits = logprob_edits(record.api, asked) if rule.reads_logprobs and _reports_logprobs(record) else ()
        # A further model is asked by a decision of its own, which knows its engines.
        request.decision = record.decision = replace(decision, body=(*decision.body, *edits), alternatives=())
        client = request.client
        request.client = held = HeldAnswer(
            client,
            record,
            lambda reader: judge_answer(rule, record.api, asked, reader.signs, whole=False),
            hold_tokens=step.hold_tokens,
            accepts=rule.unknown == "accept",
            strips=bool(edits),
        )
        turn = _Turn(record, held)
        left_s = record.received_at + record.policy.limits.request_timeout - turn.began_at
        within_s = left_s * PART_OF_TIME if step.within_ms is None else step.within_ms / 1000.0
        try:
            async with asyncio.timeout(within_s) as limit:
                try:
                    await self._forwarder.forward(request)
                finally:
                    if held.confidence is not None:
                        # It leaves already: from now on it may take as long as any other.
                        limit.reschedule(None)
                if held.confidence is None:
                    turn.confidence = await self._judge(record, step, held, asked)
        except TimeoutError:
            if held.started:
                raise
            turn.confidence = AnswerConfidence(verdict=LATE, why=f"no whole answer within {within_s:.3g} s")
        except NotConfident as found:
            turn.confidence = found.confidence
        except Refusal as refusal:
            if held.started or isinstance(refusal, Withheld) or _is_clients(refusal.status):
                raise
            turn.refusal = refusal
            turn.confidence = AnswerConfidence(verdict=FAILED, why=f"no answer: {refusal.told_code or refusal.status}")
        finally:
            request.client = client
        confidence = held.confidence or turn.confidence
        if confidence.verdict == UNKNOWN and step.model not in self._unknown:
            self._unknown.add(step.model)
            _log.warning("confidence_unknown", model=step.model, reason=confidence.why, request_id=record.request_id)
        self._edge.metrics.cascades[step.model, confidence.verdict] += 1
        return turn

    async def _judge(
        self, record: RequestRecord, step: CascadeStep, held: HeldAnswer, asked: Mapping[str, object]
    ) -> AnswerConfidence:
        signs = held.read_signs()
        if held.is_error or not held.complete:
            return AnswerConfidence(verdict=FAILED, why=f"answered {held.status}" if held.is_error else "broke off")
        found = judge_answer(step.confident, record.api, asked, signs)
        if found.verdict == UNCONFIDENT or step.check is None:
            return found
        try:
            await self._edge.response_stages.check_answer(record, step.check, held.status, held.headers, held.body)
        except Withheld as withheld:
            if withheld.blocked:
                return replace(found, verdict=UNCONFIDENT, why=f"{step.check.service} objects")
            return replace(found, verdict=UNKNOWN, why=withheld.message)
        return found

    async def _ask_last(self, request: Outgoing, turns: list[_Turn]) -> None:
        record, client = request.record, request.client
        name = record.policy.prices.find_name(request.decision.target, request.decision.model)
        counts = self._edge.metrics.cascades
        turn, passed = _Turn(record), PassedAnswer(client, LAST)
        request.client = passed
        try:
            await self._forwarder.forward(request)
        except Refusal as refusal:
            counts[name, FAILED] += 1
            if client.started or isinstance(refusal, Withheld):
                raise
            turn.refusal, why = refusal, f"no answer: {refusal.told_code or refusal.status}"
        else:
            counts[name, LAST if passed.error is None else FAILED] += 1
            if passed.error is None:
                record.confidence = AnswerConfidence(verdict=LAST)
                return
            if not any(each.is_usable for each in turns):
                await passed.give_error()
                return
            why = f"answered {passed.error[0]}"
        finally:
            request.client = client
        turn.confidence = AnswerConfidence(verdict=FAILED, why=why)
        turns.append(turn)
        if any(each.is_usable for each in turns):
            self._set_aside(record, turn)
        await self._give_best(request, turns, f"the larger model failed: {why}")

    async def _give_best(self, request: Outgoing, turns: list[_Turn], why: str) -> None:
        """Give the client the last answer that is usable. Raises Refusal when there is none."""
        record = request.record
        best = next((each for each in reversed(turns) if each.is_usable), None)
        if best is None or best.held is None:
            await self._give_failure(request, turns)
            return
        for name, value in best.facts.items():
            setattr(record, name, value)
        record.unused = tuple([each.unused for each in turns if each is not best and each.unused is not None])
        if len(record.attempts) > best.attempts_before:
            record.attempts = tuple(
                [
                    replace(each, outcome=_ANSWERED, reason="")
                    if each.outcome == ESCALATED and each.worker == record.worker and each.target == record.target
                    else each
                    for each in record.attempts
                ]
            )
        record.makeshift = True
        record.confidence = replace(best.confidence, why=f"{best.confidence.why}; given because {why}")
        await best.held.give(best.confidence.verdict)

    async def _give_failure(self, request: Outgoing, turns: list[_Turn]) -> None:
        record, last = request.record, turns[-1]
        record.confidence = last.confidence
        refusal = next((each.refusal for each in reversed(turns) if each.refusal is not None), None)
        if refusal is None and last.held is not None and last.held.complete:
            record.end("engine_error", last.held.status)
            await last.held.give(last.confidence.verdict)
            return
        raise refusal or Refusal(
            504, "No model of the cascade answered in time.", type=SERVER_ERROR, code="engine_timeout"
        )

    def _set_aside(self, record: RequestRecord, turn: _Turn) -> None:
        """The client doesn't get this answer, for now: report it, and let the record begin anew."""
        now = time.monotonic()
        worker = record.worker
        if record.outcome is None:
            # Its engine was left by a client, as far as it knows.
            record.end("client_gone", CLIENT_GONE)
        try:
            record.settle()
        except OverflowError:
            record.usage = record.served = record.cost = record.cost_nanos = None
        turn.facts = {name: getattr(record, name) for name in (*_DECIDED, *_ENDED)}
        if worker is not None:
            self._note_attempt(record, turn, worker, now)
            if record.target is not None:
                turn.unused = UnusedAnswer(
                    target=record.target,
                    worker=worker,
                    served=record.served,
                    judged=turn.confidence,
                    usage=record.usage,
                    cost_nanos=record.cost_nanos,
                    began_ms=round((turn.began_at - record.received_at) * 1000.0, 3),
                    took_ms=round((now - turn.began_at) * 1000.0, 3),
                )
                record.unused = (*record.unused, turn.unused)
        if record.followers is not None:
            end_answer(record, MOVED)
        for name in _ENDED:
            setattr(record, name, getattr(RequestRecord, name))

    def _note_attempt(self, record: RequestRecord, turn: _Turn, worker: str, now: float) -> None:
        if len(record.attempts) == turn.attempts_before:
            record.record_attempt(worker, ESCALATED, None, now - turn.began_at, reason=turn.confidence.why)
        elif record.attempts[-1].outcome == _ANSWERED:
            *before, last = record.attempts
            last = replace(last, outcome=ESCALATED, reason=turn.confidence.why)
            record.attempts = (*before, last)
        else:
            return  # the failure was reported
        edge = self._edge
        edge.events.attempt_failed(record, edge.boot_of(record.pool, worker), None)


def _is_to_give(turn: _Turn, step: CascadeStep) -> bool:
    held, verdict = turn.held, turn.confidence.verdict
    if held is None or not held.complete:
        return False
    if held.is_error:
        return _is_clients(held.status)
    return verdict == CONFIDENT or (verdict == UNKNOWN and step.confident.unknown == "accept")


def _is_clients(status: int) -> bool:
    """Whether an error of this status is the request's own fault, so that no larger model is asked."""
    return failure_of(status) is None and status != _NOT_FOUND


def _reports_logprobs(record: RequestRecord) -> bool:
    target = record.target
    provider = None if target is None else record.policy.config.providers.get(target.provider or "")
    return provider is None or provider.kind in _REPORTING
