"""Requests without a decision: other paths, the list of models, and the model's name for routes."""

import json

import grpc
import pytest

from pointsman_contracts.journey import Target
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_testing.ext_proc import BUFFERED, CHAT, DESTINATION, NONE, STREAMED, sent_on
from pointsman_testing.picker import StartPicker


async def test_models_are_listed_without_an_engine(start_picker: StartPicker) -> None:
    picker = await start_picker()
    exchange = picker.client.open()
    await exchange.request(method="GET", path="/v1/models", end=True)
    listed = await exchange.reply()
    assert listed.status == 200
    assert [model["id"] for model in json.loads(listed.body or b"")["data"]] == ["llama-8b"]


@pytest.mark.parametrize("path", ["/v1/models/org%2Fllama", "/v1/models/org/llama", "/v1/m%6Fdels/org/llama"])
async def test_a_model_is_recognised_by_its_name_however_that_is_spelt(path: str, start_picker: StartPicker) -> None:
    picker = await start_picker(config={"pools": {"p": {"models": ["org/llama"]}}})
    exchange = picker.client.open()
    await exchange.request(method="GET", path=path, end=True)
    told = await exchange.reply()
    assert (told.status, json.loads(told.body or b"")["id"]) == (200, "org/llama")


async def test_an_apis_path_is_known_however_it_is_spelt(start_picker: StartPicker) -> None:
    picker = await start_picker()
    await sent_on(picker.client.open(), path="/v1/ch%61t/completions")
    assert [request.path for request, _, _ in picker.stages.asked] == ["/v1/chat/completions"]


@pytest.mark.parametrize(
    "path", ["/v1/chat%2Fcompletions", "/v1/chat%2fcompletions?x=1", "/v1%5cmodels", "/x%2Fmetrics"]
)
async def test_a_path_that_hides_a_slash_is_refused(path: str, start_picker: StartPicker) -> None:
    picker = await start_picker(other_paths=True)
    exchange = picker.client.open()
    await exchange.request(path=path, end=True)
    refused = await exchange.reply()
    assert (refused.status, json.loads(refused.body or b"")["error"]["code"]) == (400, "invalid_path")
    assert not picker.stages.asked


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("GET", "/v1/messages", "POST"),
        ("POST", "/v1/models", "GET"),
        ("HEAD", "/v1/models", "GET"),
        ("DELETE", "/v1/models/llama-8b", "GET"),
    ],
)
async def test_a_wrong_method_is_405_that_says_the_right_one_in_the_words_of_its_api(
    method: str, path: str, allowed: str, start_picker: StartPicker
) -> None:
    picker = await start_picker(other_paths=True)
    exchange = picker.client.open()
    await exchange.request(method=method, path=path, end=True)
    refused = await exchange.reply()
    assert (refused.status, refused.set["allow"]) == (405, allowed)
    document = json.loads(refused.body or b"")
    assert ("type" in document) == (path == "/v1/messages")
    named = "/v1/models" if path.startswith("/v1/models/") else path
    assert document["error"]["message"] == f"{method} is not allowed on {named}; use {allowed}."


async def test_requests_for_other_paths_go_to_any_engine_when_that_is_asked_for(start_picker: StartPicker) -> None:
    picker = await start_picker(other_paths=True)
    views = (
        WorkerView(worker="a", url="http://10.0.0.5:1", running=5),
        WorkerView(worker="b", url="http://10.0.0.6:1"),
    )
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=views))
    exchange = picker.client.open()
    await exchange.request(method="GET", path="/version", end=True)
    assert (await exchange.reply()).set[DESTINATION] == "10.0.0.6:1,10.0.0.5:1"
    await exchange.response(end=True)
    await exchange.reply()
    exchange = picker.client.open()
    await exchange.request(path="/reset_prefix_cache")
    await exchange.body(b"a", end=False)
    await exchange.body(b"b")
    head, first, second = await exchange.replies(3)
    assert (head.set[DESTINATION], first.body, second.body, second.end) == ("10.0.0.6:1,10.0.0.5:1", b"a", b"b", True)


