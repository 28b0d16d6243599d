"""The way in: Envoy's messages, the requests to the stages, and the answers to Envoy."""

import gzip
import json
from array import array

import grpc
import pytest

from pointsman_contracts.content import PromptTokens
from pointsman_contracts.journey import BodyEdit, HeaderEdit, PreprocessRequest, Target
from pointsman_contracts.message import Blob
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.reply import ChosenEndpoint, Decision, Rejection
from pointsman_contracts.response import RequestRejected
from pointsman_edge.deciding.decider import StagesMissing
from pointsman_epp_adapter.domain.destination import SCORES
from pointsman_testing import builders
from pointsman_testing.ext_proc import BUFFERED, CHAT, DESTINATION, FULL_DUPLEX, NONE, STREAMED, sent_on
from pointsman_testing.picker import StartPicker

BOTH = "10.0.0.1:8000,10.0.0.2:8000"


@pytest.mark.requirement("S1-25", "S1-40")
async def test_header_and_metadata_name_the_same_endpoints_in_order(start_picker: StartPicker) -> None:
    picker = await start_picker()
    head, body = await sent_on(picker.client.open(), headers={"x-request-id": "mine"})
    assert (head.kind, body.kind) == ("request_headers", "request_body")
    assert head.set[DESTINATION] == head.metadata["envoy.lb"][DESTINATION] == BOTH
    assert head.metadata["pointsman"] == {"level": "full", "request_id": "mine", "worker": "worker-1"}
    assert head.set["x-gateway-worker-id"] == "worker-1"
    assert head.clears_route
    assert (body.body, body.end, head.set["content-length"]) == (CHAT, True, str(len(CHAT)))
    ((request, asked, _),) = picker.stages.asked
    assert (request.request_id, request.edge, request.path, asked) == ("mine", "epp-1", "/v1/chat/completions", CHAT)


async def test_scores_become_metadata_beside_the_endpoints_and_no_header(start_picker: StartPicker) -> None:
    picker = await start_picker()
    scores = {"10.0.0.1:8000": 1.5, "10.0.0.2:8000": 0.25, "10.0.0.3:8000": 0.0}
    picker.stages.changes = {"headers": (HeaderEdit(name=SCORES, value=json.dumps(scores)),)}
    head, _ = await sent_on(picker.client.open())
    assert head.metadata["envoy.lb"] == {DESTINATION: BOTH, SCORES: scores}
    assert head.metadata["pointsman"]["worker"] == "worker-1"
    assert SCORES not in head.set


async def test_a_buffered_body_stays_with_envoy_unless_it_changes(start_picker: StartPicker) -> None:
    picker = await start_picker()
    for edits, expected in (((), None), ((BodyEdit(field="model", value="other"),), "other")):
        picker.stages.changes = {"body": edits}
        exchange = picker.client.open()
        await exchange.request(modes=(BUFFERED, NONE))
        assert (await exchange.reply()).kind == "request_headers"
        await exchange.body(CHAT)
        reply = await exchange.reply()
        assert reply.kind == "request_body"
        assert reply.set[DESTINATION] == BOTH
        assert expected is None or json.loads(reply.body or b"")["model"] == expected
        assert (reply.body is None) == (expected is None) == ("content-length" not in reply.set)


@pytest.mark.parametrize("modes", [(FULL_DUPLEX, NONE), (BUFFERED, NONE)])
async def test_a_compressed_body_reaches_stages_and_engine_uncompressed(
    modes: tuple[int, int], start_picker: StartPicker
) -> None:
    picker = await start_picker()
    exchange = picker.client.open()
    await exchange.request(headers={"content-encoding": "gzip"}, modes=modes)
    head = await exchange.reply() if modes[0] == BUFFERED else None
    await exchange.body(gzip.compress(CHAT))
    head = await exchange.reply() if head is None else head
    body = await exchange.reply()
    changes = body if modes[0] == BUFFERED else head
    assert (body.body, changes.set["content-length"]) == (CHAT, str(len(CHAT)))
    assert "content-encoding" in changes.removed
    ((_, asked, _),) = picker.stages.asked
    assert asked == CHAT


async def test_a_large_body_arrives_in_pieces_and_leaves_in_pieces_that_envoy_takes(start_picker: StartPicker) -> None:
    picker = await start_picker()
    large = b'{"model":"llama-8b","messages":"' + b"x" * 300_000 + b'"}'
    exchange = picker.client.open()
    await exchange.request()
    for start in range(0, len(large), 50_000):
        await exchange.body(large[start : start + 50_000], end=False)
    await exchange.body(b"", end=True)
    await exchange.reply()
    pieces: list[bytes] = []
    end = False
    while not end:
        piece = await exchange.reply()
        pieces.append(piece.body or b"")
        end = piece.end
    assert b"".join(pieces) == large
    assert max(map(len, pieces)) <= 62_000


