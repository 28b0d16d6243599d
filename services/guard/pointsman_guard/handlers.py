"""Checks prompts on the way in and answers on the way back, by the same policies."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from typing import Final, NamedTuple

from pydantic import JsonValue

from pointsman_apis.prompt_texts import SPOKEN
from pointsman_contracts.guarding import GUARDED, Guarded
from pointsman_contracts.identity import plan_of
from pointsman_contracts.journey import FactsChanges, Journey, JourneyChanges, Stage
from pointsman_contracts.message import NO_BYTES, fields_of
from pointsman_contracts.reply import Rejection
from pointsman_contracts.response_stage import ResponseReview, TextEdit, Verdict
from pointsman_core.config import DEFAULT_GUARD
from pointsman_guard.aside import Aside
from pointsman_guard.domain import words
from pointsman_guard.domain.answer import changed_texts, ours
from pointsman_guard.domain.policy import NOTHING, GuardPolicy, Judgement
from pointsman_guard.domain.prompt import GuardedPrompt
from pointsman_guard.domain.redaction import redacted
from pointsman_guard.metrics import GuardMetrics
from pointsman_hosting.configuration import Configuration
from pointsman_journey.content_client import ContentClient, ContentGone
from pointsman_journey.hop import Hop
from pointsman_plugins.guarding import Checked, CheckedText
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.missing import Missing
from pointsman_runtime.telling.process import Process

STAGE: Final = "guard"
RESTORE: Final = "restore-"
"""Prefix of a guard's memo after it has redacted a prompt that can be restored. The rest names the prompt: clients
choose the ids of requests, and may reuse one while the earlier originals are still kept here."""
PARK_AFTER_S: Final = 0.2
"""An edge re-sends a request without an answer within its hop budget. Before that, this reports that the prompt is
being checked, so that a long check isn't done twice."""
REMEMBERED: Final = 4096
"""Most prompts whose originals are kept between the windows of their answers."""

Outcome = Journey | Rejection

_NOTHING: Final[Mapping[str, str]] = {}

_log = Log("guard")