async def test_requests_for_other_paths_spread_over_engines_while_they_are_open(start_picker: StartPicker) -> None:
    picker = await start_picker(other_paths=True)
    views = tuple(WorkerView(worker=f"w{each}", url=f"http://10.0.0.{each}:1") for each in range(3))
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=views))
    exchanges = [picker.client.open() for _ in range(3)]
    chosen: set[str] = set()
    for exchange in exchanges:
        await exchange.request(method="GET", path="/version", end=True)
        chosen.add((await exchange.reply()).set["x-gateway-worker-id"])
    assert chosen == {"w0", "w1", "w2"}


async def test_an_answer_on_another_path_keeps_its_body_and_loses_what_gateways_tell_each_other(
    start_picker: StartPicker,
) -> None:
    picker = await start_picker(other_paths=True)
    view = WorkerView(worker="a", url="http://10.0.0.5:1")
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(view,)))
    exchange = picker.client.open()
    await exchange.request(path="/reset_prefix_cache", modes=(BUFFERED, STREAMED))
    assert (await exchange.reply()).set[DESTINATION] == "10.0.0.5:1"
    await exchange.body(b"{}")
    passed = await exchange.reply()
    assert (passed.kind, passed.body) == ("request_body", None)
    await exchange.response(headers={"x-llm-d-request-dropped-reason": "x", "x-mine": "1"})
    head = await exchange.reply()
    assert (head.removed, head.mode) == ({"x-llm-d-request-dropped-reason"}, NONE)
    assert await exchange.ended() is grpc.StatusCode.OK


OTHERS = (
    WorkerView(worker="a", url="http://10.0.0.5:1", models=("whisper",)),
    WorkerView(worker="b", url="http://10.0.0.6:1", models=("llama-8b",)),
)


async def test_other_content_passes_unread_where_that_is_asked_for(start_picker: StartPicker) -> None:
    form = {"content-type": "multipart/form-data; boundary=x"}
    for asked_for in (False, True):
        picker = await start_picker(other_content=asked_for)
        picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=OTHERS))
        exchange = picker.client.open()
        await exchange.request(headers=form)
        if not asked_for:
            assert (await exchange.reply()).status == 415
            continue
        await exchange.body(b"--x\r\n\xff", end=False)
        await exchange.body(b"--x--")
        head, *pieces = await exchange.replies(3)
        assert head.set[DESTINATION] == "10.0.0.5:1,10.0.0.6:1"
        assert [(piece.body, piece.end) for piece in pieces] == [(b"--x\r\n\xff", False), (b"--x--", True)]
        assert picker.stages.asked == []


async def test_json_is_read_whatever_other_content_may_pass(start_picker: StartPicker) -> None:
    picker = await start_picker(other_content=True)
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        await sent_on(picker.client.open(), headers={"content-type": kind})
    assert len(picker.stages.asked) == 2


async def test_a_trusted_proxy_names_the_model_of_a_body_that_is_not_read(start_picker: StartPicker) -> None:
    picker = await start_picker(other_paths=True, trusted_proxies=["10.9.0.0/16"])
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=OTHERS))
    for model, expected in (("llama-8b", "10.0.0.6:1"), ("whisper", "10.0.0.5:1")):
        exchange = picker.client.open()
        headers = {"x-llm-d-model-name-rewrite": model}
        await exchange.request(path="/v1/other", headers=headers)
        assert (await exchange.reply()).set[DESTINATION] == expected


async def test_an_answer_before_the_end_of_the_request_passes_whole(start_picker: StartPicker) -> None:
    picker = await start_picker(other_paths=True)
    view = WorkerView(worker="a", url="http://10.0.0.5:1")
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(view,)))
    exchange = picker.client.open()
    await exchange.request(path="/upload")
    await exchange.body(b"a", end=False)
    await exchange.response(413)
    await exchange.body(b"b", end=False)
    await exchange.body(b"too ", end=False, of="response")
    await exchange.body(b"large", of="response")
    kinds = [(reply.kind, reply.body, reply.end) for reply in await exchange.replies(6)]
    assert kinds == [
        ("request_headers", None, False), ("request_body", b"a", False), ("response_headers", None, False),
        ("request_body", b"b", False), ("response_body", b"too ", False), ("response_body", b"large", True),
    ]  # fmt: skip
    assert await exchange.ended() is grpc.StatusCode.OK