async def test_trailers_end_a_body(start_picker: StartPicker) -> None:
    picker = await start_picker()
    exchange = picker.client.open()
    await exchange.request()
    await exchange.body(CHAT, end=False)
    await exchange.trailers()
    head, body, trailers = await exchange.replies(3)
    assert (head.kind, body.body, body.end, trailers.kind) == ("request_headers", CHAT, False, "request_trailers")


async def test_the_decisions_headers_are_set_and_what_a_client_may_not_send_is_removed(
    start_picker: StartPicker,
) -> None:
    picker = await start_picker()
    picker.stages.changes = {
        "headers": (
            HeaderEdit(name="x-prefiller-host-port", value="10.0.0.9:8000"),
            HeaderEdit(name="x-encoder-hosts-ports"),
            HeaderEdit(name="x-removed", value="by a later stage"),
            HeaderEdit(name="X-Removed"),
            HeaderEdit(name="transfer-encoding", value="chunked"),
            HeaderEdit(name="host", value="elsewhere"),
            HeaderEdit(name="content-type"),
            HeaderEdit(name="Content-Type", value="application/json"),
        )
    }
    sent = {
        "x-kv-cache-source-host-port": "6.6.6.6:1", "x-data-parallel-rank": "3", "x-user-id": "root",
        "x-prefiller-host-port": "6.6.6.6:1", "x-encoder-hosts-ports": "6.6.6.6:1", DESTINATION: "6.6.6.6:1",
        "x-llm-d-inference-objective": "vip", "authorization": "Bearer secret", "cookie": "a=b",
        "accept-encoding": "gzip", "user-agent": "me",
    }  # fmt: skip
    head, _ = await sent_on(picker.client.open(), headers=sent)
    assert head.set["x-prefiller-host-port"] == "10.0.0.9:8000"
    assert head.set[DESTINATION] == BOTH
    assert not {"x-removed", "transfer-encoding", "host"} & head.set.keys()
    assert head.set["content-type"] == "application/json"
    assert head.removed == {
        "x-kv-cache-source-host-port", "x-data-parallel-rank", "x-encoder-hosts-ports", "x-user-id",
        "x-llm-d-inference-objective", "authorization", "cookie", "accept-encoding",
    }  # fmt: skip
    ((request, _, _),) = picker.stages.asked
    assert request.headers["authorization"] == "Bearer secret"
    assert not {"x-user-id", "x-llm-d-inference-objective", DESTINATION} & set(request.headers)


@pytest.mark.parametrize("believed", [True, False])
async def test_a_client_whose_address_envoy_does_not_send_is_believed_only_where_that_is_configured(
    believed: bool, start_picker: StartPicker
) -> None:
    picker = await start_picker(trusted_proxies=["0.0.0.0/0", "::/0"], trust_unnamed=believed)
    await sent_on(picker.client.open(), headers={"x-gateway-inference-objective": "vip"}, peer="")
    ((request, _, _),) = picker.stages.asked
    assert request.headers.get("x-pointsman-objective") == ("vip" if believed else None)


WISHES = {
    "the newer names": {
        "x-llm-d-inference-objective": "vip", "x-llm-d-inference-fairness-id": "team",
        "x-gateway-inference-objective": "old", "x-gateway-inference-fairness-id": "old",
    },
    "the older names": {"x-gateway-inference-objective": "vip", "x-gateway-inference-fairness-id": "team"},
}  # fmt: skip


@pytest.mark.parametrize("name", WISHES)
async def test_a_trusted_peer_says_objective_and_fairness_by_any_of_their_names(
    name: str, start_picker: StartPicker
) -> None:
    picker = await start_picker(trusted_proxies=["10.9.0.0/16"])
    await sent_on(picker.client.open(), headers={**WISHES[name], "x-slo-ttft-ms": "200"})
    ((request, _, _),) = picker.stages.asked
    assert request.headers["x-pointsman-objective"] == "vip"
    assert request.headers["x-pointsman-fairness-id"] == "team"
    assert request.headers["x-slo-ttft-ms"] == "200"


