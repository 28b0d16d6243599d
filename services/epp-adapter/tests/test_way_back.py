"""Stages on the way back see an answer before Envoy's client does, or after; errors too."""

import json

import pytest
from msgspec.structs import replace

from pointsman_contracts.journey import AnswerUse, BodyEdit, HeaderEdit, Stage
from pointsman_contracts.message import read_fields
from pointsman_contracts.reply import Rejection
from pointsman_contracts.response import RequestRejected, ResponseCompleted, ResponseReviewed
from pointsman_contracts.response_stage import ResponseReview, TextEdit, Verdict
from pointsman_edge.reviewing.reviewers import NoVerdict
from pointsman_testing import eventually
from pointsman_testing.ext_proc import BUFFERED, FULL_DUPLEX, NONE, STREAMED, Exchange
from pointsman_testing.picker import PickerUnderTest, StartPicker

BODY = b'{"model":"llama-8b","messages":[]}'
DOCUMENT = json.dumps({"id": "c", "choices": [{"index": 0, "message": {"content": "my secret"}}]}).encode()
STREAM = {"content-type": "text/event-stream"}
DONE = b"data: [DONE]\n\n"


def delta(text: str) -> bytes:
    return b"data: " + json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def stage(name: str = "guard", *, on_error: str = "deny", mode: str = "buffer", **use: object) -> Stage:
    answer = read_fields(AnswerUse, {"mode": mode, "content": "text"} | use)
    return Stage(service=name, on_error=on_error, answer=answer)


WINDOW = stage(mode="window", window=4, overlap=2)


def redacting(review: ResponseReview) -> Verdict:
    edits = [TextEdit(part=text.part, text=text.text.replace("secret", "*")) for text in review.texts]
    headers = (HeaderEdit(name="x-checked", value="yes"), HeaderEdit(name="x-inner"))
    return Verdict(request_id=review.request_id, action="replace", texts=tuple(edits), headers=headers)


def blocking(review: ResponseReview) -> Verdict:
    bad = any("secret" in text.text for text in review.texts)
    return Verdict(request_id=review.request_id, action="block" if bad else "pass", message="Not this.")


def failing(review: ResponseReview) -> Verdict:
    del review
    raise NoVerdict("was too slow", 504, "stage_timeout")


async def answering(picker: PickerUnderTest, modes: tuple[int, int]) -> Exchange:
    exchange = picker.client.open()
    await exchange.request(modes=modes, headers={"x-request-id": "mine"})
    if modes[0] == BUFFERED:
        await exchange.reply()
    await exchange.body(BODY)
    await exchange.replies(1 if modes[0] == BUFFERED else 2)
    return exchange


async def done(picker: PickerUnderTest) -> ResponseCompleted:
    (completed,) = await picker.completed()
    return completed


duplex_and_buffered = pytest.mark.parametrize("modes", [(FULL_DUPLEX, FULL_DUPLEX), (BUFFERED, STREAMED)])


async def test_in_full_duplex_a_document_waits_whole_with_its_head(start_picker: StartPicker) -> None:
    picker = await start_picker()
    picker.stages.changes["response"] = (stage(),)
    picker.reviewers.say = redacting
    exchange = await answering(picker, (FULL_DUPLEX, FULL_DUPLEX))
    await exchange.response(headers={"content-length": str(len(DOCUMENT)), "x-inner": "1"})
    await exchange.body(DOCUMENT[:10], end=False, of="response")
    await exchange.body(DOCUMENT[10:], of="response")
    head, piece = await exchange.replies(2)
    assert (head.kind, head.set["x-checked"], head.removed) == (
        "response_headers",
        "yes",
        {"content-length", "x-inner"},
    )
    assert json.loads(piece.body or b"")["choices"][0]["message"]["content"] == "my *"
    assert piece.end
    completed = await done(picker)
    assert [(report.stage, report.outcome) for report in completed.stages] == [("guard", "replaced")]
    assert completed.bytes_out == len(piece.body or b"")


