"""One engine computes the prompt and another one answers: the client sees one request, whatever goes wrong between
them."""

import asyncio
import json

import pytest

from pointsman_contracts.journey import HeaderEdit, PreprocessRequest, Target
from pointsman_contracts.message import read_fields
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.reply import ChosenEndpoint, Decision, PrefillLeg
from pointsman_contracts.response import AttemptFailed, LegReport, ResponseCompleted, ResponseStarted
from pointsman_contracts.verdicts import MoveRequests
from pointsman_frontend.adapters import prefill_leg
from pointsman_testing import builders, eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.nixl_pair import NixlPair
from pointsman_testing.ports import free_port
from pointsman_testing.raw_http import RawResponse, post, raw_connection, raw_request
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine

CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, object]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 64, "min_tokens": 9},
    "/v1/completions": {"prompt": ["hello"], "max_tokens": 64, "min_tokens": 9, "logprobs": 3},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 64},
    "/v1/responses": {"input": "hello", "max_output_tokens": 64},
}


async def started(start_edge: StartEdge, pair: NixlPair, *more: str, **changes: object) -> EdgeUnderTest:
    """An edge whose decisions send the prompt to the pair's first engine, and the answer's part to its second."""
    edge = await start_edge(pair.decode.url, *more)
    leg: dict[str, object] = {"worker": "prefiller", "url": pair.prefill.url, "engine": "vllm"}
    edge.stages.changes = {
        "prefill": read_fields(PrefillLeg, leg | changes),
        "headers": (HeaderEdit(name="x-prefiller-host-port", value=pair.prefill.url.partition("//")[2]),),
    }
    return edge


async def ask(edge: EdgeUnderTest, path: str = CHAT, /, **changes: object) -> RawResponse:
    body = {"model": "llama-8b", **BODIES[path], **changes}
    return await raw_request(edge.url, post(path, json.dumps(body).encode()))


async def end_of(edge: EdgeUnderTest) -> ResponseCompleted:
    await eventually(lambda: bool(edge.events.of(ResponseCompleted)))
    return edge.events.of(ResponseCompleted)[-1]


async def leg_of(edge: EdgeUnderTest) -> LegReport:
    (leg,) = (await end_of(edge)).legs
    return leg


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", sorted(BODIES))
async def test_two_engines_give_the_answer_of_one(start_edge: StartEdge, path: str, stream: bool) -> None:
    changes: dict[str, object] = {"stream": True} if stream else {}
    if stream and path in (CHAT, "/v1/completions"):
        changes["stream_options"] = {"include_usage": True}
    async with NixlPair() as pair:
        edge = await start_edge(pair.decode.url)
        alone = await ask(edge, path, **changes)
        edge = await started(start_edge, pair)
        split = await ask(edge, path, **changes)
    assert (split.status, split.complete, split.body) == (200, True, alone.body)
    assert (pair.transfers, pair.computed, pair.held) == (1, 1, {})
    end = await end_of(edge)
    assert (end.outcome, end.level, end.worker) == ("ok", "full", "worker-1")
    assert [(each.worker, each.outcome) for each in end.attempts] == [("worker-1", "answered")]
    assert [(each.leg, each.worker, each.outcome, each.status) for each in end.legs] == [
        ("prefill", "prefiller", "answered", 200)
    ]
    assert end.ttft_ms is not None
    assert end.ttft_ms >= end.legs[0].began_ms + end.legs[0].took_ms
    if stream:
        (first,) = edge.events.of(ResponseStarted)
        assert first.worker == "worker-1"
        assert first.handed_ms is not None
        assert 0.0 <= first.handed_ms <= end.ttft_ms - end.legs[0].took_ms


async def test_only_the_engine_that_computes_the_prompt_is_told_where_to_pull_it_from(start_edge: StartEdge) -> None:
    async with NixlPair() as pair:
        edge = await started(start_edge, pair)
        source = HeaderEdit(name="x-kv-cache-source-host-port", value="10.0.0.9:8000")
        edge.stages.changes["headers"] = (source,)
        await ask(edge)
    [computed], [answered] = pair.prefill.received, pair.decode.received
    assert computed.header(source.name) == source.value
    assert answered.header(source.name) is None