FORGED = {
    "authorization": "Bearer secret", "x-api-key": "secret", "cookie": "a=b", "x-user-id": "root",
    "x-prefiller-host-port": "6.6.6.6:1", "x-gateway-worker-id": "b", "x-pointsman-tenant": "admin",
    DESTINATION: "6.6.6.6:1",
}  # fmt: skip


@pytest.mark.requirement("S3-8")
async def test_other_paths_carry_nothing_that_an_engine_must_not_have_from_a_client(start_picker: StartPicker) -> None:
    picker = await start_picker(other_paths=True)
    views = (WorkerView(worker="a", url="http://10.0.0.5:1"), WorkerView(worker="b", url="http://10.0.0.6:1"))
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=views))
    exchange = picker.client.open()
    await exchange.request(path="/reset_prefix_cache?x=1", headers={**FORGED, "x-mine": "1"})
    head = await exchange.reply()
    ours = {DESTINATION: "10.0.0.5:1,10.0.0.6:1", "x-gateway-worker-id": "a", "x-envoy-max-retries": "1"}
    assert (head.set, head.removed) == (ours, FORGED.keys() - ours)


async def test_other_paths_stay_within_the_subset(start_picker: StartPicker) -> None:
    picker = await start_picker(other_paths=True)
    views = tuple(WorkerView(worker=f"w{each}", url=f"http://10.0.0.{each}:8000") for each in range(10))
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=views))
    exchange = picker.client.open()
    await exchange.request(method="GET", path="/version", end=True, subset=["10.0.0.7"])
    assert (await exchange.reply()).set[DESTINATION] == "10.0.0.7:8000"
    for subset in (["10.0.0.77"], []):
        exchange = picker.client.open()
        await exchange.request(method="GET", path="/version", end=True, subset=subset)
        refused = await exchange.reply()
        assert (refused.status, json.loads(refused.body or b"")["error"]["code"]) == (503, "endpoint_not_in_subset")


async def test_other_paths_that_no_engine_can_take_are_rejected_with_a_reason(start_picker: StartPicker) -> None:
    picker = await start_picker(other_paths=True)
    for url in ("https://engine.example", ""):
        view = WorkerView(worker="a", url=url)
        picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(view,)))
        exchange = picker.client.open()
        await exchange.request(method="GET", path="/version", end=True)
        refused = await exchange.reply()
        assert (refused.status, refused.set["x-pointsman-dropped-reason"]) == (503, "rejected-no-endpoints")


@pytest.mark.parametrize(
    "path",
    [
        "//v1/chat/completions", "/v1//chat/completions", "/v1/./completions",
        "/v1/x/../messages", "/v1/chat%252Fcompletions", "/v1%255Cembeddings", "/V1/Responses",
        "/v1/models/../completions/", "//v1/models",
    ],
)  # fmt: skip
async def test_another_spelling_of_an_apis_path_passes_no_key_and_no_limit_by(
    path: str, start_picker: StartPicker
) -> None:
    picker = await start_picker(other_paths=True)
    view = WorkerView(worker="a", url="http://10.0.0.5:1")
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(view,)))
    exchange = picker.client.open()
    await exchange.request(path=path)
    refused = await exchange.reply()
    assert refused.kind == "immediate_response"
    assert refused.status in (404, 405)


@pytest.mark.requirement("S1-14", "S1-16", "S1-52")
async def test_body_based_routing_writes_the_model_and_nothing_else(start_picker: StartPicker) -> None:
    picker = await start_picker(mode="body-based-routing")
    named = {"x-gateway-model-name": "llama-8b", "x-gateway-base-model-name": "llama-8b"}
    head, body = await sent_on(picker.client.open(), headers={"x-gateway-base-model-name": "forged"})
    assert (head.set, head.clears_route, head.metadata) == (named, True, {})
    assert body.body == CHAT
    exchange = picker.client.open()
    await exchange.request(modes=(BUFFERED, NONE))
    await exchange.reply()
    await exchange.body(CHAT)
    assert (await exchange.reply()).set == named
    exchange = picker.client.open()
    await exchange.request(method="GET", path="/anything", end=True)
    assert (await exchange.reply()).removed == named.keys()
    assert picker.stages.asked == []