async def test_otherwise_envoy_must_send_it_whole_and_takes_headers_with_the_body(
    start_picker: StartPicker,
) -> None:
    picker = await start_picker()
    picker.stages.changes["response"] = (stage(),)
    picker.reviewers.say = redacting
    exchange = await answering(picker, (BUFFERED, STREAMED))
    await exchange.response(headers={"content-length": str(len(DOCUMENT)), "x-inner": "1"})
    head = await exchange.reply()
    assert (head.mode, head.removed) == (BUFFERED, {"content-length"})
    await exchange.body(DOCUMENT, of="response")
    piece = await exchange.reply()
    assert (piece.set, piece.removed) == ({"x-checked": "yes"}, {"x-inner"})
    assert json.loads(piece.body or b"")["choices"][0]["message"]["content"] == "my *"


@duplex_and_buffered
async def test_a_blocked_document_is_an_error_that_tells_nothing_of_it(
    start_picker: StartPicker, modes: tuple[int, int]
) -> None:
    picker = await start_picker()
    picker.stages.changes["response"] = (stage(),)
    picker.reviewers.say = blocking
    exchange = await answering(picker, modes)
    await exchange.response()
    if modes[0] == BUFFERED:
        await exchange.reply()
    await exchange.body(DOCUMENT, of="response")
    refused = await exchange.reply()
    assert (refused.kind, refused.status) == ("immediate_response", 403)
    assert json.loads(refused.body or b"")["error"]["message"] == "Not this."
    completed = await done(picker)
    assert (completed.outcome, completed.status) == ("blocked", 403)


@pytest.mark.parametrize(("on_error", "status"), [("deny", 504), ("allow", 200)])
async def test_a_stage_that_fails_follows_its_on_error(start_picker: StartPicker, on_error: str, status: int) -> None:
    picker = await start_picker()
    picker.stages.changes["response"] = (stage(on_error=on_error),)
    picker.reviewers.say = failing
    exchange = await answering(picker, (FULL_DUPLEX, FULL_DUPLEX))
    await exchange.response()
    await exchange.body(DOCUMENT, of="response")
    reply = await exchange.reply()
    if on_error == "deny":
        assert (reply.kind, reply.status) == ("immediate_response", status)
        return
    assert reply.set["x-pointsman-level"] == "degraded"
    assert (await exchange.reply()).body == DOCUMENT
    assert (await done(picker)).level == "degraded"


@duplex_and_buffered
async def test_no_window_of_a_stream_goes_on_before_it_has_passed(
    start_picker: StartPicker, modes: tuple[int, int]
) -> None:
    picker = await start_picker()
    picker.stages.changes["response"] = (WINDOW,)
    exchange = await answering(picker, modes)
    await exchange.response(headers=STREAM)
    if modes[0] == BUFFERED:
        assert (await exchange.reply()).mode == STREAMED
    out: list[bytes] = []
    for text in ("abc", "def", "ghi"):
        await exchange.body(delta(text), end=False, of="response")
        if modes[0] == BUFFERED:
            out.append((await exchange.reply()).body or b"")
    await exchange.body(DONE, of="response")
    if modes[0] == FULL_DUPLEX:
        assert (await exchange.reply()).kind == "response_headers"
    while not out or not out[-1].endswith(DONE):
        out.append((await exchange.reply()).body or b"")
    assert b"".join(out) == delta("abc") + delta("def") + delta("ghi") + DONE
    assert len([piece for piece in out if piece]) > 1
    shown = [review.texts[0].text for review in picker.reviewers.asked if review.texts]
    assert shown[0] == "abcdef"
    assert (await done(picker)).outcome == "ok"