async def test_the_engine_that_answers_gets_the_clients_own_request(start_edge: StartEdge) -> None:
    wanted: dict[str, object] = {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "response_format": {"type": "json_object"},
        "logprobs": True,
        "top_logprobs": 2,
        "stop": ["x"],
        "seed": 7,
    }
    async with NixlPair() as pair:
        edge = await started(start_edge, pair)
        await ask(edge, **wanted)
    asked = {"model": "llama-8b", **BODIES[CHAT], **wanted}
    [computed], [answered] = (
        [json.loads(each.body) for each in engine.received] for engine in (pair.prefill, pair.decode)
    )
    assert {name: value for name, value in answered.items() if name != "kv_transfer_params"} == asked
    assert answered["kv_transfer_params"]["remote_request_id"] == "chatcmpl-1"
    # The prompt is the same: what the chat template reads stays.
    assert {name: computed[name] for name in ("messages", "tools", "response_format", "seed")} == {
        name: asked[name] for name in ("messages", "tools", "response_format", "seed")
    }
    assert (computed["max_tokens"], computed["stream"]) == (1, False)
    assert pair.decode.received[0].header("x-prefiller-host-port") is None
    ids = {each.header("x-request-id") for each in (*pair.prefill.received, *pair.decode.received)}
    assert ids == {(await end_of(edge)).request_id}


@pytest.mark.parametrize(
    ("path", "changes", "why"),
    [
        (CHAT, {"n": 2}, "n asks for several answers"),
        ("/v1/completions", {"best_of": 3}, "best_of asks for several answers"),
        ("/v1/completions", {"echo": True}, "log probabilities of the prompt aren't transferred"),
        (CHAT, {"prompt_logprobs": 0}, "log probabilities of the prompt aren't transferred"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "several prompts"),
        (
            "/v1/responses",
            {"previous_response_id": "resp-0"},
            "previous_response_id belongs to the engine that answers",
        ),
    ],
)
async def test_a_request_that_two_engines_cannot_share_is_served_by_one(
    start_edge: StartEdge, path: str, changes: dict[str, object], why: str
) -> None:
    async with NixlPair() as pair:
        edge = await started(start_edge, pair)
        assert (await ask(edge, path, **changes)).status == 200
    assert (pair.prefill.received, pair.computed) == ([], 1)
    leg = await leg_of(edge)
    assert (leg.outcome, leg.reason) == ("skipped", why)
    assert (await end_of(edge)).level == "full"


async def refuse(request: Received) -> None:
    await request.answer(b'{"error":"starting"}', status=503)


async def fail(request: Received) -> None:
    await request.answer(b'{"error":{"message":"out of memory"}}', status=500)


async def hang_up(request: Received) -> None:
    request.cut()


async def talk_nonsense(request: Received) -> None:
    await request.answer(b"<html>")


async def tell_an_error_with_200(request: Received) -> None:
    await request.answer(b'{"error":{"message":"out of memory","code":500}}')


async def answer_without_parameters(request: Received) -> None:
    await request.answer(ANSWER)


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (refuse, "failed"),
        (fail, "failed"),
        (hang_up, "failed"),
        (talk_nonsense, "useless"),
        (tell_an_error_with_200, "useless"),
        (answer_without_parameters, "useless"),
    ],
)
async def test_an_engine_that_does_not_compute_the_prompt_costs_the_client_nothing(
    start_edge: StartEdge, script: object, outcome: str
) -> None:
    async with NixlPair() as pair:
        edge = await started(start_edge, pair)
        pair.prefill.script = script  # pyright: ignore[reportAttributeAccessIssue] - one of those above
        answer = await ask(edge)
        assert (answer.status, answer.header("x-pointsman-level")) == (200, "degraded")
        assert (pair.computed, pair.transfers) == (1, 0)
        leg = await leg_of(edge)
        assert (leg.outcome, bool(leg.reason)) == (outcome, True)
        assert edge.metric("pointsman_edge_prefill_legs_total") == 1
        told = [(each.worker, each.leg) for each in edge.events.of(AttemptFailed)]
        assert told == ([("prefiller", "prefill")] if outcome == "failed" else [])
        # Not again at once.
        await ask(edge)
        assert len(pair.prefill.received) == 1
        assert (await end_of(edge)).legs[0].outcome == "skipped"


async def test_an_engine_that_is_gone_is_no_reason_to_fail(start_edge: StartEdge) -> None:
    async with NixlPair() as pair:
        edge = await started(start_edge, pair, url=f"http://127.0.0.1:{free_port()}")
        assert (await ask(edge, stream=True)).complete
        (first,) = edge.events.of(ResponseStarted)
        assert first.handed_ms is None
    assert (await leg_of(edge)).outcome == "refused"