POOL = {"models": ["base", "tuned"], "loras": ["tuned"]}


@pytest.mark.parametrize(
    ("model", "base"), [("base", "base"), ("tuned", "base"), ("alias", "base"), ("shared", None), ("elsewhere", None)]
)
async def test_body_based_routing_names_the_base_of_an_adapter_whatever_the_client_says(
    model: str, base: str | None, start_picker: StartPicker
) -> None:
    pools = {"p": POOL, "q": {"models": ["a", "b", "shared"], "loras": ["shared"]}}
    models = {"alias": {"pool": "p", "served_as": "tuned"}}
    picker = await start_picker(mode="body-based-routing", config={"pools": pools, "models": models})
    body = json.dumps({"model": model}).encode()
    head, _ = await sent_on(picker.client.open(), body, headers={"x-gateway-base-model-name": "forged"})
    assert head.set.get("x-gateway-model-name") == model
    assert head.set.get("x-gateway-base-model-name") == base
    assert head.removed == ({"x-gateway-base-model-name"} if base is None else frozenset())


async def test_body_based_routing_counts_requests_and_times_its_processors(start_picker: StartPicker) -> None:
    picker = await start_picker(mode="body-based-routing", config={"edge": {"max_body": "1KiB"}})
    await sent_on(picker.client.open())
    await sent_on(picker.client.open(), b"{}")
    exchange = picker.client.open()
    await exchange.request(method="GET", path="/anything", end=True)
    await exchange.reply()
    exchange = picker.client.open()
    await exchange.request()
    await exchange.body(b"x" * 2000)
    assert (await exchange.reply()).status == 413

    def value(name: str, **labels: str) -> float | None:
        return picker.metric(f"pointsman_body_routing_{name}", labels)

    outcomes = ("named", "nameless", "bodyless", "refused")
    assert [value("requests_total", outcome=each) for each in outcomes] == [1, 1, 1, 1]
    assert value("processor_seconds_count", processor="model-to-header") == 2
    assert value("processor_seconds_count", processor="base-model-to-header") == 1


NAMELESS = {
    "an object without a model": b'{"a":1}', "no text": b'{"model":7}', "a name of two lines": b'{"model":"a\\nb"}',
    "an endless name": b'{"model":"' + b"x" * 5000 + b'"}', "an array": b"[]", "no JSON": b"{", "a form": b"--x\r\n",
    "nothing": b"", "a blank name": b'{"model":"   "}',
}  # fmt: skip


@pytest.mark.parametrize("name", NAMELESS)
async def test_a_body_without_a_model_passes_body_based_routing_as_it_is(name: str, start_picker: StartPicker) -> None:
    body = NAMELESS[name]
    picker = await start_picker(mode="body-based-routing")
    forged = {"x-gateway-model-name": "forged", "x-gateway-base-model-name": "forged"}
    head, passed = await sent_on(picker.client.open(), body, headers=forged)
    assert (head.kind, head.set, head.removed) == ("request_headers", {}, forged.keys())
    assert (passed.body, passed.end) == (body, True)
    exchange = picker.client.open()
    await exchange.request(modes=(BUFFERED, NONE), headers=forged)
    await exchange.reply()
    await exchange.body(body)
    reply = await exchange.reply()
    assert (reply.kind, reply.removed, reply.body) == ("request_body", forged.keys(), None)


@pytest.mark.requirement("KSERVE-2")
async def test_the_open_inference_protocol_gets_its_model_from_the_path_and_an_alias_into_it(
    start_picker: StartPicker,
) -> None:
    picker = await start_picker()
    picker.stages.changes = {"target": Target(model="org/llama", pool="llama-8b")}
    body = b'{"text_input": "hi"}'
    exchange = picker.client.open()
    replies = await sent_on(exchange, body, path="/v2/models/alias/generate")
    assert [asked.model for asked, _, _ in picker.stages.asked] == ["alias"]
    assert replies[0].set[":path"] == "/v2/models/org%2Fllama/generate"