@duplex_and_buffered
async def test_a_stream_that_is_blocked_later_ends_as_filtered_and_nothing_follows(
    start_picker: StartPicker, modes: tuple[int, int]
) -> None:
    picker = await start_picker()
    picker.stages.changes["response"] = (WINDOW,)
    picker.reviewers.say = blocking
    exchange = await answering(picker, modes)
    await exchange.response(headers=STREAM)
    buffered = modes[0] == BUFFERED
    if buffered:
        await exchange.reply()
    out = b""
    for text in ("harmless", "words", "secret"):
        await exchange.body(delta(text), end=False, of="response")
        if buffered:
            out += (await exchange.reply()).body or b""
    if buffered:
        await exchange.body(delta("more of it"), end=False, of="response")
        assert (await exchange.reply()).body == b""
        await exchange.body(DONE, of="response")
        assert (await exchange.reply()).body == b""
    else:
        assert (await exchange.reply()).kind == "response_headers"
        while not (piece := await exchange.reply()).end:
            out += piece.body or b""
        out += piece.body or b""
    assert b"harmless" in out
    assert b"secret" not in out
    assert out.endswith(DONE)
    assert b'"finish_reason":"content_filter"' in out
    completed = await done(picker)
    assert (completed.outcome, completed.status) == ("blocked", 200)


async def test_a_stage_that_sees_a_stream_whole_has_envoy_hold_it(start_picker: StartPicker) -> None:
    picker = await start_picker()
    picker.stages.changes["response"] = (stage(),)
    picker.reviewers.say = blocking
    exchange = await answering(picker, (BUFFERED, STREAMED))
    await exchange.response(headers=STREAM)
    assert (await exchange.reply()).mode == BUFFERED
    await exchange.body(delta("my ") + delta("secret") + DONE, of="response")
    assert (await exchange.reply()).status == 403


async def test_a_stage_that_only_sets_headers_lets_envoy_stream(start_picker: StartPicker) -> None:
    picker = await start_picker()
    picker.stages.changes["response"] = (stage(content="none"),)
    picker.reviewers.say = lambda review: Verdict(
        request_id=review.request_id,
        headers=(HeaderEdit(name="x-label", value="seen"),),
        fields=(BodyEdit(field="label", value=1),),
    )
    exchange = await answering(picker, (FULL_DUPLEX, FULL_DUPLEX))
    await exchange.response(headers=STREAM)
    await exchange.body(delta("one "), end=False, of="response")
    head, piece = await exchange.replies(2)
    assert head.set["x-label"] == "seen"
    assert json.loads((piece.body or b"").removeprefix(b"data: "))["label"] == 1
    assert len(picker.reviewers.asked) == 1


async def test_stages_after_the_last_byte_see_the_answer_that_left(start_picker: StartPicker) -> None:
    picker = await start_picker()
    picker.stages.changes["response"] = (stage("audit", mode="after"),)
    exchange = await answering(picker, (BUFFERED, STREAMED))
    await exchange.response(headers=STREAM)
    assert (await exchange.reply()).mode is None, "the stream has to pass here"
    await exchange.body(delta("one ") + delta("two") + DONE, of="response")
    await exchange.reply()
    await eventually(lambda: picker.reviewers.asked)
    [review] = picker.reviewers.asked
    assert (review.outcome, [text.text for text in review.texts]) == ("ok", ["one two"])
    [told] = await eventually(lambda: picker.events.of(ResponseReviewed))
    assert (told.request_id, [(report.stage, report.outcome) for report in told.stages]) == (
        review.request_id,
        [("audit", "passed")],
    )


async def test_errors_pass_the_stages_of_every_answer(start_picker: StartPicker) -> None:
    stages = {"postprocessing": ["note"], "stages": {"note": {"mode": "buffer"}}}
    picker = await start_picker(config=stages)
    picker.reviewers.say = lambda review: Verdict(
        request_id=review.request_id, headers=(HeaderEdit(name="x-noted", value="1"),)
    )
    exchange = picker.client.open()
    await exchange.request(headers={"content-type": "text/plain"})
    refused = await exchange.reply()
    assert (refused.status, refused.set["x-noted"]) == (415, "1")
    assert picker.reviewers.asked[0].code == "unsupported_content_type"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("on_error", ["deny", "allow"])