async def test_a_slow_engine_leaves_the_other_one_half_of_the_time(start_edge: StartEdge) -> None:
    async def wait(request: Received) -> None:
        await request.gone.wait()

    async with NixlPair() as pair:
        pair.prefill.script = wait
        edge = await start_edge(pair.decode.url, config={"edge": {"request_timeout": "2s"}})
        edge.stages.changes = {"prefill": PrefillLeg(worker="prefiller", url=pair.prefill.url, engine="vllm")}
        assert (await ask(edge)).status == 200
        assert pair.prefill.received[0].gone.is_set()
    assert (await leg_of(edge)).outcome == "timeout"


async def test_a_scheduler_ends_the_wait_for_an_engine_that_makes_no_progress(start_edge: StartEdge) -> None:
    async def wait(request: Received) -> None:
        await request.gone.wait()

    async with NixlPair() as pair:
        pair.prefill.script = wait
        edge = await started(start_edge, pair)
        asked = asyncio.create_task(ask(edge))
        await eventually(lambda: bool(pair.prefill.received))
        request_id = pair.prefill.received[0].header("x-request-id") or ""
        moved = edge.move(MoveRequests(pool="llama-8b", worker="worker-1", request_ids=(request_id,), reason="late"))
        assert moved.request_ids == (request_id,)
        assert (await asked).status == 200
    leg = await leg_of(edge)
    assert (leg.outcome, leg.reason, pair.computed) == ("stalled", "late", 1)


async def test_the_clients_own_error_is_that_of_the_engine_that_answers(start_edge: StartEdge) -> None:
    async with NixlPair() as pair:
        edge = await started(start_edge, pair)
        answer = await ask(edge, min_tokens=100, max_tokens=10)
    assert answer.status == 400
    assert b"min_tokens" in answer.body
    assert edge.events.of(AttemptFailed) == []


async def refuse_the_parameters(request: Received) -> None:
    if b"kv_transfer_params" in request.body:
        await request.answer(b'{"error":{"message":"extra fields not permitted"}}', status=400)
    else:
        await request.answer(ANSWER)