@pytest.mark.parametrize(
    ("hint", "told"), [(None, None), (["10.0.0.2:8000", "10.0.0.3"], "10.0.0.2:8000,10.0.0.3"), ([], "")]
)
async def test_envoys_subset_applies_to_every_client(
    hint: list[str] | None, told: str | None, start_picker: StartPicker
) -> None:
    picker = await start_picker()
    await sent_on(picker.client.open(), subset=hint)
    ((request, _, _),) = picker.stages.asked
    assert request.headers.get("x-gateway-destination-endpoint-subset") == told


async def test_no_endpoint_outside_the_subset_is_named_whatever_was_decided(start_picker: StartPicker) -> None:
    picker = await start_picker("http://10.0.0.1:80", "http://[::1]:80", "http://10.0.0.3:80")
    for subset, told in (
        (["10.0.0.3"], "10.0.0.3:80,10.0.0.3:80"),
        (["[::1]:80", "10.0.0.3:81"], "[::1]:80,10.0.0.3:80"),
        (["::1"], "[::1]:80,[::1]:80"),
    ):
        head, _ = await sent_on(picker.client.open(), subset=subset)
        assert head.set[DESTINATION] == told
    for subset in (["10.0.0.9"], []):
        (refused,) = await sent_on(picker.client.open(), subset=subset)
        assert (refused.status, json.loads(refused.body or b"")["error"]["code"]) == (503, "endpoint_not_in_subset")


async def test_a_rewrite_is_sent_on_and_the_client_gets_the_name_it_asked_for(start_picker: StartPicker) -> None:
    picker = await start_picker(trusted_proxies=["10.9.8.7/32"])
    picker.stages.changes = {"model": "canary", "target": Target(model="canary", pool="llama-8b")}
    exchange = picker.client.open()
    _, body = await sent_on(exchange, headers={"x-gateway-model-name-rewrite": "canary"})
    assert json.loads(body.body or b"")["model"] == "canary"
    ((_, asked, _),) = picker.stages.asked
    assert json.loads(asked)["model"] == "canary"
    await exchange.response()
    await exchange.body(b'{"model":"ca', end=False, of="response")
    await exchange.body(b'nary"}', of="response")
    assert (await exchange.reply()).removed == {"content-length"}
    assert (await exchange.reply()).body == b'{"model":"llama-8b"}'


async def test_dynamos_headers_name_the_worker_and_the_prefiller(start_picker: StartPicker) -> None:
    picker = await start_picker(dynamo_headers=True)
    view = WorkerView(worker="prefill-7", url="http://10.0.0.9:8000")
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(view,)))
    picker.stages.changes = {
        "headers": (
            HeaderEdit(name="x-prefiller-host-port", value="10.0.0.9:8000"),
            HeaderEdit(name="x-data-parallel-rank", value="3"),
        )
    }
    head, _ = await sent_on(picker.client.open())
    expected = {
        "x-worker-instance-id": "worker-1", "x-dynamo-worker-instance-id": "worker-1",
        "x-prefill-instance-id": "prefill-7", "x-dynamo-prefill-instance-id": "prefill-7",
        "x-dp-rank": "3", "x-dynamo-dp-rank": "3", "x-dynamo-routing-mode": "disaggregated",
        DESTINATION: "10.0.0.1:8000,10.0.0.1:8000",
    }  # fmt: skip
    assert expected.items() <= head.set.items()


async def test_endpoints_that_envoy_cant_reach_are_left_out(start_picker: StartPicker) -> None:
    picker = await start_picker(
        "http://engine:8000", "http://10.0.0.1:8000/base", "http://[::1]:80", "http://10.0.0.1:80"
    )
    head, _ = await sent_on(picker.client.open())
    assert head.set[DESTINATION] == "[::1]:80,10.0.0.1:80"
    picker.stages.changes = {"endpoints": (ChosenEndpoint(worker="w", url="http://engine:8000"),)}
    (refused,) = await sent_on(picker.client.open())
    assert (refused.status, json.loads(refused.body or b"")["error"]["code"]) == (503, "endpoint_not_routable")


async def test_a_model_of_a_provider_is_refused_in_words(start_picker: StartPicker) -> None:
    picker = await start_picker()
    picker.stages.changes = {"target": Target(model="big", provider="elsewhere"), "endpoints": ()}
    (refused,) = await sent_on(picker.client.open())
    assert (refused.status, json.loads(refused.body or b"")["error"]["code"]) == (501, "provider_not_routable")