async def test_an_answer_too_large_to_be_held_for_a_stage_follows_its_on_error(
    start_picker: StartPicker, on_error: str, stream: bool
) -> None:
    picker = await start_picker(config={"edge": {"max_held_answer": "4KiB"}})
    picker.stages.changes["response"] = (stage(on_error=on_error),)
    exchange = await answering(picker, (FULL_DUPLEX, FULL_DUPLEX))
    pieces = [delta("secret " * 100) for _ in range(10)]
    await exchange.response(headers=STREAM if stream else {})
    for piece in pieces[:6]:
        await exchange.body(piece, end=False, of="response")
    if on_error == "deny":
        reply = await exchange.reply()
        assert (reply.status, json.loads(reply.body or b"")["error"]["code"]) == (502, "answer_too_large")
        assert (await done(picker)).outcome == "blocked"
        return
    for piece in pieces[6:]:
        await exchange.body(piece, end=piece is pieces[-1], of="response")
    completed = await done(picker)
    assert (await exchange.reply()).set["x-pointsman-level"] == "degraded"
    out = b""
    while out != b"".join(pieces):
        out += (await exchange.reply()).body or b""
    assert [(report.outcome, completed.level) for report in completed.stages] == [("skipped", "degraded")]
    assert picker.reviewers.asked == []


async def test_a_stage_that_cant_see_answers_is_missing_and_one_that_insists_is_503(start_picker: StartPicker) -> None:
    picker = await start_picker()
    for on_error, kind in (("deny", "immediate_response"), ("allow", "request_headers")):
        picker.stages.changes["response"] = (stage(on_error=on_error),)
        exchange = picker.client.open()
        await exchange.request(modes=(FULL_DUPLEX, NONE))
        await exchange.body(BODY)
        assert (await exchange.reply()).kind == kind
        exchange.reset()


AUDITED = {"postprocessing": ["audit"], "stages": {"audit": {"mode": "after", "content": "none"}}}
NO = Rejection(
    request_id="", stage="guard", status=400, type="invalid_request_error", code="no", message="No.", model="llama-8b"
)


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/v1/chat/completions", (400, "no", "llama-8b")),
        ("POST", "/v1/nothing", (404, "unknown_path", None)),
        ("GET", "/v1/chat/completions", (405, "method_not_allowed", None)),
        ("DELETE", "/v1/models", (405, "method_not_allowed", None)),
        ("POST", "/v1%2fcompletions", (400, "invalid_path", None)),
    ],
)
async def test_every_request_is_audited_with_its_status_code_and_model(
    start_picker: StartPicker, method: str, path: str, told: tuple[int, str, str | None]
) -> None:
    picker = await start_picker(config=AUDITED)
    picker.stages.reply = lambda request: replace(NO, request_id=request.request_id)
    exchange = picker.client.open()
    await exchange.request(method=method, path=path)
    if told[1] == "no":
        await exchange.body(BODY)
    refused = await exchange.reply()
    [review] = await eventually(lambda: picker.reviewers.asked)
    [rejected] = await eventually(lambda: picker.events.of(RequestRejected))
    assert refused.status == told[0]
    assert (review.outcome, review.status, review.code, review.model) == ("rejected", *told)
    assert (rejected.status, rejected.code, rejected.model) == told
    assert (await done(picker)).status == told[0]


async def test_an_answer_that_is_withheld_is_audited_with_the_code_of_that(start_picker: StartPicker) -> None:
    picker = await start_picker(config=AUDITED)
    picker.stages.changes["response"] = (stage(),)
    picker.reviewers.say = lambda review: replace(blocking(review), code="no")
    exchange = await answering(picker, (BUFFERED, BUFFERED))
    await exchange.response()
    await exchange.reply()
    await exchange.body(DOCUMENT, of="response")
    assert (await exchange.reply()).status == 403
    review = await eventually(lambda: next((one for one in picker.reviewers.asked if one.stage == "audit"), None))
    assert (review.outcome, review.code, review.model) == ("blocked", "no", "llama-8b")