async def lose_the_blocks(request: Received) -> None:
    if b"kv_transfer_params" not in request.body:
        await request.answer(ANSWER)
    elif b'"stream": true' in request.body:
        await request.begin_stream()
        await request.chunk(b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n')
        await request.chunk(b'data: {"error":{"message":"Internal server error","code":500}}\n\n')
        await request.chunk(b"")
    else:
        await request.answer(b'{"error":{"message":"Internal server error","code":500}}', status=500)


async def lose_the_blocks_with_200(request: Received) -> None:
    if b"kv_transfer_params" in request.body and b'"stream": true' not in request.body:
        await tell_an_error_with_200(request)
    else:
        await lose_the_blocks(request)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("script", [refuse_the_parameters, lose_the_blocks, lose_the_blocks_with_200])
async def test_blocks_that_do_not_come_over_are_computed_by_the_engine_that_answers(
    start_edge: StartEdge, script: object, stream: bool
) -> None:
    async with NixlPair() as pair:
        pair.decode.script = script  # pyright: ignore[reportAttributeAccessIssue] - one of those above
        edge = await started(start_edge, pair)
        assert (await ask(edge, stream=stream)).status == 200
        assert len(pair.decode.received) == 2
        leg = await leg_of(edge)
        assert (leg.outcome, (await end_of(edge)).level) == ("lost", "degraded")
        assert edge.events.of(AttemptFailed) == []
        # These two are left alone for a while.
        await ask(edge)
        assert len(pair.prefill.received) == 1


async def test_a_prompt_that_no_engine_has_fetched_goes_to_the_next_one(start_edge: StartEdge) -> None:
    async with NixlPair() as pair, NixlPair() as gone:
        await gone.decode.stop()
        edge = await start_edge(gone.decode.url, pair.decode.url)
        edge.stages.changes = {"prefill": PrefillLeg(worker="prefiller", url=pair.prefill.url, engine="vllm")}
        assert (await ask(edge)).status == 200
    assert (pair.transfers, pair.computed, len(pair.prefill.received)) == (1, 0, 1)
    assert (await end_of(edge)).worker == "worker-2"


async def test_a_prompt_that_may_be_freed_by_now_is_computed_by_the_next_endpoint(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_leg, "KEPT_S", 0.0)
    async with NixlPair() as pair, NixlPair() as gone:
        await gone.decode.stop()
        edge = await start_edge(gone.decode.url, pair.decode.url)
        edge.stages.changes = {"prefill": PrefillLeg(worker="prefiller", url=pair.prefill.url, engine="vllm")}
        assert (await ask(edge)).status == 200
    assert (pair.transfers, pair.computed, len(pair.prefill.received)) == (0, 1, 1)
    leg = await leg_of(edge)
    assert (leg.outcome, (await end_of(edge)).level) == ("lost", "degraded")
    assert "freed" in leg.reason


async def test_another_model_never_gets_the_prompt_of_the_first(start_edge: StartEdge) -> None:
    async with NixlPair() as pair, NixlPair() as gone, ScriptedEngine() as other:
        await gone.decode.stop()
        config: dict[str, object] = {"pools": {"llama-8b": {"models": ["llama-8b"]}, "qwen": {"models": ["qwen"]}}}
        edge = await start_edge(gone.decode.url, config=config)
        view = WorkerView(worker="q", url=other.url, models=("qwen",))
        edge.hear(PoolSnapshot(pool="qwen", source="c", sequence=1, at_ms=0, workers=(view,), models=("qwen",)))
        edge.stages.changes = {
            "prefill": PrefillLeg(worker="prefiller", url=pair.prefill.url, engine="vllm"),
            "alternatives": (Target(model="qwen", pool="qwen"),),
        }
        assert (await ask(edge)).status == 200
    [sent] = other.received
    assert json.loads(sent.body)["model"] == "qwen"
    assert b"kv_transfer_params" not in sent.body


async def test_a_prompt_that_an_engine_may_have_fetched_is_computed_by_the_next_one(start_edge: StartEdge) -> None:
    async with NixlPair() as pair, ScriptedEngine(hang_up) as dying:
        edge = await start_edge(dying.url, pair.decode.url)
        edge.stages.changes = {"prefill": PrefillLeg(worker="prefiller", url=pair.prefill.url, engine="vllm")}
        assert (await ask(edge)).status == 200
    assert (pair.transfers, pair.computed, len(pair.prefill.received)) == (0, 1, 1)


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_client_that_leaves_frees_the_engine_that_works_for_it(start_edge: StartEdge, leg: str) -> None:
    async def wait(request: Received) -> None:
        await request.gone.wait()

    async with NixlPair() as pair:
        engine = pair.prefill if leg == "prefill" else pair.decode
        engine.script = wait
        edge = await started(start_edge, pair)
        async with raw_connection(edge.url) as client:
            await client.send(post(CHAT, json.dumps({"model": "llama-8b", **BODIES[CHAT]}).encode()))
            await eventually(lambda: bool(engine.received))
        await eventually(engine.received[0].gone.is_set)
        end = await end_of(edge)
        assert (end.outcome, len(pair.decode.received)) == ("client_gone", int(leg == "decode"))


async def test_two_engines_that_meet_get_the_request_at_once_and_one_room(start_edge: StartEdge) -> None:
    both = asyncio.Barrier(2)

    async def meet(request: Received) -> None:
        await both.wait()
        await request.answer(ANSWER)

    async with ScriptedEngine(meet) as prefill, ScriptedEngine(meet) as decode:
        edge = await start_edge(decode.url)
        edge.stages.changes = {
            "prefill": PrefillLeg(worker="prefiller", url=prefill.url, engine="sglang", bootstrap_port=9001)
        }
        for _ in range(2):
            assert (await ask(edge, bootstrap_room=7)).status == 200
        pairs = zip(prefill.received, decode.received, strict=True)
        bodies = [(json.loads(one.body), json.loads(other.body)) for one, other in pairs]
    assert all(one == other for one, other in bodies)
    assert [(one["bootstrap_host"], one["bootstrap_port"]) for one, _ in bodies] == [("127.0.0.1", 9001)] * 2
    rooms = {one["bootstrap_room"] for one, _ in bodies}
    assert len(rooms) == 2
    assert all(7 != room < 2**63 for room in rooms)
    assert (await leg_of(edge)).outcome == "answered"


@pytest.mark.parametrize("script", [hang_up, fail])
async def test_an_engine_that_cannot_compute_prompts_is_asked_again_with_another_one_that_does(
    start_edge: StartEdge, script: object
) -> None:
    async def wait_for_the_prompt(request: Received) -> None:
        await request.gone.wait()

    async with ScriptedEngine() as dead, ScriptedEngine() as prefill, ScriptedEngine(wait_for_the_prompt) as decode:
        dead.script = script  # pyright: ignore[reportAttributeAccessIssue] - one of those above
        async with ScriptedEngine() as second:
            edge = await start_edge(decode.url)
            views = tuple(WorkerView(worker=f"worker-{number}", url="http://127.0.0.1:9") for number in (1, 2))
            edge.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=0, workers=views))
            asked = 0

            def decide(request: PreprocessRequest) -> Decision:
                nonlocal asked
                asked += 1
                name, engine, leg = ("worker-1", decode, dead) if asked == 1 else ("worker-2", second, prefill)
                return builders.decision(
                    request.request_id,
                    attempt=request.attempt,
                    endpoints=(ChosenEndpoint(worker=name, url=engine.url),),
                    prefill=PrefillLeg(worker=f"prefiller-{asked}", url=leg.url, engine="sglang"),
                )

            edge.stages.reply = decide
            assert (await ask(edge)).status == 200
            assert b"bootstrap_room" in second.received[0].body
        assert len(decode.received) == 1
        assert decode.received[0].gone.is_set()
    end = await end_of(edge)
    assert [(leg.worker, leg.outcome) for leg in end.legs] == [("prefiller-1", "failed"), ("prefiller-2", "answered")]
    # The engine that waited isn't to blame.
    assert end.attempts[0].outcome == "unsupported"


