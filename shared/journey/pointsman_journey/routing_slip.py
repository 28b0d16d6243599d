"""A journey whose next stage is skipped, in shadow, missing or failed. Pure."""

from typing import Final

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import Journey, JourneyChanges, Stage, StageReport
from pointsman_contracts.reply import STAGE_UNAVAILABLE, Rejection
from pointsman_core.service_level import promise_missed

SHADOW: Final = "shadow"
"""Mode of a stage that only reports what it would do."""
RETRY_AFTER_S = 1.0
"""A stage whose replicas all died is back within seconds, or an operator has to look."""


def skipped(journey: Journey, instance: str, reason: str) -> Journey:
    """The journey without its next stage, marked as degraded unless the stage was in shadow. `instance` is who decided
    to skip."""
    stage = journey.itinerary[0]
    report = StageReport(stage=stage.service, instance=instance, outcome="skipped", note=reason)
    changes: JourneyChanges = {"itinerary": journey.itinerary[1:], "trail": (*journey.trail, report)}
    if stage.mode != SHADOW:
        changes["level"] = "degraded"
        changes["reasons"] = (*journey.reasons, reason)
    return journey.changed(**changes)


def in_shadow(journey: Journey) -> bool:
    """Whether its next stage only reports what it would do."""
    return bool(journey.itinerary) and journey.itinerary[0].mode == SHADOW


def shadowed(journey: Journey, verdict: str, report: StageReport) -> Journey:
    """The journey behind a stage in shadow: unchanged but for its report. `verdict`: `passed`, `rejected`,
    `answered`."""
    told = report.changed(outcome=f"{SHADOW}_{verdict}")
    return journey.changed(itinerary=journey.itinerary[1:], trail=(*journey.trail, told))


def with_memos(journey: Journey, noted: tuple[Stage, ...]) -> Journey:
    """The journey with the notes of a stage in shadow for its own response stage. They don't affect other stages, and
    the response stage needs them."""
    same = len(noted) == len(journey.response)
    if not same or all(mine.memo == other.memo for mine, other in zip(journey.response, noted, strict=True)):
        return journey
    kept = tuple(mine.noted(other.memo) for mine, other in zip(journey.response, noted, strict=True))
    return journey.changed(response=kept)


def unanswered(journey: Journey, sender: str) -> Rejection:
    """The answer to the edge when no live replica could take the next stage."""
    stage = journey.itinerary[0].service
    text = f"No live instance of {stage}; try again shortly."
    return _rejection(
        journey=journey,
        sender=sender,
        status=503,
        code=STAGE_UNAVAILABLE,
        message=text,
        retry_after_s=RETRY_AFTER_S,
        missing=stage,
    )


def failed(journey: Journey, sender: str, status: int, code: str, message: str) -> Rejection:
    """The answer to the edge when the next stage let the request down and may not be skipped."""
    return _rejection(journey=journey, sender=sender, status=status, code=code, message=message, retry_after_s=None)


def astray(journey: Journey, sender: str) -> Rejection:
    """The rejection for an itinerary that ends without an answer."""
    if journey.itinerary:
        service = journey.itinerary[0].service
        text = f"The profile sends this request to {service}, but its model has no pool."
    else:
        text = "The profile's itinerary ended without a decision; its last stage must be the scheduler."
    return _rejection(
        journey=journey, sender=sender, status=500, code="itinerary_invalid", message=text, retry_after_s=None
    )


def _rejection(
    journey: Journey,
    sender: str,
    status: int,
    code: str,
    message: str,
    retry_after_s: float | None,
    *,
    missing: str | None = None,
) -> Rejection:
    return Rejection(
        request_id=journey.request_id,
        attempt=journey.attempt,
        stage=sender,
        status=status,
        type="server_error",
        code=code,
        message=message,
        retry_after_s=retry_after_s,
        missing=missing,
        profile=journey.profile,
        model=journey.model,
        target=journey.target,
        answer_headers=journey.answer_headers,
        identity=Identity.from_attributes(journey.request.attributes),
        trail=journey.trail,
        promise=promise_missed(journey.request, status),
    )
