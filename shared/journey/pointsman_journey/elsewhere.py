"""Where a request goes when no scheduler is asked: to a provider, or on to the next model. Pure.

A provider has no endpoints to choose among, so the stage before the scheduler answers the edge itself.
"""

from typing import Final

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import Journey, StageReport, retold
from pointsman_contracts.reply import ChosenEndpoint, Decision
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.session import RequestSession
from pointsman_core.service_level import promise_of
from pointsman_core.settled_target import settled

NO_POOL: Final = "-"
"""Stands for the pool in events about requests that have none."""
_NO_ROOM: Final = frozenset({429, 503})
"""Statuses of a scheduler whose pool can't take the request now."""


def leaves(journey: Journey) -> bool:
    """Whether the next stage would be the scheduler, and a provider serves the model."""
    target = journey.target
    return target is not None and target.provider is not None and journey.itinerary[0].service == "scheduler"


def decision(journey: Journey) -> Decision:
    """The answer to the edge of a journey that `leaves`. The edge resolves the provider by its configuration."""
    target = journey.target
    if target is None or target.provider is None:
        raise ValueError("no provider serves the model")
    return Decision(
        request_id=journey.request_id,
        attempt=journey.attempt,
        revision=journey.revision,
        profile=journey.profile or "",
        model=journey.model,
        target=target,
        endpoints=(ChosenEndpoint(worker=target.provider, url="", target=target),),
        alternatives=journey.alternatives,
        headers=journey.headers,
        body=journey.body,
        answer_headers=journey.answer_headers,
        response=journey.response,
        level=journey.level,
        reasons=journey.reasons,
        scheduler="",
        identity=Identity.from_attributes(journey.request.attributes),
        prompt_tokens=journey.request.prompt_tokens,
        answers=journey.request.answers,
        cascade=journey.cascade,
        session=None
        if journey.request.session is None
        else RequestSession.from_facts(journey.request.session, journey.request.attributes),
        # A provider's times aren't predicted; its answer is judged as any other.
        promise=promise_of(journey.request),
    )


def announcement(journey: Journey, answer: Decision, source: str, sequence: int, at_ms: int) -> RequestScheduled:
    """The same decision for those who audit."""
    name = answer.target.provider or ""
    others = ", ".join(target.model for target in journey.alternatives)
    return RequestScheduled(
        request_id=journey.request_id,
        attempt=journey.attempt,
        source=source,
        sequence=sequence,
        at_ms=at_ms,
        edge=journey.edge,
        pool=NO_POOL,
        model=journey.model,
        target=answer.target,
        profile=answer.profile,
        models=journey.models or (),
        primary="",
        runs=(),
        endpoints=(name,),
        reason=f"the provider '{name}' serves {answer.target.model}" + (f"; after it {others}" if others else ""),
        prompt_tokens=journey.request.prompt_tokens,
        revision=journey.revision,
        level=journey.level,
        reasons=journey.reasons,
        trail=journey.trail,
        session=answer.session,
    )


def next_model(journey: Journey, status: int, report: StageReport) -> Journey | None:
    """The journey of a request that a pool has no room for, on to its next model; None without one.

    `report` is the entry in the trail of the stage that said so.
    """
    if status not in _NO_ROOM or not journey.alternatives or not journey.itinerary:
        return None
    if journey.itinerary[0].service != "scheduler":
        return None
    target, *others = journey.alternatives
    changes = settled(journey, target)
    changes["alternatives"] = tuple(others)
    changes["headers"] = retold(journey.headers, target)
    if journey.cascade is not None:
        changes["cascade"] = journey.cascade.of_next_model()
    changes["trail"] = (*journey.trail, report)
    return journey.changed(**changes)