async def test_an_engine_that_cannot_compute_prompts_gets_none(start_edge: StartEdge) -> None:
    async with ScriptedEngine(fail) as prefill, ScriptedEngine() as decode:
        edge = await start_edge(decode.url)
        edge.stages.changes = {"prefill": PrefillLeg(worker="prefiller", url=prefill.url, engine="sglang")}
        decode.script = wait_for_room
        assert (await ask(edge)).status == 503
        assert (await ask(edge)).status == 503
        assert len(decode.received) == 1


async def test_a_request_that_both_engines_refuse_is_the_clients_error(start_edge: StartEdge) -> None:
    async def refuse_at_once(request: Received) -> None:
        await request.answer(b'{"error":{"message":"temperature is wrong"}}', status=400)

    async def refuse_later(request: Received) -> None:
        await eventually(lambda: bool(prefill.received))
        await refuse_at_once(request)

    async with ScriptedEngine(refuse_at_once) as prefill, ScriptedEngine(refuse_later) as decode:
        edge = await start_edge(decode.url)
        edge.stages.changes = {"prefill": PrefillLeg(worker="prefiller", url=prefill.url, engine="sglang")}
        answer = await ask(edge)
    assert answer.status == 400
    assert b"temperature is wrong" in answer.body
    assert edge.events.of(AttemptFailed) == []


async def wait_for_room(request: Received) -> None:
    assert b"bootstrap_room" in request.body
    await request.gone.wait()


async def test_each_answer_of_a_chat_has_a_room(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as prefill, ScriptedEngine() as decode:
        edge = await start_edge(decode.url)
        edge.stages.changes = {"prefill": PrefillLeg(worker="prefiller", url=prefill.url, engine="sglang")}
        assert (await ask(edge, n=3)).status == 200
        one, other = (json.loads(engine.received[0].body) for engine in (prefill, decode))
    assert one == other
    assert (one["bootstrap_host"], len(set(one["bootstrap_room"]))) == (["127.0.0.1"] * 3, 3)


async def test_a_context_server_hands_over_tokens_and_state(start_edge: StartEdge) -> None:
    async def context(request: Received) -> None:
        body = json.loads(request.body)
        params = body["disaggregated_params"]
        assert params["request_type"] == "context_only"
        assert body["stream"] is False
        answer = {
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": ""},
                    "finish_reason": "length",
                    "disaggregated_params": {
                        "request_type": "context_only",
                        "first_gen_tokens": [11],
                        "ctx_request_id": 5,
                        "encoded_opaque_state": "c3RhdGU=",
                        "disagg_request_id": params["disagg_request_id"],
                        "ctx_usage": None,
                    },
                }
            ],
            "prompt_token_ids": [1, 2, 3],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
        }
        await request.answer(json.dumps(answer).encode())

    async with ScriptedEngine(context) as prefill, ScriptedEngine() as decode:
        edge = await start_edge(decode.url)
        edge.stages.changes = {"prefill": PrefillLeg(worker="prefiller", url=prefill.url, engine="trtllm")}
        assert (await ask(edge)).status == 200
        sent = json.loads(decode.received[0].body)
    given = sent["disaggregated_params"]
    assert (given["request_type"], given["first_gen_tokens"], given["encoded_opaque_state"]) == (
        "generation_only",
        [11],
        "c3RhdGU=",
    )
    assert given["disagg_request_id"] >= 2**42
    assert given["ctx_usage"]["prompt_tokens"] == 3
    assert sent["prompt_token_ids"] == [1, 2, 3]
    assert sent["max_completion_tokens"] == 64
