"""The way back: who served, what it cost, how it ended; told once."""

import json
from contextlib import suppress
from typing import Any

import grpc
import pytest

from pointsman_apis import named
from pointsman_contracts.journey import AnswerUse, BodyEdit, HeaderEdit, Stage, Target
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.presence import OpenRequestsQuery
from pointsman_contracts.reply import ChosenEndpoint, Rejection
from pointsman_contracts.response import AttemptFailed, RequestRejected, ResponseCompleted, ResponseStarted
from pointsman_contracts.service_level import ServicePromise
from pointsman_edge.deciding.decider import StagesMissing
from pointsman_epp_adapter.domain.answer import Answer
from pointsman_testing import eventually
from pointsman_testing.ext_proc import BUFFERED, FULL_DUPLEX, NONE, STREAMED, Exchange, Reply
from pointsman_testing.picker import PickerUnderTest, StartPicker

BODY = b'{"model":"llama-8b","messages":[]}'
ANSWER = b'{"model":"llama-8b","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}'
EVENT = b'data: {"model":"served-8b","choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = (
    b'data: {"model":"served-8b","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}\n\ndata: [DONE]\n\n'
)
STREAM = {"content-type": "text/event-stream"}


async def answering(
    picker: PickerUnderTest, modes: tuple[int, int] = (FULL_DUPLEX, FULL_DUPLEX), request_id: str = "mine"
) -> Exchange:
    """An exchange whose request was sent on."""
    exchange = picker.client.open()
    await exchange.request(modes=modes, headers={"x-request-id": request_id})
    if modes[0] == BUFFERED:
        await exchange.reply()
    await exchange.body(BODY)
    await exchange.replies(1 if modes[0] == BUFFERED else 2)
    return exchange


@pytest.mark.parametrize(
    ("report", "outcome", "level", "judged"),
    [
        ('{"leg":"prefill","worker":"","outcome":"answered","status":200,"took_ms":12.5}', "answered", "full", 0),
        ('{"leg":"prefill","worker":"other","outcome":"refused","reason":"no connection"}', "refused", "degraded", 1),
        ('{"leg":"prefill","worker":"","outcome":"lost","reason":"answered 500"}', "lost", "degraded", 0),
        ("nonsense", None, "full", 0),
        (None, None, "full", 0),
    ],
)
async def test_a_sidecars_report_of_the_prompts_leg_is_published(
    start_picker: StartPicker, report: str | None, outcome: str | None, level: str, judged: int
) -> None:
    picker = await start_picker()
    picker.stages.changes = {"headers": (HeaderEdit(name="x-prefiller-host-port", value="10.0.0.2:8000"),)}
    exchange = await answering(picker)
    told = {} if report is None else {"x-pointsman-prefill-leg": report}
    await exchange.response(upstream="10.0.0.1:8000", headers={"content-type": "application/json", **told})
    await exchange.body(ANSWER, of="response")
    head, _ = await exchange.replies(2)
    assert ("x-pointsman-prefill-leg" in head.removed) is (report is not None)
    assert head.set["x-pointsman-level"] == level
    (done,) = await picker.completed()
    assert [leg.outcome for leg in done.legs] == ([] if outcome is None else [outcome])
    assert [leg.worker for leg in done.legs] == ([] if outcome is None else ["10.0.0.2:8000"])
    assert done.level == level
    failed = [each for each in picker.events.of(AttemptFailed) if each.leg == "prefill"]
    assert len(failed) == judged


@pytest.mark.requirement("S1-28", "S1-30")
async def test_a_document_passes_and_its_usage_is_reported(start_picker: StartPicker) -> None:
    picker = await start_picker()
    exchange = await answering(picker)
    assert picker.ask_open(OpenRequestsQuery(request_ids=("mine", "other"))).request_ids == ("mine",)
    await exchange.response(upstream="10.0.0.1:8000")
    await exchange.body(ANSWER, of="response")
    head, piece = await exchange.replies(2)
    assert (head.set["x-request-id"], head.set["x-pointsman-level"], head.mode) == ("mine", "full", None)
    assert (piece.body, piece.end) == (ANSWER, True)
    (done,) = await picker.completed()
    assert (done.outcome, done.status, done.worker, done.stream, done.bytes_out) == (
        "ok", 200, "worker-1", False, len(ANSWER),
    )  # fmt: skip
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (7, 5)
    assert [attempt.outcome for attempt in done.attempts] == ["answered"]
    # An answer that isn't streamed begins as it ends.
    assert not picker.events.of(ResponseStarted)
    assert picker.ask_open(OpenRequestsQuery(request_ids=("mine",))).request_ids == ()