REFUSED = {
    "no such model": (404, "model_not_found", None),
    "too many": (429, "saturated", "2"),
    "nobody": (503, "stage_unavailable", "1"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_rejection_is_an_answer_in_openais_shape(name: str, start_picker: StartPicker) -> None:
    status, code, retry = REFUSED[name]
    picker = await start_picker()
    picker.stages.reply = lambda request: Rejection(
        request_id=request.request_id,
        stage="scheduler",
        type="invalid_request_error",
        status=status,
        code=code,
        message=name,
        retry_after_s=None if retry is None else float(retry),
        answer_headers=(HeaderEdit(name="x-ratelimit-remaining-requests", value="0"),),
    )
    exchange = picker.client.open()
    (refused,) = await sent_on(exchange, headers={"x-request-id": "mine"})
    error = json.loads(refused.body or b"")["error"]
    assert (refused.status, error["code"], error["message"]) == (status, code, name)
    assert (refused.set["content-type"], refused.set["x-request-id"]) == ("application/json", "mine")
    assert refused.set.get("retry-after") == retry
    assert refused.set["x-ratelimit-remaining-requests"] == "0"
    (done,) = await picker.completed()
    assert (done.outcome, done.status, done.worker) == ("rejected", status, None)
    assert len(picker.events.of(RequestRejected)) == 1
    assert await exchange.ended() is grpc.StatusCode.OK


BAD: dict[str, tuple[dict[str, object], bytes | None, int]] = {
    "a body over the limit, announced": ({"headers": {"content-length": "2000000"}}, None, 413),
    "a body over the limit, unannounced": ({}, b'"' + b"x" * 1_100_000, 413),
    "no body": ({"end": True}, None, 400),
    "an empty body": ({}, b"", 400),
    "no JSON": ({"headers": {"content-type": "text/plain"}}, None, 415),
    "another method": ({"method": "DELETE", "end": True}, None, 405),
    "another path": ({"path": "/metrics", "method": "GET", "end": True}, None, 404),
}
"""The request that is sent, with the body if it gets as far, and the status of the answer."""


@pytest.mark.parametrize("name", BAD)
async def test_a_request_that_cant_be_taken_is_refused_before_any_stage_is_asked(
    name: str, start_picker: StartPicker
) -> None:
    request, body, status = BAD[name]
    picker = await start_picker(config={"edge": {"max_body": "1MiB"}})
    exchange = picker.client.open()
    await exchange.request(**request)  # pyright: ignore[reportArgumentType] - passed on as given
    if body is not None:
        await exchange.body(body)
    refused = await exchange.reply()
    assert (refused.kind, refused.status) == ("immediate_response", status)
    assert picker.stages.asked == []


async def test_while_the_stages_are_missing_the_edge_decides_alone_and_says_so(start_picker: StartPicker) -> None:
    picker = await start_picker()
    picker.stages.failure = StagesMissing("no live scheduler")
    (refused,) = await sent_on(picker.client.open())
    assert (refused.status, refused.set["retry-after"]) == (503, "1")
    views = (WorkerView(worker="a", url="http://10.0.0.5:1"), WorkerView(worker="b", url="http://10.0.0.6:1"))
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=views))
    exchanges = [picker.client.open(), picker.client.open()]
    heads = [(await sent_on(exchange))[0] for exchange in exchanges]
    assert {head.metadata["pointsman"]["worker"] for head in heads} == {"a", "b"}, "own requests are counted"
    assert {head.metadata["pointsman"]["level"] for head in heads} == {"static"}
    await exchanges[0].response(204, end=True)
    assert (await exchanges[0].reply()).set["x-pointsman-level"] == "static"


async def test_the_only_engine_of_the_subset_is_found_while_the_stages_are_missing(start_picker: StartPicker) -> None:
    picker = await start_picker()
    picker.stages.failure = StagesMissing("no live scheduler")
    views = tuple(WorkerView(worker=f"w{each}", url=f"http://10.0.0.{each}:8000") for each in range(10))
    picker.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=views))
    for _ in range(10):
        head, _ = await sent_on(picker.client.open(), subset=["10.0.0.7:8000"])
        assert head.set[DESTINATION] == "10.0.0.7:8000,10.0.0.7:8000"
    (refused,) = await sent_on(picker.client.open(), subset=["10.0.0.77"])
    assert (refused.status, json.loads(refused.body or b"")["error"]["code"]) == (503, "endpoint_not_in_subset")


async def test_a_policy_that_insists_is_kept_with_503(start_picker: StartPicker) -> None:
    picker = await start_picker(config={"profiles": {"standard": {"static": "deny"}}})
    picker.stages.failure = StagesMissing("no live scheduler")
    (refused,) = await sent_on(picker.client.open())
    assert refused.status == 503
    assert (await picker.completed())[0].level == "closed"


