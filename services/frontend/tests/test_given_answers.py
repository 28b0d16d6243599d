"""A stage that ends the journey with an answer is passed on as if an engine had answered."""

import json

import pytest

from pointsman_contracts.journey import AnswerUse, HeaderEdit, Stage, StageReport, Target
from pointsman_contracts.message import read_fields
from pointsman_contracts.reply import Answer
from pointsman_contracts.response import RequestAnswered, RequestRejected, ResponseCompleted, Usage
from pointsman_contracts.response_stage import ResponseReview, TextEdit, Verdict
from pointsman_testing import eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import RawResponse, post, raw_request

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'
WHOLE = json.dumps({"id": "c", "model": "llama-8b", "choices": [{"index": 0, "message": {"content": "my secret"}}]})
DELTA = b'data: {"model":"llama-8b","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
EVENTS = DELTA % b"my " + DELTA % b"secret" + b"data: [DONE]\n\n"
TARGET = Target(model="llama-8b", pool="llama-8b")


def gives(edge: EdgeUnderTest, body: bytes = WHOLE.encode(), **fields: object) -> None:
    edge.stages.reply = lambda request: read_fields(
        Answer,
        {
            "request_id": request.request_id,
            "stage": "semantic-cache",
            "model": "llama-8b",
            "profile": "standard",
            "target": TARGET,
            "saved": Usage(prompt_tokens=9, completion_tokens=2),
            "trail": (StageReport(stage="semantic-cache", instance="c-1", outcome="answered"),),
            "body": body,
        }
        | fields,
    )


async def answered(edge: EdgeUnderTest) -> tuple[RawResponse, ResponseCompleted]:
    answer = await raw_request(edge.url, post(CHAT, BODY))
    await eventually(lambda: edge.events.of(ResponseCompleted))
    (done,) = edge.events.of(ResponseCompleted)
    return answer, done


async def test_a_stages_answer_reaches_the_client_and_is_published_once(start_edge: StartEdge) -> None:
    edge = await start_edge()
    gives(edge, answer_headers=(HeaderEdit(name="x-pointsman-cache", value="hit"),))
    answer, done = await answered(edge)
    assert (answer.status, answer.body) == (200, WHOLE.encode())
    assert answer.header("content-type") == "application/json"
    assert (answer.header("x-pointsman-cache"), answer.header("x-pointsman-level")) == ("hit", "full")
    assert (done.outcome, done.status, done.answered_by, done.stream) == ("ok", 200, "semantic-cache", False)
    assert (done.model, done.target, done.profile) == ("llama-8b", TARGET, "standard")
    assert (done.usage, done.saved) == (Usage(), Usage(prompt_tokens=9, completion_tokens=2))
    assert (done.worker, done.attempts) == (None, ())
    (told,) = edge.events.of(RequestAnswered)
    assert (told.stage, told.status, told.trail[0].outcome) == ("semantic-cache", 200, "answered")
    assert edge.events.of(RequestRejected) == []


async def test_a_stream_is_passed_on_as_a_stream_with_the_name_that_was_asked_for(start_edge: StartEdge) -> None:
    edge = await start_edge()
    gives(edge, EVENTS, content_type="text/event-stream", model="mine", named="llama-8b")
    answer, done = await answered(edge)
    assert answer.header("content-type") == "text/event-stream"
    assert answer.header("x-accel-buffering") == "no"
    assert answer.body == EVENTS.replace(b'"llama-8b"', b'"mine"')
    assert (done.outcome, done.stream, done.model) == ("ok", True, "mine")
    assert done.ttft_ms is not None


@pytest.mark.requirement("CACHE-1", "S0-63")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_stages_answer_passes_the_stages_on_the_way_back_too(start_edge: StartEdge, stream: bool) -> None:
    def redacting(review: ResponseReview) -> Verdict:
        edits = tuple(TextEdit(part=text.part, text=text.text.replace("secret", "*")) for text in review.texts)
        return Verdict(request_id=review.request_id, action="replace" if edits else "pass", texts=edits)

    config = {"stages": {"audit": {"mode": "after", "content": "text"}}, "postprocessing": ["audit"]}
    edge = await start_edge(config=config)
    edge.reviewers.say = redacting
    guard = Stage(service="guard", answer=AnswerUse(mode="window", content="text"), memo="of its own")
    kind = "text/event-stream" if stream else "application/json"
    gives(edge, EVENTS if stream else WHOLE.encode(), content_type=kind, response=(guard,))
    answer, done = await answered(edge)
    assert b"secret" not in answer.body
    assert b"*" in answer.body
    assert [report.outcome for report in done.stages] == ["replaced"]
    await eventually(lambda: edge.reviewers.asked[-1].stage == "audit")
    audit = edge.reviewers.asked[-1]
    assert (audit.outcome, audit.status, audit.model, audit.target) == ("ok", 200, "llama-8b", TARGET)
    assert [report.outcome for report in audit.stages] == ["replaced"]
    assert edge.reviewers.asked[0].memo == "of its own"


async def test_a_blocked_answer_of_a_stage_is_withheld(start_edge: StartEdge) -> None:
    edge = await start_edge()
    edge.reviewers.say = lambda review: Verdict(request_id=review.request_id, action="block", message="No.")
    gives(edge, response=(Stage(service="guard", answer=AnswerUse(mode="buffer", content="text")),))
    answer, done = await answered(edge)
    assert answer.status == 403
    assert b"secret" not in answer.body
    assert (done.outcome, done.status) == ("blocked", 403)


async def test_a_request_whose_use_cant_be_settled_is_completed_without_it_and_its_body_goes(
    start_edge: StartEdge,
) -> None:
    priced = {"pool": "llama-8b", "cost": {"input": 1, "output": 1}}
    edge = await start_edge(config={"models": {"llama-8b": priced}})
    gives(edge, usage=Usage(prompt_tokens=10**400))
    answer, done = await answered(edge)
    assert (answer.status, done.outcome, done.usage, done.cost) == (200, "ok", None, None)
    assert edge.metric("pointsman_edge_unsettled_total") == 1
    assert edge.metric("pointsman_edge_open_requests") == 0
