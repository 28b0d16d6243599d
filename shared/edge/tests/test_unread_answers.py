"""Answers that a stage which looks can't be shown whole: they follow its `on_error`, and never count as passed."""

import json
from collections.abc import AsyncIterator

import pytest

from pointsman_apis import named
from pointsman_contracts.journey import AnswerUse, Stage
from pointsman_contracts.message import read_fields
from pointsman_contracts.response_stage import ResponseReview, TextEdit, Verdict
from pointsman_core.config import load
from pointsman_edge.deciding.policy import compile_policy
from pointsman_edge.reviewing.answer_review import AnswerReview, Withheld
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_testing.fake_stages import FakeReviewers

POLICY = compile_policy(load({}), 1)
KEY = "-----BEGIN PRIVATE KEY-----"
SAID = json.dumps(KEY).encode()


def seeing(review: ResponseReview) -> Verdict:
    """A stage that blocks the key wherever it is shown to it."""
    seen = any(KEY in text.text for text in review.texts)
    return Verdict(request_id=review.request_id, action="block" if seen else "pass")


def way(
    reviewers: FakeReviewers, *, on_error: str = "deny", mode: str = "buffer", api: str = "chat.completions"
) -> tuple[AnswerReview, RequestRecord]:
    record = RequestRecord("r-1", named(api), POLICY, 0.0)
    answer = read_fields(AnswerUse, {"mode": mode, "content": "text"})
    stages = (Stage(service="guard", on_error=on_error, answer=answer),)
    return AnswerReview(stages, reviewers, record, "e"), record


def chat(message: bytes) -> bytes:
    return b'{"id": "c", "choices": [{"index": 0, "message": %b}]}' % message


