"""A stage on the way back gets reviews from its queue group and answers with verdicts, on both transports."""

import asyncio
from collections.abc import Awaitable

from pointsman_contracts.response_stage import ResponseReview, Verdict
from pointsman_contracts.subjects import subject
from pointsman_testing import eventually
from pointsman_testing.buses import Buses


def review(request_id: str) -> ResponseReview:
    return ResponseReview(
        request_id=request_id, edge="e", stage="guard", revision=1, deadline_ms=0, mode="after", status=200
    )


async def test_one_replica_says_something_about_each_answer_and_a_failure_is_said_at_once(buses: Buses) -> None:
    asked: list[str] = []

    def says(name: str) -> None:
        async def slowly(review: ResponseReview) -> Verdict:
            await asyncio.sleep(0)
            if review.request_id == "late":
                raise RuntimeError("the test says so")
            return Verdict(request_id=review.request_id, note="slowly")

        def reviewer(review: ResponseReview) -> Verdict | Awaitable[Verdict]:
            asked.append(review.request_id)
            if review.request_id == "broken":
                raise RuntimeError("the test says so")
            return slowly(review) if review.request_id in ("slow", "late") else Verdict(request_id=review.request_id)

        buses.make("guard", name).handle_reviews(reviewer)

    says("1")
    says("2")
    edge = buses.make("frontend")
    got: list[bytes] = []
    edge.bus.link.subscribe("_INBOX.edge", lambda subject, reply, headers, payload: got.append(payload))
    await buses.meet()
    names = [f"r-{number}" for number in range(10)] + ["slow", "broken", "late"]
    for name in names:
        edge.bus.link.publish(subject(ResponseReview, "guard"), review(name).encode(), "_INBOX.edge", b"")
    await eventually(lambda: len(got) == len(names))
    assert sorted(asked) == sorted(names)
    assert got.count(b"{}") == 2
    verdicts = [Verdict.decode(payload) for payload in got if payload != b"{}"]
    assert sorted(verdict.request_id for verdict in verdicts) == sorted({*names} - {"broken", "late"})
