"""Requests for the route alone, workers that a trusted proxy has chosen, and tokens that were counted before."""

import json
from array import array
from collections.abc import Callable

import pytest
from pydantic import JsonValue

from pointsman_contracts.content import PromptTokens
from pointsman_contracts.journey import BodyEdit, HeaderEdit, PreprocessRequest, Target
from pointsman_contracts.message import Blob
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.reply import ChosenEndpoint, Decision, Rejection
from pointsman_contracts.response import ResponseCompleted, ResponseStarted
from pointsman_edge.deciding.decider import StagesMissing
from pointsman_testing import builders, eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import ScriptedEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY = b'{"model":"llama-8b","messages":[],"nvext":{"greed":1}}'
COMPLETION = b'{"model":"llama-8b","prompt":"hello","max_tokens":1}'
IDS = [1, 70000, 3]
TRUSTED = {"trusted_proxies": ["127.0.0.0/8"]}
WANTED = "x-routing-request: true"


def knowing_tokens(
    edge: EdgeUnderTest, *, of: str = "llama-8b", **changes: object
) -> Callable[[PreprocessRequest], Decision | Rejection]:
    """Stages that have told the edge the prompt's tokens when they decide."""

    def decide(request: PreprocessRequest) -> Decision | Rejection:
        ids = Blob(array("I", IDS).tobytes())
        edge.hear(PromptTokens(request_id=request.request_id, model=of, ids=ids))
        endpoints = [ChosenEndpoint(worker=f"worker-{n}", url=url) for n, url in enumerate(edge.stages.urls, start=1)]
        return builders.decision(request.request_id, **({"endpoints": endpoints} | changes))

    return decide


@pytest.mark.requirement("S1-23")
async def test_a_request_for_the_route_gets_the_worker_and_the_tokens_and_nothing_is_generated(
    start_edge: StartEdge,
) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, "http://10.0.0.2:8000", **TRUSTED)
        headers = (HeaderEdit(name="x-prefiller-host-port", value="10.0.0.9:8000"),)
        edge.stages.reply = knowing_tokens(edge, headers=headers)
        answer = await raw_request(edge.url, post(CHAT, BODY, WANTED))
        assert engine.received == []
    document = json.loads(answer.body)
    assert (answer.status, document["worker_id"], document["endpoint"]) == (200, "worker-1", engine.url)
    assert [each["worker_id"] for each in document["endpoints"]] == ["worker-1", "worker-2"]
    assert (document["token_ids"], document["headers"]) == (IDS, {"x-prefiller-host-port": "10.0.0.9:8000"})
    assert answer.header("x-gateway-worker-id") == "worker-1"
    await eventually(lambda: edge.events.of(ResponseCompleted))
    [done] = edge.events.of(ResponseCompleted)
    assert (done.outcome, done.status, done.pool, done.usage) == ("routed", 200, "llama-8b", None)
    assert edge.events.of(ResponseStarted) == []


async def test_a_stranger_gets_no_routes_and_no_answer_that_it_didnt_ask_for(start_edge: StartEdge) -> None:
    edge = await start_edge("http://10.0.0.1:8000")
    answer = await raw_request(edge.url, post(CHAT, BODY, WANTED))
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (403, "routing_not_allowed")
    assert edge.stages.asked == []


@pytest.mark.requirement("S1-27")
@pytest.mark.parametrize("name", ["x-worker-instance-id", "x-dynamo-worker-instance-id", "x-gateway-worker-id"])
async def test_a_worker_is_taken_from_a_trusted_proxy_alone(start_edge: StartEdge, name: str) -> None:
    for settings, believed in ((TRUSTED, True), ({}, False)):
        async with ScriptedEngine() as engine:
            edge = await start_edge(engine.url, **settings)
            assert (await raw_request(edge.url, post(CHAT, BODY, f"{name}: worker-7"))).status == 200
        [(request, _, _)] = edge.stages.asked
        assert (request.headers.get(name) == "worker-7") == believed


async def test_alone_the_edge_sends_a_request_to_the_worker_that_was_given(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(config={"profiles": {"standard": {"static": "allow"}}}, **TRUSTED)
        edge.stages.failure = StagesMissing("no live scheduler")
        views = [WorkerView(worker=f"w{n}", url=url) for n, url in ((1, "http://127.0.0.1:9"), (2, engine.url))]
        edge.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=tuple(views)))
        for _ in range(3):
            answer = await raw_request(edge.url, post(CHAT, BODY, "x-worker-instance-id: w2"))
            assert answer.status == 200
        assert len(engine.received) == 3
        answer = await raw_request(edge.url, post(CHAT, BODY, "x-worker-instance-id: w3"))
    assert answer.status == 503