UNREADABLE = {
    "text": b"The key: " + SAID,
    "a truncated document": chat(b'{"content": %b}' % SAID)[:-3],
    "the content twice": chat(b'{"content": %b, "content": "fine"}' % SAID),
    "the choices twice": chat(b'{"content": %b}' % SAID)[:-1] + b', "choices": []}',
    "the content twice, spelt otherwise": chat(b'{"content": %b, "c\\u006fntent": "fine"}' % SAID),
    "a list": b"[%b]" % chat(b'{"content": %b}' % SAID),
    "a string": SAID,
    "no UTF-8": chat(b'{"content": %b}' % SAID)[:-4] + b'\xff"}}]}',
    "two documents": chat(b'{"content": "fine"}') + b"\n" + chat(b'{"content": %b}' % SAID),
    "compressed": b"\x1f\x8b\x08\x00 not to be read",
    "a text as a member's name": chat(b'{"content": "fine", %b: 1}' % SAID),
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_an_answer_that_cannot_be_read_follows_on_error(name: str) -> None:
    reviewers = FakeReviewers()
    reviewers.say = seeing
    denied, record = way(reviewers)
    with pytest.raises(Withheld) as withheld:
        await denied.whole(200, [], UNREADABLE[name])
    assert (withheld.value.status, withheld.value.code, withheld.value.blocked) == (502, "answer_unreadable", False)
    assert KEY not in str(withheld.value)
    assert [report.outcome for report in record.stages] == ["failed"]

    allowed, record = way(reviewers, on_error="allow")
    _, body = await allowed.whole(200, [], UNREADABLE[name])
    assert body == UNREADABLE[name]
    assert record.level == "degraded"
    assert [(report.outcome, report.note) for report in record.stages] == [("skipped", "can't read the whole response")]
    assert reviewers.asked == []


SHOWN = {
    "an unknown member of the message": ("chat.completions", chat(b'{"content": "fine", "notes": %b}' % SAID)),
    "an unknown member of the answer": ("completions", b'{"choices": [], "comment": {"de": [{"x": %b}]}}' % SAID),
    "a list of texts": ("chat.completions", chat(b'{"content": ["fine", %b]}' % SAID)),
    "lists in lists": ("chat.completions", chat(b'{"content": [[{"text": %b}]]}' % SAID)),
    "an identifier that is none": ("completions", b'{"id": %b, "choices": []}' % SAID),
    "binary data that is none": ("chat.completions", chat(b'{"audio": {"data": %b}}' % SAID)),
    "the detail of an error": ("chat.completions", b'{"detail": %b}' % SAID),
    "an unknown block": ("messages", b'{"type": "message", "content": [{"type": "aside", "said": %b}]}' % SAID),
    "an unknown item": ("responses", b'{"object": "response", "output": [{"type": "aside", "said": %b}]}' % SAID),
    "an annotation": (
        "responses",
        b'{"object": "response", "output": [{"type": "message", "content": [{"type": "output_text", "text": "a",'
        b' "annotations": [{"type": "url_citation", "url": "https://x.org", "title": %b}]}]}]}' % SAID,
    ),
    "beside a vector": ("embeddings", b'{"data": [{"embedding": [0.5], "index": 0, "input": %b}]}' % SAID),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
async def test_a_text_that_its_api_does_not_know_is_shown_and_can_be_replaced(name: str) -> None:
    api, document = SHOWN[name]
    reviewers = FakeReviewers()
    reviewers.say = seeing
    blocked, _ = way(reviewers, api=api)
    with pytest.raises(Withheld) as withheld:
        await blocked.whole(200, [], document)
    assert withheld.value.blocked

    def redacting(review: ResponseReview) -> Verdict:
        texts = tuple(TextEdit(part=text.part, text=text.text.replace(KEY, "*")) for text in review.texts)
        return Verdict(request_id=review.request_id, action="replace", texts=texts)

    reviewers.say = redacting
    redacted, _ = way(reviewers, api=api)
    _, body = await redacted.whole(200, [], document)
    assert json.loads(body) == json.loads(document.replace(SAID, b'"*"'))


async def test_text_that_names_spells_or_repeats_is_not_shown() -> None:
    response = {
        "id": "resp-1", "object": "response", "model": "m", "instructions": "Be brief.", "metadata": {"a b": "c d"},
        "tools": [{"type": "function", "description": "Looks it up."}], "output": [],
    }  # fmt: skip
    spelt = {"id": "c", "choices": [{"message": {"content": "a"}, "logprobs": {"content": [{"token": "a b"}]}}]}
    for api, document, shown in (("responses", response, []), ("chat.completions", spelt, ["a"])):
        reviewers = FakeReviewers()
        passed, _ = way(reviewers, api=api)
        await passed.whole(200, [], json.dumps(document).encode())
        assert [text.text for text in reviewers.asked[0].texts] == shown


async def test_an_answer_without_a_body_has_nothing_to_read() -> None:
    passed, record = way(FakeReviewers())
    assert await passed.whole(204, [], b"") == ([], b"")
    assert [report.outcome for report in record.stages] == ["passed"]


def event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


def delta(text: bytes) -> bytes:
    return b'{"id":"c","choices":[{"index":0,"delta":{"content":%b}}]}' % text


UNREADABLE_EVENTS = {
    "text": b"data: %b\n\n" % KEY.encode(),
    "a field of no meaning": b"note: %b\n\n" % SAID,
    "a comment": b": %b MIIEvQ==\n\n" % KEY.encode(),
    "the name of an event": b"event: %b\ndata: {}\n\n" % KEY.encode(),
    "a list": event(b"[%b]" % delta(SAID)),
    "the delta twice": event(b'{"choices":[{"index":0,"delta":{"content":%b},"delta":{"content":"fine"}}]}' % SAID),
    "cut off": event(delta(SAID))[:-6],
    "a document": delta(SAID),
    "two documents": event(delta(b'"fine"') + b"\ndata: " + delta(SAID)),
}


async def streamed(answer: AnswerReview, data: bytes) -> bytes:
    async def out() -> AsyncIterator[bytes]:
        async for left in answer.push(data):
            yield left
        async for left in answer.finish(b""):
            yield left

    return b"".join([left async for left in out()])


@pytest.mark.parametrize("mode", ["buffer", "window"])
@pytest.mark.parametrize("name", UNREADABLE_EVENTS)
async def test_an_event_that_cannot_be_read_follows_on_error(name: str, mode: str) -> None:
    stream = event(delta(b'"Here: "')) + UNREADABLE_EVENTS[name]
    reviewers = FakeReviewers()
    reviewers.say = seeing
    denied, record = way(reviewers, mode=mode)
    denied.begin(200, [])
    with pytest.raises(Withheld) as withheld:
        await streamed(denied, stream)
    assert (withheld.value.code, withheld.value.blocked) == ("answer_unreadable", False)
    assert [report.outcome for report in record.stages] == ["failed"]

    allowed, record = way(reviewers, on_error="allow", mode=mode)
    allowed.begin(200, [])
    assert await streamed(allowed, stream + stream) == stream + stream
    assert record.level == "degraded"
    assert [report.outcome for report in record.stages] == ["skipped"]


async def test_an_unknown_text_of_a_stream_is_seen_however_it_is_cut() -> None:
    def noted(piece: str) -> bytes:
        return event(json.dumps({"choices": [{"index": 0, "delta": {"content": "word ", "aside": piece}}]}).encode())

    reviewers = FakeReviewers()
    reviewers.say = seeing
    answer, _ = way(reviewers, mode="window")
    answer.begin(200, [])
    left: list[bytes] = []

    async def pass_all() -> None:
        for piece in (*[""] * 300, *KEY, *[""] * 300):
            left.extend([out async for out in answer.push(noted(piece))])

    with pytest.raises(Withheld):
        await pass_all()
    assert '"aside": "-"' not in b"".join(left).decode()


async def test_one_unknown_text_does_not_hold_up_the_rest_of_a_stream() -> None:
    answer, record = way(FakeReviewers(), mode="window")
    answer.begin(200, [])
    left = b""
    for data in (event(b'{"choices":[],"comment":"a route"}'), *[event(delta(b'"some words "'))] * 100):
        left += b"".join([out async for out in answer.push(data)])
    assert left.count(b"some words") > 30
    assert [report.outcome for report in record.stages] == ["passed"]


@pytest.mark.parametrize(
    "data",
    [
        b"data: [DONE]\n\n", b": OPENROUTER PROCESSING\n\n", b": ping\n\n", b"retry: 3000\n\n", b"\n\n",
        b"event: response.created\nid: 7\ndata: {}\n\n", b'event: ping\r\ndata: {"type": "ping"}\r\n\r\n',
    ],
)  # fmt: skip
async def test_data_that_keeps_a_stream_going_passes(data: bytes) -> None:
    answer, record = way(FakeReviewers(), mode="window")
    answer.begin(200, [])
    assert await streamed(answer, data) == data
    assert [report.outcome for report in record.stages] == ["passed"]


@pytest.mark.parametrize(("data", "stream"), [(SAID, False), (event(SAID), True), (event(delta(SAID)), True)])
async def test_a_stage_after_the_last_byte_has_failed_where_it_could_not_read(data: bytes, stream: bool) -> None:
    reviewers = FakeReviewers()
    reviewers.say = seeing
    answer, record = way(reviewers, mode="after")
    record.stream = stream
    answer.note_sent_bytes(data)
    (report,) = await answer.after()
    assert report.outcome == ("blocked" if b"choices" in data else "failed")
