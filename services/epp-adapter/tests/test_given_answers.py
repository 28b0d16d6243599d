"""A stage's own answer is Envoy's immediate response."""

import pytest

from pointsman_contracts.journey import AnswerUse, HeaderEdit, Stage, Target
from pointsman_contracts.reply import Answer
from pointsman_contracts.response import RequestAnswered, Usage
from pointsman_contracts.response_stage import ResponseReview, TextEdit, Verdict
from pointsman_testing import eventually
from pointsman_testing.ext_proc import BUFFERED, FULL_DUPLEX, NONE, Reply
from pointsman_testing.picker import PickerUnderTest, StartPicker

DELTA = b'data: {"model":"llama-8b","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
EVENTS = DELTA % b"my " + DELTA % b"secret" + b"data: [DONE]\n\n"
NOTHING = Usage()
GUARD = Stage(service="guard", answer=AnswerUse(mode="window", content="text"))


def gives(picker: PickerUnderTest, *response: Stage, usage: Usage = NOTHING) -> None:
    picker.stages.reply = lambda request: Answer(
        request_id=request.request_id,
        stage="semantic-cache",
        model="mine",
        named="llama-8b",
        target=Target(model="llama-8b", pool="llama-8b"),
        content_type="text/event-stream",
        usage=usage,
        saved=Usage(prompt_tokens=9),
        answer_headers=(HeaderEdit(name="x-pointsman-cache", value="hit"),),
        response=response,
        body=EVENTS,
    )


async def answered(picker: PickerUnderTest, modes: tuple[int, int]) -> Reply:
    exchange = picker.client.open()
    await exchange.request(modes=modes)
    if modes[0] == BUFFERED:
        await exchange.reply()
    await exchange.body(b'{"model":"mine","messages":[]}')
    return await exchange.reply()


@pytest.mark.parametrize("modes", [(FULL_DUPLEX, FULL_DUPLEX), (BUFFERED, NONE)])
async def test_a_stages_answer_is_the_response(modes: tuple[int, int], start_picker: StartPicker) -> None:
    picker = await start_picker()
    gives(picker)
    reply = await answered(picker, modes)
    assert (reply.status, reply.body) == (200, EVENTS.replace(b'"llama-8b"', b'"mine"'))
    assert (reply.set["content-type"], reply.set["x-pointsman-cache"]) == ("text/event-stream", "hit")
    (done,) = await picker.completed()
    assert (done.outcome, done.answered_by, done.stream, done.saved) == (
        "ok", "semantic-cache", True, Usage(prompt_tokens=9),
    )  # fmt: skip
    assert len(picker.events.of(RequestAnswered)) == 1


@pytest.mark.requirement("CACHE-1", "S0-63")
async def test_it_passes_the_stages_on_the_way_back(start_picker: StartPicker) -> None:
    def redacting(review: ResponseReview) -> Verdict:
        edits = tuple(TextEdit(part=text.part, text=text.text.replace("secret", "*")) for text in review.texts)
        return Verdict(request_id=review.request_id, action="replace", texts=edits)

    picker = await start_picker(config={"stages": {"audit": {"mode": "after"}}, "postprocessing": ["audit"]})
    picker.reviewers.say = redacting
    gives(picker, GUARD)
    reply = await answered(picker, (FULL_DUPLEX, FULL_DUPLEX))
    assert b"secret" not in (reply.body or b"")
    await eventually(lambda: [review.stage for review in picker.reviewers.asked] == ["guard", "audit"])

    picker.reviewers.say = lambda review: Verdict(request_id=review.request_id, action="block")
    blocked = await answered(picker, (FULL_DUPLEX, FULL_DUPLEX))
    assert (blocked.status, b"secret" in (blocked.body or b"")) == (403, False)
    assert [done.outcome for done in await picker.completed(2)] == ["ok", "blocked"]


async def test_a_request_whose_use_cant_be_settled_is_completed_without_it(start_picker: StartPicker) -> None:
    priced = {"pool": "llama-8b", "cost": {"input": 1, "output": 1}}
    picker = await start_picker(config={"models": {"llama-8b": priced}})
    gives(picker, usage=Usage(prompt_tokens=10**400))
    await answered(picker, (FULL_DUPLEX, FULL_DUPLEX))
    (done,) = await picker.completed()
    assert (done.outcome, done.usage, done.cost) == ("ok", None, None)