@pytest.mark.requirement("S1-26", "S1-27", "S1-43")
@pytest.mark.parametrize(
    ("form", "path", "body", "sent"),
    [
        ("prompt", COMPLETIONS, COMPLETION, {"model": "llama-8b", "prompt": IDS, "max_tokens": 1}),
        ("prompt", CHAT, BODY, json.loads(BODY)),
        ("nvext", CHAT, BODY, json.loads(BODY) | {"nvext": {"greed": 1, "token_data": IDS}}),
        ("nvext", COMPLETIONS, COMPLETION, json.loads(COMPLETION) | {"nvext": {"token_data": IDS}}),
        ("no", COMPLETIONS, COMPLETION, json.loads(COMPLETION)),
    ],
)
async def test_engines_get_the_tokens_as_their_pool_says(
    start_edge: StartEdge, form: str, path: str, body: bytes, sent: object
) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, config={"pools": {"llama-8b": {"send_tokens": form}}})
        edge.stages.reply = knowing_tokens(edge)
        assert (await raw_request(edge.url, post(path, body))).status == 200
    assert json.loads(engine.received[0].body) == sent


@pytest.mark.parametrize(
    ("form", "path", "body", "field", "value"),
    [("prompt", COMPLETIONS, COMPLETION, "prompt", "hi"), ("nvext", CHAT, BODY, "messages", [])],
)
async def test_tokens_of_a_prompt_that_a_stage_changed_are_not_sent_in_its_place(
    start_edge: StartEdge, form: str, path: str, body: bytes, field: str, value: JsonValue
) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, config={"pools": {"llama-8b": {"send_tokens": form}}}, **TRUSTED)
        edge.stages.reply = knowing_tokens(edge, body=(BodyEdit(field=field, value=value),))
        assert (await raw_request(edge.url, post(path, body))).status == 200
        assert "token_ids" not in json.loads((await raw_request(edge.url, post(path, body, WANTED))).body)
    assert json.loads(engine.received[0].body) == json.loads(body) | {field: value}


@pytest.mark.parametrize(("model", "brought"), [("same", True), ("reported-by-engines", True), ("other", False)])
async def test_tokens_are_sent_to_a_model_that_was_chosen_since_when_its_tokenizer_is_theirs(
    start_edge: StartEdge, model: str, *, brought: bool
) -> None:
    pools = {
        "llama-8b": {"models": ["llama-8b"], "send_tokens": "nvext", "tokenizer": {"path": "/models/llama"}},
        "same": {"models": ["same"], "tokenizer": {"path": "/models/llama"}},
        "other": {"models": ["other"], "tokenizer": {"path": "/models/other"}},
    }
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, config={"pools": pools}, **TRUSTED)
        edge.stages.reply = knowing_tokens(edge, of=model)
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
        route = json.loads((await raw_request(edge.url, post(CHAT, BODY, WANTED))).body)
        assert ("token_ids" in route) == brought
    assert ("token_data" in json.loads(engine.received[0].body)["nvext"]) == brought


@pytest.mark.requirement("S1-26")
async def test_a_provider_never_gets_tokens(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as provider:
        config = {
            "pools": {"llama-8b": {"send_tokens": "nvext"}},
            "models": {"big": {"provider": "elsewhere"}},
            "providers": {"elsewhere": {"kind": "openai", "base_url": provider.url}},
        }
        edge = await start_edge(config=config)
        edge.stages.reply = knowing_tokens(
            edge,
            target=Target(model="big", provider="elsewhere"),
            endpoints=[ChosenEndpoint(worker="elsewhere", url="")],
        )
        assert (await raw_request(edge.url, post(CHAT, b'{"model":"llama-8b","messages":[]}'))).status == 200
    assert "nvext" not in json.loads(provider.received[0].body)


@pytest.mark.requirement("S1-29")
@pytest.mark.parametrize("code", ["unknown_worker", "no_endpoints", "saturated"])
async def test_beside_a_worker_requests_go_there_and_elsewhere_when_it_cant_take_them(
    start_edge: StartEdge, code: str
) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url, own_worker="worker-1")
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
        assert [request.headers.get("x-gateway-worker-id") for request, _, _ in edge.stages.asked] == ["worker-1"]
        edge.stages.asked.clear()

        def full(request: PreprocessRequest) -> Decision | Rejection:
            if "x-gateway-worker-id" not in request.headers:
                return builders.decision(
                    request.request_id, endpoints=(ChosenEndpoint(worker="worker-2", url=engine.url),)
                )
            return Rejection(
                request_id=request.request_id,
                stage="scheduler",
                status=503,
                type="server_error",
                code=code,
                message="-",
            )

        edge.stages.reply = full
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
    assert len(edge.stages.asked) == 2
    await eventually(lambda: len(edge.events.of(ResponseCompleted)) == 2)
    assert edge.events.of(ResponseCompleted)[-1].worker == "worker-2"
    assert edge.metric("pointsman_edge_sent_elsewhere_total") == 1