class Handlers:
    """Judges by the configuration revision that each request started with."""

    def __init__(
        self,
        configuration: Configuration[dict[str, GuardPolicy]],
        content: ContentClient,
        metrics: GuardMetrics,
        identity: Process,
        aside: Aside,
    ) -> None:
        self._configuration: Final = configuration
        self._content: Final = content
        self._metrics: Final = metrics
        self._identity: Final = identity
        self._aside: Final = aside
        self._originals: OrderedDict[str, Mapping[str, str]] = OrderedDict()
        """Originals by memo."""
        self._missing: Final = Missing(_log)

    def guard(self, journey: Journey, hop: Hop[Journey]) -> Outcome | Awaitable[Outcome]:
        """Check the prompt; reject it, have the edge redact it, or let it pass. An awaitable when the prompt is in
        another process, a detector waits, or the edge has to redact."""
        stage = journey.itinerary[0]
        policy = self._policy(journey.revision, stage.policy)
        if policy is None:
            return hop.reject(
                500,
                f"The profile names the guard {stage.policy!r}, which the configuration doesn't have.",
                code="no_guard",
            )
        try:
            body = self._content.body_in_process(journey.edge, journey.request_id, original=True)
        except ContentGone:
            return _gone(hop)
        if body is None:
            return self._fetched(journey, hop, policy)
        outcome = self._checked(body, journey, hop, policy)
        return outcome if isinstance(outcome, Journey | Rejection) else self._answered(outcome, journey, hop)

    async def _fetched(self, journey: Journey, hop: Hop[Journey], policy: GuardPolicy) -> Outcome:
        """Check a prompt that is in another process."""
        return await self._answered(self._fetch_and_check(journey, hop, policy), journey, hop)

    async def _fetch_and_check(self, journey: Journey, hop: Hop[Journey], policy: GuardPolicy) -> Outcome:
        try:
            body = await self._content.fetch_body(journey.edge, journey.request_id, original=True)
        except ContentGone:
            return _gone(hop)
        outcome = self._checked(body, journey, hop, policy)
        return await outcome if isinstance(outcome, Awaitable) else outcome

    async def _answered(self, waiting: Awaitable[Outcome], journey: Journey, hop: Hop[Journey]) -> Outcome:
        """The outcome of a check in which the edge is asked."""
        try:
            return await waiting
        except BusError as problem:
            # The edge that holds the prompt doesn't answer; without the prompt, no check is possible.
            if journey.itinerary[0].on_error != "deny":
                raise
            self._missing.note_missing("the prompt", problem, request_id=journey.request_id)
            return _unchecked(hop)

    def _checked(
        self, body: bytes, journey: Journey, hop: Hop[Journey], policy: GuardPolicy
    ) -> Outcome | Awaitable[Outcome]:
        self._missing.note_recovery("the prompt")
        # The engine's version of the prompt: earlier stages may have changed it.
        prompt = GuardedPrompt.from_body(body, journey.body, journey.request.api)
        checked = Checked("request", policy.name, journey.request_id, prompt.list_texts)
        apart = self._aside.check_aside(checked)
        began = time.perf_counter()
        judgement = policy.judge_soon(checked, prompt.unreadable, apart=apart)
        asked = _Asked(body=body, prompt=prompt, journey=journey, hop=hop, policy=policy, began=began)
        if isinstance(judgement, Judgement):
            return self._ruled(asked, judgement)
        return self._judged_slowly(asked, judgement, parks=policy.may_wait or apart is not None)

    async def _judged_slowly(self, asked: "_Asked", waiting: Awaitable[Judgement], *, parks: bool) -> Outcome:
        loop = asyncio.get_running_loop()
        parking = loop.call_later(PARK_AFTER_S, _park, asked.hop) if parks else None
        try:
            judgement = await waiting
        finally:
            if parking is not None:
                parking.cancel()
        outcome = self._ruled(asked, judgement)
        return await outcome if isinstance(outcome, Awaitable) else outcome

    def _ruled(self, asked: "_Asked", judgement: Judgement) -> Outcome | Awaitable[Outcome]:
        _, prompt, journey, hop, policy, began = asked
        took_s = time.perf_counter() - began
        if not journey.request.dry_run:
            self._metrics.count_judgement("request", policy, judgement, took_s, plan_of(journey.request.attributes))
        self._count_judgement(policy, judgement)
        note = words.note(policy.name, judgement)
        blocked = judgement.blocked
        if blocked is not None:
            return hop.reject(
                403,
                words.prompt_blocked(policy.name, blocked.category),
                type="invalid_request_error",
                code="content_filter",
                param=prompt.locate_finding(blocked),
            )
        stage = journey.itinerary[0]
        if judgement.failures and stage.on_error == "deny":
            return _unchecked(hop)
        if judgement.redact and stage.mode != "shadow":
            return self._redacted(asked, judgement, note)
        return _advanced(asked, judgement, note, {}, {})

    async def _redacted(self, asked: "_Asked", judgement: Judgement, note: str) -> Journey:
        """Have the edge redact the prompt."""
        body, prompt, journey, _, policy, _ = asked
        restores = policy.guard.restore
        before = _NOTHING
        if restores and any(edit.field in SPOKEN for edit in journey.body):
            # The replica that restores sees only the client's prompt.
            before = await self._originals_in(body, policy, journey.request_id, journey.request.api)
        edits = prompt.edits_for(redacted(prompt.list_texts, judgement.redact, before))
        await self._content.edit_body(journey.edge, journey.request_id, STAGE, edits)
        replaced = {edit.field for edit in edits}
        changes: JourneyChanges = {"body": tuple(edit for edit in journey.body if edit.field not in replaced)}
        if restores:
            memo = f"{RESTORE}{secrets.token_hex(16)}"
            policy_name = journey.itinerary[0].policy
            changes["response"] = tuple(_noted(entry, policy_name, memo) for entry in journey.response)
        return _advanced(asked, judgement, note, changes, {"fingerprint": NO_BYTES}, restores=restores)

    def review(self, review: ResponseReview) -> Verdict | Awaitable[Verdict]:
        """Check an answer, or a window of one. Raises when the check fails: the edge follows `on_error`."""
        policy = self._policy(review.revision, review.policy)
        if policy is None:
            raise LookupError(f"the configuration has no guard {review.policy!r}")
        if review.truncated:
            return self._passed(review, f"{policy.name}: not checked, too large")
        if review.memo is not None and review.memo.startswith(RESTORE):
            return self._review_restored(review, policy, review.memo)
        return self._reviewed(review, policy, _NOTHING)

    async def _review_restored(self, review: ResponseReview, policy: GuardPolicy, memo: str) -> Verdict:
        verdict = self._reviewed(review, policy, await self._restorable(review, policy, memo))
        return await verdict if isinstance(verdict, Awaitable) else verdict

    def _reviewed(
        self, review: ResponseReview, policy: GuardPolicy, originals: Mapping[str, str]
    ) -> Verdict | Awaitable[Verdict]:
        texts = [CheckedText(text.part, "assistant", text.text) for text in review.texts]
        checked = Checked("response", policy.name, review.request_id, texts)
        began = time.perf_counter()
        own = ours(texts, originals, first=review.number == 1)
        judgement = policy.judge_soon(checked, but=own, apart=self._aside.check_aside(checked))
        if isinstance(judgement, Judgement):
            return self._said(review, policy, originals, judgement, began)
        return self._judged_later(review, policy, originals, judgement, began)

    async def _judged_later(
        self,
        review: ResponseReview,
        policy: GuardPolicy,
        originals: Mapping[str, str],
        waiting: Awaitable[Judgement],
        began: float,
    ) -> Verdict:
        return self._said(review, policy, originals, await waiting, began)

    def _said(
        self,
        review: ResponseReview,
        policy: GuardPolicy,
        originals: Mapping[str, str],
        judgement: Judgement,
        began: float,
    ) -> Verdict:
        self._metrics.count_judgement("response", policy, judgement, time.perf_counter() - began, review.plan)
        self._count_judgement(policy, judgement)
        if judgement is NOTHING and review.number == 1 and not originals:
            return self._passed(review, None)
        blocked = judgement.blocked
        if blocked is not None:
            return Verdict(
                request_id=review.request_id,
                instance=self._identity.instance,
                action="block",
                message=words.answer_blocked(policy.name, blocked.category),
                note=words.note(policy.name, judgement),
            )
        if judgement.failures:
            raise RuntimeError(words.note(policy.name, judgement))
        edits = changed_texts(policy, review, judgement, originals)
        if edits:
            return Verdict(
                request_id=review.request_id,
                instance=self._identity.instance,
                action="replace",
                texts=tuple(TextEdit(part=part, text=text) for part, text in edits.items()),
                note=words.note(policy.name, judgement),
            )
        return self._passed(review, words.note(policy.name, judgement) if judgement.categories else None)

    async def _restorable(self, review: ResponseReview, policy: GuardPolicy, memo: str) -> Mapping[str, str]:
        """The originals of the placeholders in this answer. Any replica can read them from the prompt."""
        originals = self._originals.get(memo)
        if originals is None:
            body = await self._content.fetch_body(review.edge, review.request_id, original=True)
            originals = self._originals[memo] = await self._originals_in(body, policy, review.request_id, review.api)
            while len(self._originals) > REMEMBERED:
                self._originals.popitem(last=False)
        if review.last:
            self._originals.pop(memo, None)
        return originals

    async def _originals_in(self, body: bytes, policy: GuardPolicy, request_id: str, api: str) -> Mapping[str, str]:
        """The originals by placeholder, of a client's prompt."""
        prompt = GuardedPrompt.from_body(body, api=api)
        checked = Checked("request", policy.name, request_id, prompt.list_texts)
        judgement = await policy.judge_texts(checked, prompt.unreadable, apart=self._aside.check_aside(checked))
        return redacted(prompt.list_texts, judgement.redact).originals

    def _policy(self, revision: int, name: str | None) -> GuardPolicy | None:
        return self._configuration.revisions[revision].compiled.get(name or DEFAULT_GUARD)

    def _passed(self, review: ResponseReview, note: str | None) -> Verdict:
        return Verdict(request_id=review.request_id, instance=self._identity.instance, note=note)

    def _count_judgement(self, policy: GuardPolicy, judgement: Judgement) -> None:
        for failure in judgement.failures:
            self._missing.note_missing(f"{policy.name}/{failure.detector}", failure.problem)
        if not self._missing.is_complete and judgement.blocked is None:
            # For a blocked request, it is unknown which detectors ran.
            failed = {failure.detector for failure in judgement.failures}
            names = (detector.name for detector in policy.detectors if detector.name not in failed)
            self._missing.note_recovery(*(f"{policy.name}/{name}" for name in names))