@pytest.mark.parametrize("modes", [(FULL_DUPLEX, FULL_DUPLEX), (BUFFERED, BUFFERED)])
@pytest.mark.parametrize(("queued_ms", "told"), [(0.0, None), (811.5, "812")])
async def test_a_client_gets_the_time_that_its_request_waited_and_none_that_an_engine_invents(
    start_picker: StartPicker, modes: tuple[int, int], queued_ms: float, told: str | None
) -> None:
    picker = await start_picker()
    picker.stages.changes = {"queued_ms": queued_ms}
    exchange = await answering(picker, modes)
    invented = {"content-type": "application/json", "x-pointsman-queue-ms": "5"}
    await exchange.response(upstream="10.0.0.1:8000", headers=invented)
    if modes[1] == FULL_DUPLEX:
        await exchange.body(ANSWER, of="response")
    head = await exchange.reply()
    assert head.set.get("x-pointsman-queue-ms") == told
    assert "x-pointsman-queue-ms" in (head.removed if told is None else head.set)


async def test_the_stages_response_headers_reach_the_client(start_picker: StartPicker) -> None:
    picker = await start_picker()
    picker.stages.changes = {
        "answer_headers": (
            HeaderEdit(name="X-RateLimit-Remaining-Requests", value="7"),
            HeaderEdit(name="server-timing"),
            HeaderEdit(name="content-type", value="text/html"),
        )
    }
    exchange = await answering(picker)
    await exchange.response(headers={"server-timing": "app;dur=1"})
    await exchange.body(ANSWER, of="response")
    head = await exchange.reply()
    assert head.set["x-ratelimit-remaining-requests"] == "7"
    assert head.removed == {"server-timing"}
    assert "content-type" not in head.set


INTERNAL = {
    "x-llm-d-request-dropped-reason": "a", "x-llm-d-inference-objective": "b", "x-gateway-destination-endpoint": "c",
    "x-pointsman-tenant": "d", "x-prefiller-host-port": "e", "x-data-parallel-rank": "f", "x-worker-instance-id": "g",
}  # fmt: skip


@pytest.mark.parametrize("reviewed", [False, True])
async def test_headers_between_gateways_are_taken_off_an_engines_answer(
    reviewed: bool, start_picker: StartPicker
) -> None:
    picker = await start_picker()
    if reviewed:
        picker.stages.changes["response"] = (Stage(service="guard", answer=AnswerUse(mode="buffer")),)
    exchange = await answering(picker)
    await exchange.response(headers={**INTERNAL, "x-engine": "kept"}, end=True)
    head = await exchange.reply()
    assert head.removed == INTERNAL.keys()


async def test_a_stream_in_full_duplex_passes_event_by_event_with_the_name_that_was_asked_for(
    start_picker: StartPicker,
) -> None:
    picker = await start_picker()
    picker.stages.changes = {"model": "llama-8b", "target": Target(model="served-8b", pool="llama-8b")}
    exchange = await answering(picker)
    await exchange.response(headers=STREAM)
    await exchange.body(EVENT + EVENT[:20], end=False, of="response")
    await exchange.reply()
    assert (await exchange.reply()).body == EVENT.replace(b"served", b"llama")
    await exchange.body(EVENT[20:] + USAGE, end=False, of="response")
    assert (await exchange.reply()).body == (EVENT + USAGE).replace(b"served", b"llama")
    await exchange.body(b"", of="response")
    assert (await exchange.reply()).end
    (done,) = await picker.completed()
    assert (done.outcome, done.stream, done.model) == ("ok", True, "llama-8b")
    assert done.usage is not None
    assert done.usage.completion_tokens == 5


