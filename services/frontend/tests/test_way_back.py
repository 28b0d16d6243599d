"""Stages on the way back see an answer before the client does, or after; errors too."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from pointsman_contracts.journey import AnswerUse, BodyEdit, HeaderEdit, Stage
from pointsman_contracts.message import read_fields
from pointsman_contracts.reply import Rejection
from pointsman_contracts.response import RequestRejected, ResponseCompleted, ResponseReviewed
from pointsman_contracts.response_stage import ResponseReview, TextEdit, Verdict
from pointsman_edge.reviewing.reviewers import NoVerdict
from pointsman_testing import eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import RawResponse, post, raw_connection, raw_request
from pointsman_testing.scripted_engine import Received, ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'
WHOLE = json.dumps({"id": "c", "choices": [{"index": 0, "message": {"content": "my secret"}}]}, indent=1).encode()
TOO_SLOW = NoVerdict("was too slow", 504, "stage_timeout")
Say = Callable[[ResponseReview], Verdict]


def stage(
    name: str = "guard", *, on_error: str = "deny", mode: str = "buffer", shadow: bool = False, **use: object
) -> Stage:
    answer = read_fields(AnswerUse, {"mode": mode, "content": "text"} | use)
    return Stage(service=name, on_error=on_error, mode="shadow" if shadow else "enforce", answer=answer)


def delta(text: str) -> bytes:
    return b"data: " + json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def says(**verdict: object) -> Say:
    return lambda review: read_fields(Verdict, {"request_id": review.request_id} | verdict)


def redacting(review: ResponseReview) -> Verdict:
    edits = [TextEdit(part=text.part, text=text.text.replace("secret", "*")) for text in review.texts]
    return Verdict(request_id=review.request_id, action="replace", texts=tuple(edits), instance="g-1", note="one")


def failing(review: ResponseReview) -> Verdict:
    raise TOO_SLOW


async def answered(edge: EdgeUnderTest) -> tuple[RawResponse, ResponseCompleted]:
    answer = await raw_request(edge.url, post(CHAT, BODY))
    await eventually(lambda: edge.events.of(ResponseCompleted))
    return answer, edge.events.of(ResponseCompleted)[-1]


async def whole(request: Received) -> None:
    await request.answer(WHOLE)


async def words(request: Received) -> None:
    await request.begin_stream()
    for text in ("my ", "sec", "ret ", "and ", "more ", "and ", "more"):
        await request.chunk(delta(text))
    await request.chunk(b"data: [DONE]\n\n")
    await request.chunk(b"")


@pytest.mark.requirement("S0-58")
async def test_stages_run_in_order_and_each_sees_what_the_one_before_left(start_edge: StartEdge) -> None:
    async with ScriptedEngine(whole) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage("one"), stage("two"))
        edge.reviewers.say = redacting
        answer, done = await answered(edge)
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == "my *"
    assert [(review.stage, review.texts[0].text) for review in edge.reviewers.asked] == [
        ("one", "my secret"), ("two", "my *"),
    ]  # fmt: skip
    assert [(report.stage, report.outcome, report.instance) for report in done.stages] == [
        ("one", "replaced", "g-1"), ("two", "replaced", "g-1"),
    ]  # fmt: skip
    review = edge.reviewers.asked[0]
    assert (review.api, review.status, review.mode, review.last) == ("chat.completions", 200, "buffer", True)


async def test_a_stage_that_sees_bytes_sees_those_that_the_one_before_left(start_edge: StartEdge) -> None:
    async with ScriptedEngine(whole) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage("one"), stage("two", content="body"))
        edge.reviewers.say = redacting
        answer, _ = await answered(edge)
    seen = edge.reviewers.asked[1].body
    assert seen is not None
    assert json.loads(seen)["choices"][0]["message"]["content"] == "my *"
    assert answer.body == seen


async def test_an_answer_that_passes_is_byte_for_byte_the_engines(start_edge: StartEdge) -> None:
    async with ScriptedEngine(whole) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(),)
        answer, done = await answered(edge)
    assert (answer.status, answer.body) == (200, WHOLE)
    assert [report.outcome for report in done.stages] == ["passed"]


async def test_a_blocked_answer_is_a_403_that_tells_nothing_of_it(start_edge: StartEdge) -> None:
    async with ScriptedEngine(whole) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(), stage("never"))
        edge.reviewers.say = says(action="block", message="Not this.")
        answer, done = await answered(edge)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], error["message"]) == (403, "content_filter", "Not this.")
    assert len(edge.reviewers.asked) == 1
    assert (done.status, done.outcome) == (403, "blocked")


async def test_headers_are_changed_but_for_what_frames_the_answer(start_edge: StartEdge) -> None:
    edits = [HeaderEdit(name="X-Checked", value="yes\r\nx-other: 1"), HeaderEdit(name="content-length", value="1")]
    async with ScriptedEngine(whole) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(content="none"),)
        edge.reviewers.say = says(headers=edits)
        answer, _ = await answered(edge)
    assert (answer.header("x-checked"), answer.body) == ("yes  x-other: 1", WHOLE)
    assert edge.reviewers.asked[0].texts == ()


@pytest.mark.parametrize(("on_error", "status", "outcome"), [("deny", 504, "failed"), ("allow", 200, "skipped")])
async def test_a_stage_that_fails_follows_its_on_error(
    start_edge: StartEdge, on_error: str, status: int, outcome: str
) -> None:
    async with ScriptedEngine(whole) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(on_error=on_error),)
        edge.reviewers.say = failing
        answer, done = await answered(edge)
    assert answer.status == status
    assert [(report.outcome, report.note) for report in done.stages] == [(outcome, "was too slow")]
    if on_error == "allow":
        assert (answer.body, done.level, answer.header("x-pointsman-level")) == (WHOLE, "degraded", "degraded")


@pytest.mark.parametrize("part", ["0/text", "0/tool_calls/0"])
async def test_a_stage_that_changes_what_it_was_not_shown_has_failed(start_edge: StartEdge, part: str) -> None:
    async with ScriptedEngine(whole) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(),)
        edge.reviewers.say = says(action="replace", texts=[TextEdit(part=part, text="*")])
        answer, done = await answered(edge)
    assert (answer.status, done.outcome) == (500, "blocked")
    assert b"secret" not in answer.body
    assert (edge.reviewers.failures, edge.reviewers.worked_for) == (
        [("guard", "replaced a text that it didn't get")], [],
    )  # fmt: skip


CALLED = {"type": "message", "content": [
    {"type": "text", "text": "my secret"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"key": "secret"}},
]}  # fmt: skip
OPENED = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "my secret"}},
    {"type": "content_block_start", "index": 1, "content_block": CALLED["content"][1]},
    {"type": "message_stop"},
]  # fmt: skip
STREAMED = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in OPENED).encode()


@pytest.mark.parametrize(("on_error", "status"), [("deny", 500), ("allow", 200)])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_stage_that_puts_no_json_where_json_belongs_has_failed_and_changed_nothing(
    start_edge: StartEdge, stream: bool, on_error: str, status: int
) -> None:
    async def call(request: Received) -> None:
        if not stream:
            await request.answer(json.dumps(CALLED).encode())
            return
        await request.begin_stream()
        await request.chunk(STREAMED)
        await request.chunk(b"")

    def say(review: ResponseReview) -> Verdict:
        edits = [TextEdit(part=text.part, text="[REPLACED]") for text in review.texts]
        headers = (HeaderEdit(name="x-checked", value="yes"),)
        return Verdict(request_id=review.request_id, action="replace", texts=tuple(edits), headers=headers)

    async with ScriptedEngine(call) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(on_error=on_error),)
        edge.reviewers.say = say
        answer = await raw_request(edge.url, post("/v1/messages", BODY))
        await eventually(lambda: edge.events.of(ResponseCompleted))
    (report,) = edge.events.of(ResponseCompleted)[-1].stages
    assert answer.status == status
    assert b"[REPLACED]" not in answer.body
    assert (report.outcome, report.note) == (
        "skipped" if on_error == "allow" else "failed", "replaced JSON by text that isn't JSON",
    )  # fmt: skip
    assert (edge.reviewers.failures, edge.reviewers.worked_for) == ([("guard", report.note)], [])
    if on_error == "allow":
        assert answer.body == (STREAMED if stream else json.dumps(CALLED).encode())
        assert answer.header("x-checked") is None


async def test_no_byte_of_a_stream_leaves_before_it_has_passed(start_edge: StartEdge) -> None:
    """The stage answers about the second window only after the client has read the first."""
    read = asyncio.Event()
    shown: list[str] = []

    async with ScriptedEngine(words) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(mode="window", window=9, overlap=6),)

        def say(review: ResponseReview) -> Verdict:
            shown.append("".join(text.text for text in review.texts))
            assert read.is_set() == (review.number > 1)
            read.set()
            return redacting(review)

        edge.reviewers.say = say
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            answer = await client.response()
    assert answer.status == 200
    assert b"secret" not in answer.body
    texts = [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line.startswith("data: {")]
    assert "".join(text["choices"][0]["delta"]["content"] for text in texts) == "my * and more and more"
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert len(shown) > 2


@pytest.mark.parametrize("behind", [False, True])
async def test_a_stage_that_only_sets_headers_holds_no_stream(start_edge: StartEdge, behind: bool) -> None:
    """The engine goes on only after the client has read what came; behind a stage that looks, too."""
    read = asyncio.Event()

    async def halting(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(delta("first words ") + delta("of a stream "))
        await read.wait()
        await request.chunk(delta("and the rest") + b"data: [DONE]\n\n")
        await request.chunk(b"")

    async with ScriptedEngine(halting) as engine:
        edge = await start_edge(engine.url)
        before = (stage(mode="window", window=9, overlap=1),) if behind else ()
        edge.stages.changes["response"] = (*before, stage("label", content="none"))
        edge.reviewers.say = lambda review: says(
            headers=[HeaderEdit(name="x-label", value="seen")] if review.stage == "label" else []
        )(review)
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            begun = await client.read_until(b"first")
            read.set()
            rest = await client.read_until(b"[DONE]")
    assert b"x-label: seen" in begun
    assert b"rest" in rest
    assert [(review.number, review.last) for review in edge.reviewers.asked if review.stage == "label"] == [(1, True)]


FIELDS = [
    BodyEdit(field="label", value={"seen": True}),
    BodyEdit(field="id", value="other"),
    BodyEdit(field="object", remove=True),
]
PRICED = b'{"id": "c", "object": "chat.completion",  "cost": 1.10, "choices": []}'


@pytest.mark.parametrize("content", ["none", "text", "body"])
async def test_a_stage_changes_fields_of_the_answers_json_and_every_other_byte_stays(
    start_edge: StartEdge, content: str
) -> None:
    async def priced(request: Received) -> None:
        await request.answer(PRICED)

    shown: list[bytes | None] = []

    def say(review: ResponseReview) -> Verdict:
        shown.append(review.body)
        return says(fields=FIELDS if review.stage == "guard" else [])(review)

    async with ScriptedEngine(priced) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(content=content), stage("later", content="body"))
        edge.reviewers.say = say
        answer, done = await answered(edge)
    assert answer.body == b'{"id": "other",  "cost": 1.10, "choices": [],"label":{"seen":true}}'
    assert answer.header("content-length") == str(len(answer.body))
    assert shown[-1] == answer.body
    assert (done.outcome, answer.status) == ("ok", 200)


@pytest.mark.parametrize(
    "use", [{"content": "none"}, {"content": "text"}, {"mode": "window", "window": 9, "overlap": 2}]
)
async def test_a_stage_changes_fields_of_a_streams_events(start_edge: StartEdge, use: dict[str, object]) -> None:
    async with ScriptedEngine(words) as engine:
        edge = await start_edge(engine.url)
        # The parameters of the test are of different types.
        edge.stages.changes["response"] = (stage(**use), stage("later", mode="window", window=9, overlap=2))  # type: ignore[arg-type]
        edge.reviewers.say = lambda review: says(fields=FIELDS if review.stage == "guard" else [])(review)
        answer, done = await answered(edge)
    events = [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line.startswith("data: {")]
    assert [(event["id"], event["label"]) for event in events] == [("other", {"seen": True})] * 7
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == "my secret and more and more"
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert {report.outcome for report in done.stages} == {"passed"}


async def test_fields_of_what_is_no_json_object_are_the_stages_failure(start_edge: StartEdge) -> None:
    async def listed(request: Received) -> None:
        await request.answer(b"[1]")

    async with ScriptedEngine(listed) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(content="none", on_error="allow"),)
        edge.reviewers.say = says(fields=FIELDS)
        answer, done = await answered(edge)
    assert (answer.body, done.stages[0].outcome) == (b"[1]", "skipped")
    assert done.stages[0].note == "set fields of a response that isn't a JSON object"


async def test_a_stream_that_is_blocked_at_once_is_an_error_with_a_status(start_edge: StartEdge) -> None:
    async with ScriptedEngine(words) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(mode="window", window=9, overlap=6),)
        edge.reviewers.say = says(action="block")
        answer, done = await answered(edge)
    assert (answer.status, done.outcome) == (403, "blocked")
    assert answer.header("content-type") == "application/json"


ENDS = {
    "/v1/chat/completions": b'"finish_reason":"content_filter"}]}\n\ndata: [DONE]\n\n',
    "/v1/completions": b'"finish_reason":"content_filter"}]}\n\ndata: [DONE]\n\n',
    "/v1/messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
}


@pytest.mark.parametrize("path", ENDS)
async def test_a_stream_that_is_blocked_later_ends_as_its_api_says(start_edge: StartEdge, path: str) -> None:
    async def long(request: Received) -> None:
        await request.begin_stream()
        for number in range(12):
            text = f"word {number:02} "
            if path == "/v1/messages":
                document: dict[str, object] = {"type": "content_block_delta", "index": 0, "delta": {"text": text}}
            elif path == "/v1/completions":
                document = {"choices": [{"index": 0, "text": text}]}
            else:
                document = {"choices": [{"index": 0, "delta": {"content": text}}]}
            await request.chunk(b"data: " + json.dumps(document).encode() + b"\n\n")
        await request.gone.wait()

    async with ScriptedEngine(long) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(mode="window", window=20, overlap=4),)
        edge.reviewers.say = lambda review: says(action="block" if review.number == 3 else "pass")(review)
        answer = await raw_request(edge.url, post(path, BODY))
        await eventually(lambda: edge.events.of(ResponseCompleted))
    assert answer.status == 200
    assert answer.complete
    assert b"word 00" in answer.body
    assert b"word 11" not in answer.body
    assert answer.body.endswith(ENDS[path])
    assert edge.events.of(ResponseCompleted)[-1].outcome == "blocked"


async def test_stages_after_the_last_byte_get_the_whole_answer_and_no_client_waits(start_edge: StartEdge) -> None:
    async with ScriptedEngine(words) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (
            stage("cache", mode="after", content="body"), stage("texts", mode="after"),
        )  # fmt: skip
        edge.reviewers.say = failing
        answer, done = await answered(edge)
        await eventually(lambda: len(edge.reviewers.asked) == 2)
    assert (answer.status, done.outcome, done.stages) == (200, "ok", ())
    cache, texts = edge.reviewers.asked
    assert (cache.body, cache.outcome, cache.mode) == (answer.body, "ok", "after")
    assert texts.texts[0].text == "my secret and more and more"


@pytest.mark.requirement("S3-1")
async def test_the_verdicts_of_stages_after_the_last_byte_are_an_event_of_their_own(start_edge: StartEdge) -> None:
    def say(review: ResponseReview) -> Verdict:
        if review.stage == "gone":
            raise TOO_SLOW
        if review.stage == "cache":
            return says(note="n" * 600, instance="c-1")(review)
        return says(action="block", note="house: blocked secret", instance="g-1")(review)

    async with ScriptedEngine(whole) as engine:
        edge = await start_edge(engine.url, config={"postprocessing": [{"stage": "guard", "mode": "shadow"}]})
        edge.stages.changes["response"] = (
            stage("tried", mode="after", shadow=True),
            stage("audited", mode="after"),
            stage("gone", mode="after", shadow=True),
            stage("cache", mode="after"),
        )
        edge.reviewers.say = say
        answer, done = await answered(edge)
        (told,) = await eventually(lambda: edge.events.of(ResponseReviewed))
    assert (answer.status, answer.body, done.stages) == (200, WHOLE, ())
    assert (told.request_id, told.pool, told.source, told.sequence) == (done.request_id, done.pool, "edge-1", 1)
    assert [(report.stage, report.outcome, report.note, report.instance) for report in told.stages] == [
        ("tried", "shadow_blocked", "house: blocked secret", "g-1"),
        ("audited", "blocked", "house: blocked secret", "g-1"),
        ("gone", "failed", "was too slow", ""),
        ("cache", "passed", "n" * 512, "c-1"),
        ("guard", "shadow_blocked", "house: blocked secret", "g-1"),
    ]
    assert all(report.took_ms > 0 for report in told.stages)
    # The stages among themselves tell what they would have done, in shadow or not.
    assert [report.outcome for report in edge.reviewers.asked[-1].stages] == ["blocked", "blocked", "failed", "passed"]


async def test_without_stages_after_the_last_byte_there_is_no_such_event(start_edge: StartEdge) -> None:
    async with ScriptedEngine(whole) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(),)
        _, done = await answered(edge)
        await edge.stop()
    assert [report.stage for report in done.stages] == ["guard"]
    assert edge.events.of(ResponseReviewed) == []


@pytest.mark.requirement("S0-59")
@pytest.mark.requirement("S0-60")
@pytest.mark.requirement("S0-61")
async def test_a_profiles_own_stages_come_before_those_of_every_answer_and_are_asked_alike(
    start_edge: StartEdge,
) -> None:
    shared = {"stages": {"label": {"mode": "buffer", "content": "text"}}, "postprocessing": ["label"]}
    async with ScriptedEngine(whole) as engine:
        edge = await start_edge(engine.url, config=shared)
        await answered(edge)
        edge.stages.changes["response"] = (stage("own"),)
        await answered(edge)
    alone, own, after_own = edge.reviewers.asked
    assert [review.stage for review in edge.reviewers.asked] == ["label", "own", "label"]
    assert own.texts == after_own.texts == alone.texts
    assert replace(own, stage="label", deadline_ms=0) == replace(after_own, deadline_ms=0)


POST = {"stages": {"audit": {"content": "body"}, "label": {"mode": "buffer"}}, "postprocessing": ["audit", "label"]}


@pytest.mark.requirement("S0-63")
async def test_rejections_and_errors_pass_the_stages_of_every_answer_too(start_edge: StartEdge) -> None:
    edge = await start_edge(config=POST)
    edge.reviewers.say = says(headers=[HeaderEdit(name="x-label", value="seen")])
    edge.stages.reply = lambda request: Rejection(
        request_id=request.request_id, stage="guard", status=400, type="invalid_request_error", code="no", message="No."
    )
    rejected, done = await answered(edge)
    assert (rejected.status, rejected.header("x-label")) == (400, "seen")
    assert (done.outcome, [report.stage for report in done.stages]) == ("rejected", ["label"])
    malformed = await raw_request(edge.url, post(CHAT, b""))
    assert (malformed.status, malformed.header("x-label")) == (400, "seen")
    await eventually(lambda: len(edge.reviewers.asked) == 4)
    audits = [review for review in edge.reviewers.asked if review.stage == "audit"]
    assert {(review.status, review.outcome) for review in audits} == {(400, "rejected")}
    assert audits[0].body == rejected.body
    assert {review.code for review in edge.reviewers.asked if review.stage == "label"} == {"no", "empty_body"}


@pytest.mark.requirement("S0-63")
async def test_an_error_is_published_even_when_a_stage_fails_and_a_client_that_left_is_audited(
    start_edge: StartEdge,
) -> None:
    async def silent(request: Received) -> None:
        await request.gone.wait()

    async with ScriptedEngine(silent) as engine:
        edge = await start_edge(engine.url, config=POST)
        edge.reviewers.say = failing
        malformed = await raw_request(edge.url, post(CHAT, b""))
        assert malformed.status == 400
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, BODY))
            await eventually(lambda: engine.received)
        await eventually(lambda: any(review.outcome == "client_gone" for review in edge.reviewers.asked))


async def test_a_stream_that_breaks_off_keeps_unchecked_text(start_edge: StartEdge) -> None:
    async def cut(request: Received) -> None:
        await request.begin_stream()
        for text in ("word " * 5, "secret"):
            await request.chunk(delta(text))
        await eventually(lambda: edge.reviewers.asked)
        request.cut()

    async with ScriptedEngine(cut) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes["response"] = (stage(mode="window", window=20, overlap=0),)
        answer, done = await answered(edge)
    assert answer.body.startswith(delta("word " * 5))
    assert b"secret" not in answer.body
    assert b"engine_cut_off" in answer.body
    assert done.outcome == "cut_off"


HELD: dict[str, object] = {"edge": {"max_held_answer": "64KiB"}}
ENDING = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
LARGE = {
    "a document": b'{"choices":[{"index":0,"message":{"content":"' + b"secret " * 200_000 + b'"}}]}',
    "a small document": b'{"choices":[{"index":0,"message":{"content":"' + b"secret " * 20_000 + b'"}}]}',
    "one event": b'data: {"choices":[{"index":0,"delta":{"content":"' + b"secret " * 200_000 + b'"}}]}\n\n',
    "many events": b"".join((delta("secret") * 1_498, ENDING)),
    "events without text": b'data: {"choices":[]}\n\n' * 5_000,
}


def large(what: str) -> Callable[[Received], Awaitable[None]]:
    async def script(request: Received) -> None:
        content_type = "application/json" if "document" in what else "text/event-stream"
        await request.begin_stream(content_type=content_type)
        body = LARGE[what]
        for start in range(0, len(body), 30_000):
            await request.chunk(body[start : start + 30_000])
        await request.chunk(b"")

    return script


@pytest.mark.parametrize(("on_error", "mode"), [("deny", "buffer"), ("allow", "buffer"), ("allow", "window")])
@pytest.mark.parametrize("what", LARGE)
async def test_an_answer_too_large_to_be_held_for_a_stage_follows_its_on_error(
    start_edge: StartEdge, what: str, on_error: str, mode: str
) -> None:
    asked = stage("headers", content="none", mode=mode)
    async with ScriptedEngine(large(what)) as engine:
        edge = await start_edge(engine.url, config=HELD)
        edge.reviewers.say = lambda review: says(headers=[HeaderEdit(name="x-checked", value="yes")])(review)
        edge.stages.changes["response"] = (stage(on_error=on_error, mode=mode, window=2**30), asked)
        answer, done = await answered(edge)
    if on_error == "deny":
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "answer_too_large")
        assert (done.outcome, [report.outcome for report in done.stages]) == ("blocked", ["failed"])
        return
    assert (answer.status, answer.body, answer.complete) == (200, LARGE[what], True)
    assert [(report.stage, report.outcome) for report in done.stages] == [("guard", "skipped"), ("headers", "passed")]
    assert (done.level, answer.header("x-pointsman-level"), answer.header("x-checked")) == ("degraded",) * 2 + ("yes",)
    assert edge.reviewers.failures == [("guard", "can't review a response of this size")]
    assert {review.stage for review in edge.reviewers.asked} == {"headers"}


async def test_a_stream_of_any_length_passes_in_windows(start_edge: StartEdge) -> None:
    async with ScriptedEngine(large("many events")) as engine:
        edge = await start_edge(engine.url, config=HELD)
        edge.stages.changes["response"] = (stage(mode="window", window=512, overlap=64),)
        answer, done = await answered(edge)
    assert (answer.body, done.outcome) == (LARGE["many events"], "ok")


async def test_a_stage_that_needs_little_goes_on_where_another_one_was_given_up(start_edge: StartEdge) -> None:
    async with ScriptedEngine(large("many events")) as engine:
        edge = await start_edge(engine.url, config=HELD)
        edge.reviewers.say = redacting
        windows = stage("windows", mode="window", window=512, overlap=64)
        edge.stages.changes["response"] = (stage(on_error="allow"), windows)
        answer, done = await answered(edge)
    assert b"secret" not in answer.body
    assert answer.body.count(b"data:") == 1_500
    assert [(report.stage, report.outcome) for report in done.stages] == [("guard", "skipped"), ("windows", "replaced")]


async def test_a_stream_that_grows_too_large_to_be_held_ends_in_words(start_edge: StartEdge) -> None:
    async def grows(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(delta("word " * 5))
        await eventually(lambda: edge.reviewers.worked_for)
        while not request.gone.is_set():
            await request.chunk(b"data: " + b"secret " * 4_000)

    async with ScriptedEngine(grows) as engine:
        edge = await start_edge(engine.url, config=HELD)
        edge.stages.changes["response"] = (stage(mode="window", window=20, overlap=0),)
        answer, done = await answered(edge)
    assert answer.body.startswith(delta("word " * 5))
    assert b"answer_too_large" in answer.body
    assert b"secret" not in answer.body
    assert (answer.complete, done.status, done.outcome) == (True, 200, "blocked")


AUDITED = {"postprocessing": ["audit"], "stages": {"audit": {"mode": "after", "content": "none"}}}
NO = Rejection(
    request_id="", stage="guard", status=400, type="invalid_request_error", code="no", message="No.", model="llama-8b"
)


@pytest.mark.parametrize(
    ("sent", "rejection", "told"),
    [
        (post(CHAT, BODY), None, ("ok", 200, None, "model-1")),
        (post(CHAT, BODY), NO, ("rejected", 400, "no", "llama-8b")),
        (
            post(CHAT, BODY),
            replace(NO, code=None, type="server_error", model=None),
            ("rejected", 400, "server_error", None),
        ),
        (post(CHAT, b""), None, ("rejected", 400, "empty_body", None)),
        (post("/v1/nothing", BODY), None, ("rejected", 404, "unknown_path", None)),
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", None, ("rejected", 404, "unknown_path", None)),
        (b"GET /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n", None, ("rejected", 405, "method_not_allowed", None)),
        (b"DELETE /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", None, ("rejected", 405, "method_not_allowed", None)),
        (b"PUT /ready HTTP/1.1\r\nhost: x\r\n\r\n", None, ("rejected", 405, "method_not_allowed", None)),
        (post("/v1%2Fcompletions", BODY), None, ("rejected", 400, "invalid_path", None)),
    ],
)
async def test_every_request_is_audited_with_its_status_code_and_model(
    start_edge: StartEdge, sent: bytes, rejection: Rejection | None, told: tuple[str, int, str | None, str | None]
) -> None:
    async with ScriptedEngine(whole) as engine:
        edge = await start_edge(engine.url, config=AUDITED)
        edge.stages.changes["model"] = "model-1"
        if rejection is not None:
            edge.stages.reply = lambda request: replace(rejection, request_id=request.request_id)
        answer = await raw_request(edge.url, sent)
        [review] = await eventually(lambda: edge.reviewers.asked)
        [done] = await eventually(lambda: edge.events.of(ResponseCompleted))
    assert (review.mode, review.outcome, review.status, review.code, review.model) == ("after", *told)
    assert (done.request_id, done.status) == (answer.header("x-request-id"), answer.status)
    if told[0] == "rejected":
        [rejected] = edge.events.of(RequestRejected)
        assert (rejected.status, rejected.code or "server_error", rejected.model) == told[1:]


@pytest.mark.parametrize("mode", ["buffer", "window"])
async def test_an_answer_that_is_withheld_is_audited_with_the_code_of_that(start_edge: StartEdge, mode: str) -> None:
    async with ScriptedEngine(words if mode == "window" else whole) as engine:
        edge = await start_edge(engine.url, config=AUDITED)
        edge.stages.changes["response"] = (stage(mode=mode),)
        edge.reviewers.say = lambda review: says(action="block" if review.stage == "guard" else "pass", code="no")(
            review
        )
        await raw_request(edge.url, post(CHAT, BODY))
        review = await eventually(lambda: next((one for one in edge.reviewers.asked if one.stage == "audit"), None))
    assert (review.outcome, review.code, review.model) == ("blocked", "no", "llama-8b")
