"""Asking a stage on the way back, on both transports: what it says, and what an edge makes of its failures."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pointsman_contracts.journey import Stage
from pointsman_contracts.message import Blob
from pointsman_contracts.response_stage import ResponseReview, Verdict
from pointsman_contracts.subjects import subject
from pointsman_edge.reviewing.reviewers import NoVerdict, StageReviewers
from pointsman_journey.review_stage import Reviewer
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses, apart

GATE = Stage(service="my.gate", timeout_ms=300)
REVIEW = ResponseReview(
    request_id="r-1", edge="e", stage="my.gate", revision=1, deadline_ms=0, mode="buffer", status=200
)
Say = Callable[[dict[str, Any]], bytes | None]


async def asked(buses: Buses, say: Say | None, review: ResponseReview = REVIEW) -> Verdict:
    """The verdict of a stage that speaks nothing but JSON; None: no replica runs it."""
    edge, outsider = buses.make("frontend"), buses.make("outsider")

    def receive(address: str, reply: str, headers: bytes, payload: bytes) -> None:
        del address, headers
        said = say(json.loads(payload)) if say is not None else None
        if said is not None:
            outsider.bus.link.publish(reply, said, "", b"")

    if say is not None:
        outsider.bus.link.subscribe(subject(ResponseReview, "my.gate"), receive, queue="gate")
    await buses.meet()
    return await StageReviewers(edge).ask_stage(GATE, review, None)


async def test_a_verdict_is_read_with_what_it_leaves_out(buses: Buses) -> None:
    verdict = await asked(buses, lambda review: json.dumps({"request_id": review["request_id"]}).encode())
    assert (verdict.action, verdict.texts, verdict.status) == ("pass", (), 403)


FAILURES: list[tuple[Say | None, int, str]] = [
    (None, 503, "has no live instance"),
    (lambda review: None, 504, "was too slow"),
    (lambda review: b"pass", 500, "sent an invalid verdict"),
    (lambda review: b"{}", 503, "can't review the response at the moment"),
    (lambda review: b'{"request_id": "r-1", "action": "wave"}', 500, "sent an invalid verdict"),
    (lambda review: b'{"request_id": "r-1", "status": 200}', 500, "sent an invalid verdict"),
    (lambda review: b'{"request_id": "r-2"}', 500, "sent the verdict for another request"),
]


@pytest.mark.parametrize(("say", "status", "what"), FAILURES)
async def test_every_way_to_fail_has_its_name_and_its_status(
    buses: Buses, say: Say | None, status: int, what: str
) -> None:
    with pytest.raises(NoVerdict, match=what) as failure:
        await asked(buses, say)
    assert failure.value.status == status


@apart
async def test_an_answer_that_is_too_large_to_send_fails_at_once(buses: Buses) -> None:
    with pytest.raises(NoVerdict, match="a response of this size"):
        await asked(buses, lambda review: None, replace(REVIEW, body=Blob(b"x" * 16 * 2**20)))


async def test_a_stage_is_counted_by_its_verdict_and_its_failures_are_logged_once(
    buses: Buses, caplog: pytest.LogCaptureFixture
) -> None:
    reviewers = StageReviewers(edge := buses.make("frontend"))
    for _ in range(2):
        reviewers.count_failure(GATE, NoVerdict("was of no use", 500, "stage_failed"), "r-1")
    reviewers.count_success(GATE)
    (tally,) = [each for each in edge.bus.hub.tallies if each.name == "response-stage.my.gate"]
    assert (tally.handled, tally.failed) == (1, 2)
    assert [record.message for record in caplog.records if record.message == "degraded"] == ["degraded"]


def _late(verdict: Verdict) -> Reviewer:
    async def say(review: ResponseReview) -> Verdict:
        del review
        await asyncio.sleep(0)
        return verdict

    return say


def _fails(review: ResponseReview) -> Verdict:
    raise RuntimeError(review.stage)


OWN = Verdict(request_id="r-1", note="of its own")
REVIEWERS: list[tuple[str, Reviewer, str | None]] = [
    ("at once", lambda review: OWN, None),
    ("later", _late(OWN), None),
    ("failing", _fails, "can't review the response at the moment"),
    ("another's", lambda review: Verdict(request_id="r-2"), "sent the verdict for another request"),
    ("another's, later", _late(Verdict(request_id="r-2")), "sent the verdict for another request"),
]


@pytest.mark.parametrize(("reviewer", "problem"), [each[1:] for each in REVIEWERS], ids=[each[0] for each in REVIEWERS])
async def test_a_stage_of_the_gateway_answers_the_same_in_the_edges_process_and_in_another(
    buses: Buses, reviewer: Reviewer, problem: str | None
) -> None:
    edge, guard = buses.make("frontend"), buses.make("guard")
    guard.handle_reviews(reviewer)
    await buses.meet()
    review = replace(REVIEW, deadline_ms=builders.unix_ms(60))
    asking = StageReviewers(edge).ask_stage(Stage(service="guard", timeout_ms=10_000), review, None)
    if problem is None:
        assert await asking == OWN
    else:
        with pytest.raises(NoVerdict, match=problem):
            await asking
    (tally,) = [each for each in guard.bus.hub.tallies if each.name == "reviews.guard"]
    await eventually(lambda: (tally.handled, tally.failed) == ((0, 1) if reviewer is _fails else (1, 0)))
    assert not len(edge.bus.replies), "nothing waits any more"