MODES: dict[str, tuple[dict[str, str], dict[str, Any], int, int | None]] = {
    "a stream that nobody needs": (STREAM, {}, STREAMED, NONE),
    "a stream whose usage is wanted": (STREAM, {"stream_usage": True}, STREAMED, None),
    "a stream where a limit counts tokens": (
        STREAM,
        {"config": {"preprocessing": [{"use": "token-limit", "amount": "9/min"}]}},
        STREAMED,
        None,
    ),
    "a stream where engines' times are learnt for service levels": (
        STREAM,
        {"config": {"profiles": {"chat": {"request": ["scheduler"], "slo": {"itl": "40ms"}}}}},
        STREAMED,
        None,
    ),
    "a stream where Envoy is configured to send none": (STREAM, {"stream_usage": True}, NONE, STREAMED),
    "a short document": ({"content-length": "100"}, {}, STREAMED, BUFFERED),
    "a long document": ({"content-length": "9000000"}, {}, STREAMED, None),
    "a document of unknown length": ({}, {}, BUFFERED, STREAMED),
    "anything in full duplex, which Envoy keeps to": (STREAM, {}, FULL_DUPLEX, None),
}


def test_a_stream_is_known_by_its_media_type_in_any_case() -> None:
    headers = [(b":status", b"200"), (b"content-type", b"Text/Event-Stream; charset=utf-8")]
    assert Answer(headers, named("chat.completions"), None).stream