class _Asked(NamedTuple):
    """A request before its judgement."""

    body: bytes
    """As its client sent it."""
    prompt: GuardedPrompt
    journey: Journey
    hop: Hop[Journey]
    policy: GuardPolicy
    began: float


def _advanced(
    asked: _Asked,
    judgement: Judgement,
    note: str,
    changes: JourneyChanges,
    facts: FactsChanges,
    *,
    restores: bool = False,
) -> Journey:
    """The journey to the next stage, with these changes besides those of every judgement."""
    journey = asked.journey
    if judgement.failures:
        changes["level"] = "degraded"
        changes["reasons"] = (*journey.reasons, *(f"guard: {failure}" for failure in judgement.failures))
    facts["attributes"] = _told(journey, asked.policy, judgement, restores=restores)
    changes["request"] = journey.request.changed(**facts)
    return asked.hop.advance(note=note, **changes)


def _gone(hop: Hop[Journey]) -> Rejection:
    return hop.reject(503, "The request ended before its prompt was checked.", code="content_gone")


def _unchecked(hop: Hop[Journey]) -> Rejection:
    message = "The prompt can't be checked at the moment; try again shortly."
    return hop.reject(503, message, code="guard_failed", retry_after_s=1.0)


def _park(hop: Hop[Journey]) -> None:
    hop.finish(hop.park("the prompt is being checked"))


def _noted(entry: Stage, policy: str | None, memo: str) -> Stage:
    mine = entry.service == STAGE and (entry.policy or DEFAULT_GUARD) == (policy or DEFAULT_GUARD)
    return entry.noted(memo) if mine else entry


def _told(journey: Journey, policy: GuardPolicy, judgement: Judgement, *, restores: bool) -> dict[str, JsonValue]:
    """The attributes of the request, with this guard's judgement."""
    attributes = journey.request.attributes
    before = Guarded.from_attributes(attributes)
    if before is None and judgement is NOTHING:
        return {**attributes, GUARDED: policy.passed_attribute}
    said = Guarded(
        policy=policy.name,
        epoch=policy.epoch,
        verdict=judgement.verdict,
        categories=tuple(dict.fromkeys((*(before.categories if before else ()), *judgement.categories))),
        restores=restores or (before is not None and before.restores),
    )
    return {**attributes, GUARDED: fields_of(said)}
