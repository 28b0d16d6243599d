"""Applies a custom stage's answer to a journey. Pure."""

from collections.abc import Set
from typing import Final, NamedTuple

from msgspec.structs import replace

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import HeaderEdit, Journey, RequestFacts, StageReport, Target, retold
from pointsman_contracts.message import NO_BYTES, MalformedMessage
from pointsman_contracts.reply import Answer, Decision, Parked, Rejection, read_reply
from pointsman_core.permission import IDENTITY, NOT_ALLOWED, allowed_models, may_use, not_allowed
from pointsman_core.settled_target import settled
from pointsman_journey.routing_slip import failed, in_shadow, shadowed

NOTE_LIMIT: Final = 512
"""Characters of a note that are kept."""

Settled = Journey | Rejection | Answer
"""The answers of a stage."""


class Servers(NamedTuple):
    """Pools and providers that a target may name."""

    pools: Set[str]
    providers: Set[str]


def understood(payload: bytes, journey: Journey) -> Settled | None:
    """The answer for this journey; None when it is something else."""
    try:
        answer = Journey.decode(payload)
    except MalformedMessage:
        try:
            answer = read_reply(payload)
        except MalformedMessage:
            return None
    if isinstance(answer, Decision | Parked) or answer.request_id != journey.request_id:
        return None
    return None if isinstance(answer, Rejection) and not 400 <= answer.status <= 599 else answer


def outcome_of(journey: Journey, answer: Settled, asker: str, took_ms: float) -> Settled:
    """The next message: the journey goes on or ends. `asker`: the service that sent it to the stage."""
    if in_shadow(journey):
        return shadowed_by(journey, answer, took_ms)
    if isinstance(answer, Answer):
        return answered(journey, answer, took_ms)
    if isinstance(answer, Rejection):
        return rejected(journey, answer, took_ms)
    following = merged(journey, answer, took_ms)
    if not stays_allowed(journey, following):
        refusal = not_allowed(journey.model)
        return failed(following, asker, refusal.status, NOT_ALLOWED, refusal.message)
    return following


def merged(journey: Journey, answer: Journey, took_ms: float) -> Journey:
    """The journey with those changes of the answer that a stage may make. The request's identity and route stay.
    A target that the stage chose is settled as a model-selector's is: in the body, the blocks and the headers."""
    target = None if answer.target is None else _known(journey, answer.target)
    following = journey.changed(
        request=_facts(journey, answer),
        alternatives=tuple(_known(journey, target) for target in answer.alternatives),
        headers=answer.headers,
        body=answer.body,
        answer_headers=_answer_headers(journey, answer),
        level=answer.level,
        reasons=answer.reasons,
        itinerary=journey.itinerary[1:],
        trail=(*journey.trail, _report(journey, answer, took_ms, "passed")),
    )
    if target is None or target == journey.target:
        return following if target is not None else following.changed(target=None)
    changes = settled(following, target)
    changes["headers"] = retold(following.headers, target)
    return following.changed(**changes)


def nowhere(journey: Journey, answer: Settled, servers: Servers) -> bool:
    """Whether the stage chose a pool or provider that isn't configured."""
    if not isinstance(answer, Journey):
        return False
    before = (journey.target, *journey.alternatives)
    chosen = (target for target in (answer.target, *answer.alternatives) if target is not None)
    return any(
        (target.provider not in servers.providers)
        if target.provider is not None
        else (target.pool not in servers.pools)
        for target in chosen
        if target not in before
    )


def stays_allowed(journey: Journey, following: Journey) -> bool:
    """Whether the models that a stage chose are ones that the identity may use, by their names at the engines."""
    allowed = allowed_models(journey.request.attributes)
    if allowed is None:
        return True
    settled = (journey.target, *journey.alternatives)
    chosen = (following.target, *following.alternatives)
    return all(target is None or target in settled or may_use(allowed, target.model) for target in chosen)


def _known(journey: Journey, target: Target) -> Target:
    """The target of the journey that a stage repeats, with the adapter's base, which one built on an older contract
    doesn't repeat; the stage's own where it chose another one."""
    plain = replace(target, base=None)
    before = (journey.target, *journey.alternatives)
    return next((one for one in before if one is not None and replace(one, base=None) == plain), target)


def _facts(journey: Journey, answer: Journey) -> RequestFacts:
    """The stage's facts of the request. Who sends it was found out before, and stays. Of a body that it changed there
    is no fingerprint."""
    before, after = journey.request.attributes, answer.request.attributes
    facts = answer.request
    if facts.fingerprint and answer.body != journey.body:
        facts = facts.changed(fingerprint=NO_BYTES)
    if before.get(IDENTITY) == after.get(IDENTITY):
        return facts
    kept = {name: value for name, value in after.items() if name != IDENTITY}
    if IDENTITY in before:
        kept[IDENTITY] = before[IDENTITY]
    return facts.changed(attributes=kept)


def rejected(journey: Journey, answer: Rejection, took_ms: float) -> Rejection:
    """The end of the journey at this stage, in the stage's words."""
    return replace(answer, **_end(journey, answer, took_ms, "rejected"))


def shadowed_by(journey: Journey, answer: Settled, took_ms: float) -> Journey:
    """The journey after a stage in shadow, with the stage's report in the trail."""
    if isinstance(answer, Answer):
        return shadowed(journey, "answered", _report(journey, answer, took_ms, "answered"))
    if not isinstance(answer, Rejection):
        return shadowed(journey, "passed", _report(journey, answer, took_ms, "passed"))
    report = _report(journey, answer, took_ms, "rejected")
    return shadowed(
        journey,
        "rejected",
        report.changed(note=f"{answer.status} {answer.code or answer.type}"[:NOTE_LIMIT]),
    )


def answered(journey: Journey, answer: Answer, took_ms: float) -> Answer:
    """The end of the journey at this stage, with the stage's answer. Its response stages stay."""
    return replace(
        answer,
        **_end(journey, answer, took_ms, "answered"),
        identity=Identity.from_attributes(journey.request.attributes),
        response=journey.response,
        level=journey.level if answer.level == "full" else answer.level,
        reasons=(*journey.reasons, *answer.reasons),
    )


def _end(journey: Journey, answer: Rejection | Answer, took_ms: float, outcome: str) -> dict[str, object]:
    """The fields that every end of a journey at this stage shares."""
    return {
        "attempt": journey.attempt,
        "stage": journey.itinerary[0].service,
        "profile": journey.profile,
        "model": journey.model,
        "target": journey.target,
        "answer_headers": _answer_headers(journey, answer),
        "trail": (*journey.trail, _report(journey, answer, took_ms, outcome)),
    }


def _answer_headers(journey: Journey, answer: Settled) -> tuple[HeaderEdit, ...]:
    """The headers of earlier stages, which a stage built on an older contract doesn't repeat, and those of this one."""
    if not answer.answer_headers:
        return journey.answer_headers
    own = {edit.name.lower() for edit in answer.answer_headers}
    return (*[edit for edit in journey.answer_headers if edit.name.lower() not in own], *answer.answer_headers)


def _report(journey: Journey, answer: Settled, took_ms: float, outcome: str) -> StageReport:
    """Its own entry of the trail, if it made one, with the time that was measured here."""
    service = journey.itinerary[0].service
    own = answer.trail[len(journey.trail) :]
    last = own[-1] if own else StageReport(stage=service, instance="")
    note = None if last.note is None else last.note[:NOTE_LIMIT]
    return StageReport(stage=service, instance=last.instance, outcome=outcome, took_ms=took_ms, note=note)