@pytest.mark.parametrize("name", MODES)
async def test_envoy_sends_as_much_of_an_answer_as_is_needed(name: str, start_picker: StartPicker) -> None:
    headers, settings, configured, wanted = MODES[name]
    picker = await start_picker(**settings)
    exchange = await answering(picker, (BUFFERED, configured))
    await exchange.response(headers=headers)
    if configured == FULL_DUPLEX:
        # The head of a stream leaves with its first words, or seconds later.
        await exchange.body(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', of="response", end=False)
    assert (await exchange.reply()).mode == wanted


PROMISE = ServicePromise(service_class="interactive", ttft_ms=60_000.0, itl_ms=60_000.0)


@pytest.mark.requirement("SLO-1")
@pytest.mark.parametrize(("configured", "seen"), [(STREAMED, True), (NONE, True), (NONE, False)])
async def test_a_stream_is_held_to_its_level_where_envoy_shows_it_and_otherwise_nothing_is_known(
    configured: int, seen: bool, start_picker: StartPicker
) -> None:
    picker = await start_picker()
    picker.stages.changes = {"promise": PROMISE}
    exchange = await answering(picker, (BUFFERED if seen else FULL_DUPLEX, configured))
    await exchange.response(headers=STREAM)
    await exchange.reply()
    if seen:
        await exchange.body(EVENT + USAGE, of="response")
        await exchange.reply()
    await exchange.done()
    (done,) = await picker.completed()
    assert (done.promise, done.outcome, done.kept) == (PROMISE, "ok", True if seen else None)
    assert (done.ttft_ms is not None) is seen


@pytest.mark.requirement("SLO-2")
async def test_the_end_of_a_refused_request_has_its_level_and_model(start_picker: StartPicker) -> None:
    picker = await start_picker()
    refused = Rejection(
        request_id="mine", stage="scheduler", status=429, type="rate_limit_error", code="slo_unattainable",
        message="too late", retry_after_s=3.0, model="llama-8b", promise=PROMISE,
    )  # fmt: skip
    picker.stages.reply = lambda _: refused
    exchange = picker.client.open()
    await exchange.request(headers={"x-request-id": "mine"})
    await exchange.body(BODY)
    assert (await exchange.reply()).status == 429
    (done,) = await picker.completed()
    assert (done.outcome, done.status, done.model, done.promise, done.kept) == (
        "rejected", 429, "llama-8b", PROMISE, None,
    )  # fmt: skip


@pytest.mark.parametrize("ends_by", ["an empty piece", "trailers"])
async def test_a_document_of_a_known_length_leaves_in_one_piece_with_its_end(
    ends_by: str, start_picker: StartPicker
) -> None:
    picker = await start_picker()
    exchange = await answering(picker)
    await exchange.response(headers={"content-length": str(len(ANSWER))})
    await exchange.body(ANSWER[:20], of="response", end=False)
    await exchange.body(ANSWER[20:], of="response", end=False)
    if ends_by == "trailers":
        await exchange.trailers("response")
    else:
        await exchange.body(b"", of="response")
    head, piece = await exchange.replies(2)
    assert (head.kind, piece.body, piece.end) == ("response_headers", ANSWER, ends_by != "trailers")
    assert (await picker.completed())[0].bytes_out == len(ANSWER)


HEEDED = {"x-pointsman-mode-override": "heeded"}
"""Metadata of an Envoy that lets the adapter choose how answers come, whatever way requests do."""
CHAT_PATH = "/v1/chat/completions"
CHOICES: dict[str, tuple[dict[str, str], str, bytes, int | None]] = {
    "a document": (HEEDED, CHAT_PATH, BODY, FULL_DUPLEX),
    "a document, said explicitly": (HEEDED, CHAT_PATH, BODY[:-1] + b',"stream": false}', FULL_DUPLEX),
    "a document about streams": (HEEDED, CHAT_PATH, BODY[:-1] + rb',"user":"\"stream\":true"}', FULL_DUPLEX),
    "a stream": (HEEDED, CHAT_PATH, BODY[:-1] + b',"stream" : true}', None),
    "embeddings, which are long": (HEEDED, "/v1/embeddings", b'{"model":"llama-8b","input":"a"}', None),
    "an Envoy that keeps to its mode": ({}, CHAT_PATH, BODY, None),
}


@pytest.mark.parametrize("name", CHOICES)
async def test_a_document_is_asked_for_at_once_where_envoy_heeds_it(name: str, start_picker: StartPicker) -> None:
    metadata, path, body, wanted = CHOICES[name]
    picker = await start_picker()
    exchange = picker.client.open(metadata)
    await exchange.request(modes=(FULL_DUPLEX, STREAMED), path=path)
    await exchange.body(body)
    head, sent_on = await exchange.replies(2)
    assert (head.mode, sent_on.body, sent_on.end) == (wanted, body, True)
    await exchange.response(upstream="10.0.0.1:8000")
    await exchange.body(ANSWER, of="response")
    head, piece = await exchange.replies(2)
    assert head.kind == "response_headers"
    assert (piece.body, piece.end) == ((None, False) if wanted is None else (ANSWER, True))
    (done,) = await picker.completed()
    assert (done.outcome, done.bytes_out) == ("ok", len(ANSWER))


async def test_a_client_that_asks_for_base64_gets_it_from_an_engine_that_answers_with_lists(
    start_picker: StartPicker,
) -> None:
    picker = await start_picker()
    exchange = picker.client.open({})
    await exchange.request(modes=(FULL_DUPLEX, STREAMED), path="/v1/embeddings")
    await exchange.body(b'{"model":"llama-8b","input":"a","encoding_format":"base64"}')
    await exchange.replies(2)
    answer = b'{"data":[{"embedding":[0.5,-1]}]}'
    await exchange.response(upstream="10.0.0.1:8000", headers={"content-length": str(len(answer))})
    assert (await exchange.reply()).removed == {"content-length"}
    await exchange.body(answer, of="response")
    assert (await exchange.reply()).body == b'{"data":[{"embedding":"AAAAPwAAgL8="}]}'


async def test_pieces_of_a_stream_pass_where_envoy_doesnt_heed_that_none_are_wanted(start_picker: StartPicker) -> None:
    picker = await start_picker()
    exchange = await answering(picker, (FULL_DUPLEX, STREAMED))
    await exchange.response(headers=STREAM)
    assert (await exchange.reply()).mode == NONE
    for piece, end in ((EVENT, False), (USAGE, True)):
        await exchange.body(piece, of="response", end=end)
        reply = await exchange.reply()
        assert (reply.kind, reply.body) == ("response_body", None)
    (done,) = await picker.completed()
    assert (done.outcome, done.bytes_out) == ("ok", len(EVENT + USAGE))


async def test_a_stream_that_passes_unseen_costs_nothing_and_is_completed_when_envoy_is_through(
    start_picker: StartPicker,
) -> None:
    picker = await start_picker()
    exchange = await answering(picker, (BUFFERED, STREAMED))
    await exchange.response(headers=STREAM)
    await exchange.reply()
    assert await eventually(lambda: picker.events.of(ResponseStarted))
    await exchange.done()
    (done,) = await picker.completed()
    assert (done.outcome, done.status, done.usage) == ("ok", 200, None)
    assert "unread" in done.reason


async def test_usage_that_only_the_gateway_asked_for_is_reported_and_kept_from_the_client(
    start_picker: StartPicker,
) -> None:
    picker = await start_picker()
    picker.stages.changes = {"body": (BodyEdit(field="stream_options", value={"include_usage": True}, unasked=True),)}
    exchange = await answering(picker, (BUFFERED, STREAMED))
    await exchange.response(headers=STREAM)
    assert (await exchange.reply()).mode is None, "the stream has to pass"
    await exchange.body(EVENT, end=False, of="response")
    assert (await exchange.reply()).body in (None, EVENT)
    await exchange.body(USAGE, of="response")
    assert (await exchange.reply()).body == b"data: [DONE]\n\n"
    (done,) = await picker.completed()
    assert done.usage is not None
    assert done.usage.completion_tokens == 5


async def test_a_renamed_document_in_buffered_mode_is_replaced_whole(start_picker: StartPicker) -> None:
    picker = await start_picker()
    picker.stages.changes = {"model": "alias", "target": Target(model="llama-8b", pool="llama-8b")}
    exchange = await answering(picker, (BUFFERED, BUFFERED))
    await exchange.response(headers={"content-length": str(len(ANSWER))})
    head = await exchange.reply()
    assert (head.removed, head.set["x-pointsman-model"]) == ({"content-length"}, "llama-8b")
    await exchange.body(ANSWER, of="response")
    assert json.loads((await exchange.reply()).body or b"")["model"] == "alias"


@pytest.mark.parametrize("by", ["served", "upstream"])
async def test_the_endpoints_before_the_one_that_served_have_failed(by: str, start_picker: StartPicker) -> None:
    picker = await start_picker("http://10.0.0.1:80", "http://10.0.0.2:80", "http://10.0.0.3:80")
    exchange = await answering(picker)
    await exchange.response(**{by: "10.0.0.3:80"}, end=True)  # pyright: ignore[reportArgumentType] - one of two names
    await exchange.reply()
    (done,) = await picker.completed()
    assert (done.worker, [(each.worker, each.outcome) for each in done.attempts]) == (
        "worker-3", [("worker-1", "failed"), ("worker-2", "failed"), ("worker-3", "answered")],
    )  # fmt: skip
    failed = picker.events.of(AttemptFailed)
    assert [(each.worker, each.next_worker) for each in failed] == [("worker-1", "worker-2"), ("worker-2", "worker-3")]


async def test_an_endpoint_that_envoy_chose_by_itself_is_reported_by_its_name(start_picker: StartPicker) -> None:
    picker = await start_picker("http://10.0.0.1:80", "http://10.0.0.2:80")
    view = WorkerView(worker="another", url="http://10.0.0.9:80")
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(view,)))
    exchange = await answering(picker)
    await exchange.response(upstream="10.0.0.9:80", end=True)
    await exchange.reply()
    (done,) = await picker.completed()
    assert [(each.worker, each.outcome) for each in done.attempts] == [
        ("worker-1", "failed"), ("worker-2", "failed"), ("another", "answered"),
    ]  # fmt: skip
    assert [each.next_worker for each in picker.events.of(AttemptFailed)] == ["worker-2", None]


