"""An answer that isn't streamed is read once for all of its stages, and again once one has changed it."""

import json

import pytest

from pointsman_apis import answers, named
from pointsman_contracts.journey import AnswerUse, Stage
from pointsman_contracts.response_stage import ResponseReview, TextEdit, Verdict
from pointsman_core.config import load
from pointsman_edge.deciding.policy import compile_policy
from pointsman_edge.reviewing import whole_answer
from pointsman_edge.reviewing.answer_review import AnswerReview
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_testing.fake_stages import FakeReviewers

BODY = json.dumps({"choices": [{"index": 0, "message": {"content": "a secret"}}]}).encode()


@pytest.mark.parametrize(("said", "readings"), [("a secret", 1), ("[redacted]", 2)])
async def test_a_stage_after_the_answer_sees_what_the_client_got_without_another_reading(
    monkeypatch: pytest.MonkeyPatch, said: str, readings: int
) -> None:
    read: list[object] = []

    def reading(*arguments: object) -> answers.Reading:
        read.append(arguments)
        return answers.read(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(whole_answer, "read", reading)

    def guard(review: ResponseReview) -> Verdict:
        edits = tuple(TextEdit(part=text.part, text=said) for text in review.texts if text.text != said)
        return Verdict(request_id=review.request_id, action="replace" if edits else "pass", texts=edits)

    reviewers = FakeReviewers()
    reviewers.say = guard
    stages = [
        Stage(service=f"guard-{mode}", answer=AnswerUse(mode=mode, content="text"))
        for mode in ("buffer", "buffer", "after")
    ]
    record = RequestRecord("r-1", named("chat.completions"), compile_policy(load({}), 1), 0.0)
    review = AnswerReview(stages, reviewers, record, "e")
    _, body = await review.whole(200, [], BODY)
    review.note_sent_bytes(body)
    await review.after()
    assert [[text.text for text in asked.texts] for asked in reviewers.asked] == [["a secret"], [said], [said]]
    assert len(read) == readings