@pytest.mark.parametrize("mode", [STREAMED, NONE], ids=["streamed", "none"])
async def test_a_mode_in_which_no_decision_can_wait_is_refused_in_words(mode: int, start_picker: StartPicker) -> None:
    picker = await start_picker()
    exchange = picker.client.open()
    await exchange.request(modes=(mode, NONE))
    assert await exchange.ended() is grpc.StatusCode.INVALID_ARGUMENT
    assert "FULL_DUPLEX_STREAMED or BUFFERED" in (await exchange.call.details() or "")


async def test_an_envoy_that_names_no_modes_has_the_protocols(start_picker: StartPicker) -> None:
    picker = await start_picker()
    head, body = await sent_on(picker.client.open(), modes=None)
    assert (head.set[DESTINATION], body.body) == (BOTH, CHAT)


@pytest.mark.requirement("S3-8")
async def test_a_forged_header_behind_envoy_reaches_neither_stages_nor_engine(start_picker: StartPicker) -> None:
    picker = await start_picker()
    forged = {"X-Pointsman-Tenant": "admin", "x_gateway_model_name": "m", "x-tenant-id": "t", "API-Key": "canary-3"}
    head, _ = await sent_on(picker.client.open(), headers=forged)
    assert {name.lower() for name in head.removed} >= {name.lower() for name in forged}
    ((request, _, _),) = picker.stages.asked
    assert set(request.headers) & {name.lower() for name in forged} == {"api-key"}


async def test_an_unauthorized_client_gets_the_challenge_behind_envoy_too(start_picker: StartPicker) -> None:
    picker = await start_picker()
    challenge = 'Bearer realm="pointsman"'
    picker.stages.reply = lambda request: Rejection(
        request_id=request.request_id,
        stage="preprocessor",
        status=401,
        type="invalid_request_error",
        code="missing_api_key",
        message="No credential.",
        answer_headers=(HeaderEdit(name="www-authenticate", value=challenge),),
    )
    (refused,) = await sent_on(picker.client.open())
    assert (refused.status, refused.set["www-authenticate"]) == (401, challenge)


@pytest.mark.requirement("S1-23")
async def test_a_request_for_the_route_gets_the_worker_as_an_answer(start_picker: StartPicker) -> None:
    picker = await start_picker(trusted_proxies=["10.9.0.0/16"])
    for modes, peer in (((FULL_DUPLEX, FULL_DUPLEX), "10.9.8.7:1"), ((BUFFERED, STREAMED), "10.9.8.7:1")):
        exchange = picker.client.open()
        await exchange.request(modes=modes, peer=peer, headers={"x-routing-request": "true"})
        if modes[0] == BUFFERED:
            await exchange.reply()
        await exchange.body(b'{"model":"llama-8b","messages":[]}')
        told = await exchange.reply()
        document = json.loads(told.body or b"")
        assert (told.kind, told.status, document["worker_id"]) == ("immediate_response", 200, "worker-1")
        assert (document["endpoint"], told.set["x-gateway-destination-endpoint"]) == ("10.0.0.1:8000", "10.0.0.1:8000")
        await exchange.done()
    done = await picker.completed(2)
    assert {(each.outcome, each.status) for each in done} == {("routed", 200)}


async def test_a_stranger_gets_no_routes(start_picker: StartPicker) -> None:
    picker = await start_picker(trusted_proxies=["10.1.0.0/16"])
    exchange = picker.client.open()
    await exchange.request(peer="10.9.8.7:1", headers={"x-routing-request": "true"})
    assert (await exchange.reply()).status == 403
    assert picker.stages.asked == []


@pytest.mark.requirement("S1-26", "S1-27")
async def test_engines_get_the_tokens_that_were_counted_for_the_choice(start_picker: StartPicker) -> None:
    picker = await start_picker(config={"pools": {"llama-8b": {"models": ["llama-8b"], "send_tokens": "nvext"}}})

    def decide(request: PreprocessRequest) -> Decision:
        picker.hear(
            PromptTokens(request_id=request.request_id, model="llama-8b", ids=Blob(array("I", [5, 6]).tobytes()))
        )
        return builders.decision(request.request_id)

    picker.stages.reply = decide
    exchange = picker.client.open()
    await exchange.request()
    await exchange.body(b'{"model":"llama-8b","messages":[]}')
    _, body = await exchange.replies(2)
    assert json.loads(body.body or b"")["nvext"] == {"token_data": [5, 6]}