@pytest.mark.parametrize(
    ("status", "told", "outcome"), [(503, 503, "engine_error"), (504, 504, "timeout"), (500, 502, "engine_error")]
)
async def test_when_no_endpoint_answers_the_client_gets_openais_error_instead_of_envoys(
    status: int, told: int, outcome: str, start_picker: StartPicker
) -> None:
    picker = await start_picker()
    exchange = await answering(picker)
    await exchange.response(
        status, headers={"content-type": "text/plain"}, details="upstream_reset_before_response_started"
    )
    refused = await exchange.reply()
    assert (refused.kind, refused.status) == ("immediate_response", told)
    assert json.loads(refused.body or b"")["error"]["type"] == "server_error"
    (done,) = await picker.completed()
    assert (done.outcome, done.status) == (outcome, told)
    assert picker.events.of(AttemptFailed)
    assert not picker.events.of(ResponseStarted)


BOTH_MODES = pytest.mark.parametrize("modes", [(FULL_DUPLEX, FULL_DUPLEX), (BUFFERED, STREAMED)])


async def passes(
    exchange: Exchange, modes: tuple[int, int], status: int, details: str, *, first: bool = False
) -> Reply:
    """Have Envoy itself answer, and see that it stays as it is; returns what the head became."""
    told = modes if first else None
    await exchange.response(status, headers={"content-type": "text/plain"}, details=details, modes=told)
    head = await exchange.reply()
    assert (head.kind, head.removed) == ("response_headers", frozenset())
    if modes[1] == FULL_DUPLEX:
        await exchange.body(b"its ", end=False, of="response")
        await exchange.body(b"words", of="response")
        pieces = await exchange.replies(2)
        assert [(piece.body, piece.end) for piece in pieces] == [(b"its ", False), (b"words", True)]
    else:
        assert head.mode == NONE
    assert await exchange.ended() is grpc.StatusCode.OK
    return head


@BOTH_MODES
@pytest.mark.parametrize("status", [301, 403, 404, 413, 429])
async def test_a_refusal_by_another_filter_of_envoys_passes_as_it_is_and_no_engine_is_blamed(
    status: int, modes: tuple[int, int], start_picker: StartPicker
) -> None:
    picker = await start_picker()
    head = await passes(await answering(picker, modes), modes, status, "request_rate_limited")
    assert head.set["x-request-id"] == "mine"
    (done,) = await picker.completed()
    assert (done.outcome, done.status, done.worker, done.attempts, done.usage, done.reason) == (
        "rejected", status, None, (), None, "request_rate_limited",
    )  # fmt: skip
    assert not picker.events.of(AttemptFailed)
    assert [told.status for told in picker.events.of(RequestRejected)] == ([status] if status >= 400 else [])
    # An engine that was blamed would come last here.
    picker.stages.failure = StagesMissing("no live scheduler")
    views = tuple(WorkerView(worker=f"worker-{each}", url=f"http://10.0.0.{each}:8000") for each in (1, 2))
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=views))
    exchange = picker.client.open()
    await exchange.request()
    await exchange.body(BODY)
    assert (await exchange.reply()).metadata["pointsman"]["worker"] == "worker-1"


async def before_a_provider(
    start_picker: StartPicker, monkeypatch: pytest.MonkeyPatch, credential: str | list[str] = "env:FAR_KEY"
) -> PickerUnderTest:
    """A picker whose requests go to a provider."""
    monkeypatch.setenv("FAR_KEY", "canary-key")
    far = {"kind": "openai", "base_url": "https://far.example", "credential": credential}
    picker = await start_picker(config={"providers": {"far": far}}, providers=True)
    target = Target(model="far-model", provider="far")
    picker.stages.changes = {"target": target, "endpoints": (ChosenEndpoint(worker="far", url=""),)}
    return picker


@BOTH_MODES
async def test_a_provider_that_answers_nothing_has_failed(
    modes: tuple[int, int], start_picker: StartPicker, monkeypatch: pytest.MonkeyPatch
) -> None:
    picker = await before_a_provider(start_picker, monkeypatch)
    exchange = await answering(picker, modes)
    await exchange.response(204, end=True)
    refused = await exchange.reply()
    assert (refused.kind, refused.status) == ("immediate_response", 502)
    (done,) = await picker.completed()
    assert (done.outcome, done.status) == ("cut_off", 502)


async def test_the_next_request_goes_with_another_credential_once_the_limit_of_one_is_reached(
    start_picker: StartPicker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_KEY", "canary-other")
    picker = await before_a_provider(start_picker, monkeypatch, ["env:FAR_KEY", "env:OTHER_KEY"])
    used: list[str] = []
    statuses: list[tuple[int | None, str | None]] = []
    for number in range(3):
        exchange = picker.client.open()
        await exchange.request(modes=(BUFFERED, BUFFERED), headers={"x-request-id": f"r-{number}"})
        await exchange.reply()
        await exchange.body(BODY)
        reply = await exchange.reply()
        if reply.kind != "immediate_response":
            used.append(reply.set["authorization"])
            await exchange.response(429, headers={"retry-after": "30"}, end=True)
            reply = await exchange.reply()
        statuses.append((reply.status, reply.set.get("retry-after")))
        await exchange.done()
    assert sorted(used) == ["Bearer canary-key", "Bearer canary-other"]
    # A client needn't wait for another credential.
    assert statuses[0] == (429, "1")
    assert statuses[2][0] == 429
    assert 25 <= int(statuses[2][1] or 0) <= 30


@pytest.mark.parametrize(("headers", "piece"), [(STREAM, EVENT + USAGE), ({}, ANSWER)], ids=["a stream", "a document"])
async def test_a_providers_answer_with_trailers_is_passed_on_or_refused_but_never_lost(
    headers: dict[str, str], piece: bytes, start_picker: StartPicker, monkeypatch: pytest.MonkeyPatch
) -> None:
    picker = await before_a_provider(start_picker, monkeypatch)
    exchange = await answering(picker, (BUFFERED, STREAMED))
    await exchange.response(headers=headers)
    await exchange.reply()
    await exchange.body(piece, end=False, of="response")
    passed = (await exchange.reply()).body
    await exchange.trailers("response")
    last = await exchange.reply()
    (done,) = await picker.completed()
    if headers:
        assert passed
        assert (last.kind, done.outcome) == ("response_trailers", "ok")
    else:
        assert passed == b""
        assert (last.kind, last.status, done.outcome) == ("immediate_response", 502, "cut_off")


@BOTH_MODES
async def test_a_refusal_by_another_filter_of_envoys_is_no_failure_of_a_provider(
    modes: tuple[int, int], start_picker: StartPicker, monkeypatch: pytest.MonkeyPatch
) -> None:
    picker = await before_a_provider(start_picker, monkeypatch)
    await passes(await answering(picker, modes), modes, 429, "request_rate_limited")
    (done,) = await picker.completed()
    assert (done.outcome, done.status, done.attempts) == ("rejected", 429, ())


@BOTH_MODES
async def test_a_refusal_by_a_filter_before_the_picker_passes_as_it_is(
    modes: tuple[int, int], start_picker: StartPicker
) -> None:
    picker = await start_picker()
    head = await passes(picker.client.open(), modes, 401, "jwt_authn_access_denied", first=True)
    assert head.set == {}
    assert not picker.events.of(ResponseCompleted)


async def test_an_engines_own_error_is_the_clients(start_picker: StartPicker) -> None:
    picker = await start_picker()
    exchange = await answering(picker)
    await exchange.response(500)
    await exchange.body(b'{"error":{}}', of="response")
    assert (await exchange.reply()).kind == "response_headers"
    assert (await exchange.reply()).body == b'{"error":{}}'
    assert (await picker.completed())[0].outcome == "engine_error"


@pytest.mark.parametrize(("told", "pause"), [("7", "7"), ("31536000", "300"), ("-5", None), ("soon", None)])
async def test_an_engines_error_asks_its_client_for_a_pause_that_can_be_meant(
    start_picker: StartPicker, told: str, pause: str | None
) -> None:
    picker = await start_picker()
    exchange = await answering(picker)
    await exchange.response(429, headers={"retry-after": told})
    await exchange.body(b'{"error":{}}', of="response")
    head = await exchange.reply()
    assert head.set.get("retry-after") == pause
    assert ("retry-after" in head.removed) is (pause is None)


async def test_an_answer_with_trailers_ends_with_them(start_picker: StartPicker) -> None:
    picker = await start_picker()
    exchange = await answering(picker)
    await exchange.response()
    await exchange.body(ANSWER, end=False, of="response")
    await exchange.trailers("response")
    head, piece = await exchange.replies(2)
    assert (head.kind, piece.body, piece.end) == ("response_headers", ANSWER, False)
    assert (await exchange.reply()).kind == "response_trailers"
    assert (await picker.completed())[0].outcome == "ok"


@pytest.mark.parametrize("length", [len(ANSWER), None])
async def test_a_held_document_with_trailers_is_passed_on_or_refused_but_never_lost(
    length: int | None, start_picker: StartPicker
) -> None:
    picker = await start_picker()
    picker.stages.changes = {"model": "asked", "target": Target(model="llama-8b", pool="llama-8b")}
    exchange = await answering(picker, (BUFFERED, STREAMED))
    await exchange.response(headers={} if length is None else {"content-length": str(length)})
    await exchange.reply()
    await exchange.body(ANSWER, end=False, of="response")
    if length is not None:
        assert (await exchange.reply()).body == ANSWER.replace(b"llama-8b", b"asked")
        assert (await picker.completed())[0].outcome == "ok"
        return
    assert (await exchange.reply()).body == b""
    await exchange.trailers("response")
    refused = await exchange.reply()
    assert (refused.kind, refused.status) == ("immediate_response", 502)
    (done,) = await picker.completed()
    assert (done.outcome, done.status) == ("engine_error", 502)


async def test_a_large_piece_leaves_in_pieces_that_envoy_takes(start_picker: StartPicker) -> None:
    picker = await start_picker()
    exchange = await answering(picker)
    await exchange.response()
    await exchange.body(b'{"choices":[]' + b" " * 149_986 + b"}", of="response")
    await exchange.reply()
    pieces = await exchange.replies(3)
    assert [len(piece.body or b"") for piece in pieces] == [62_000, 62_000, 26_000]
    assert [piece.end for piece in pieces] == [False, False, True]


TWO = b'{"model":"llama-8b","n":2,"messages":[]}'


def choices(*indices: int, ended: bool = True) -> bytes:
    """A whole answer with these choices."""
    found = [
        {"index": index, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop" if ended else None}
        for index in indices
    ]
    return json.dumps({"model": "llama-8b", "choices": found}).encode()


def events(*indices: int, ended: tuple[int, ...]) -> list[bytes]:
    """A stream with these choices, of which some end."""
    said: list[object] = [
        {"choices": [{"index": index, "delta": {"content": "a"}, "finish_reason": None}]} for index in indices
    ]
    ends: list[object] = [{"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]} for index in ended]
    return [*(b"data: " + json.dumps(each).encode() + b"\n\n" for each in (*said, *ends)), b"data: [DONE]\n\n"]


async def asking_for_two(picker: PickerUnderTest) -> Exchange:
    """An exchange whose request for two choices was sent on."""
    picker.stages.changes = {"answers": 2}
    exchange = picker.client.open()
    await exchange.request(modes=(FULL_DUPLEX, FULL_DUPLEX))
    await exchange.body(TWO)
    await exchange.replies(2)
    return exchange


@pytest.mark.parametrize(
    ("answer", "good"), [(choices(0, 1), True), (choices(0), False), (choices(0, 0), False), (choices(0, 7), False)]
)
async def test_a_whole_answer_with_wrong_choices_is_an_error_and_its_engines_failure(
    start_picker: StartPicker, answer: bytes, good: bool
) -> None:
    picker = await start_picker()
    exchange = await asking_for_two(picker)
    await exchange.response(headers={"content-type": "application/json"})
    await exchange.body(answer, of="response")
    reply = await exchange.reply()
    assert (reply.status or 200) == (200 if good else 502)
    await exchange.done()
    (completed,) = await picker.completed()
    assert completed.outcome == ("ok" if good else "engine_error")
    assert len(picker.events.of(AttemptFailed)) == (0 if good else 1)


@pytest.mark.parametrize(
    ("sent", "good"),
    [
        (events(0, 1, ended=(0, 1)), True),
        (events(0, 1, ended=(0,)), False),
        (events(0, ended=(0,)), False),
        (events(0, 7, ended=(0, 7)), False),
    ],
)
async def test_a_stream_with_wrong_choices_ends_with_an_error_in_place_of_a_good_end(
    start_picker: StartPicker, sent: list[bytes], good: bool
) -> None:
    picker = await start_picker()
    exchange = await asking_for_two(picker)
    await exchange.response(headers=STREAM)
    got = b""
    for number, event in enumerate(sent):
        await exchange.body(event, end=number == len(sent) - 1, of="response")
    await exchange.done()
    with suppress(EOFError):
        while True:
            got += (await exchange.reply()).body or b""
    assert (b"[DONE]" in got, b'"error"' in got) == (good, not good)
    (completed,) = await picker.completed()
    assert completed.outcome == ("ok" if good else "cut_off")
