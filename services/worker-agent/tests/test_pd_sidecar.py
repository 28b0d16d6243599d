"""The agent as the sidecar of an engine whose requests another one may have computed the prompt of."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from pointsman_contracts.message import read_part
from pointsman_contracts.response import LegReport
from pointsman_testing import eventually
from pointsman_testing.nixl_pair import NixlPair
from pointsman_testing.ports import free_port
from pointsman_testing.raw_http import RawResponse, post, raw_connection, raw_request
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine
from pointsman_worker_agent.adapters.pd_sidecar import REPORT, PdSidecar

CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, object]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 64, "min_tokens": 9},
    "/v1/completions": {"prompt": "hello", "max_tokens": 64},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 64},
    "/v1/responses": {"input": "hello", "max_output_tokens": 64},
}


@asynccontextmanager
async def before(engine: str, kind: str = "vllm", **options: object) -> AsyncGenerator[tuple[str, PdSidecar]]:
    """The URL of a sidecar before this engine, and the sidecar."""
    sidecar = PdSidecar(engine, lambda: kind, **options)  # pyright: ignore[reportArgumentType] - named by the test
    runner = web.AppRunner(sidecar.app, handler_cancellation=True, access_log=None, auto_decompress=False)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}", sidecar
    finally:
        await runner.cleanup()
        await sidecar.close()


async def ask(url: str, prefiller: str | None, path: str = CHAT, /, **changes: object) -> RawResponse:
    body = json.dumps({"model": "llama-8b", **BODIES[path], **changes}).encode()
    headers = [] if prefiller is None else [f"x-prefiller-host-port: {prefiller.partition('//')[2]}"]
    return await raw_request(url, post(path, body, *headers))


def report_of(answer: RawResponse) -> LegReport:
    return read_part(LegReport, answer.header(REPORT) or "{}")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", sorted(BODIES))
async def test_two_engines_give_the_answer_of_one(path: str, stream: bool) -> None:
    async with NixlPair() as pair, before(pair.decode.url) as (url, _):
        alone = await ask(url, None, path, stream=stream)
        split = await ask(url, pair.prefill.url, path, stream=stream)
    assert (split.status, split.complete, split.body) == (200, True, alone.body)
    assert (alone.header(REPORT), report_of(split).outcome) == (None, "answered")
    assert (pair.transfers, pair.computed, pair.held) == (1, 1, {})


async def fail(request: Received) -> None:
    await request.answer(b'{"error":"busy"}', status=503)


async def answer_without_parameters(request: Received) -> None:
    await request.answer(ANSWER)


@pytest.mark.parametrize(("script", "outcome"), [(fail, "failed"), (answer_without_parameters, "useless")])
async def test_the_engine_computes_the_prompt_itself_when_the_prefiller_does_not(script: object, outcome: str) -> None:
    async with NixlPair() as pair, before(pair.decode.url) as (url, sidecar):
        pair.prefill.script = script  # pyright: ignore[reportAttributeAccessIssue] - one of those above
        answer = await ask(url, pair.prefill.url)
        assert (answer.status, report_of(answer).outcome, pair.computed) == (200, outcome, 1)
        assert report_of(await ask(url, pair.prefill.url)).outcome == "skipped"
        assert len(pair.prefill.received) == 1
        assert sidecar.outcomes == {outcome: 1, "skipped": 1}


async def test_a_prefiller_that_is_gone_or_slow_is_waited_for_no_longer_than_set() -> None:
    async def wait(request: Received) -> None:
        await request.gone.wait()

    async with NixlPair() as pair, before(pair.decode.url, prefill_timeout_s=0.2) as (url, _):
        pair.prefill.script = wait
        assert report_of(await ask(url, pair.prefill.url)).outcome == "timeout"
        await eventually(pair.prefill.received[0].gone.is_set)
        assert report_of(await ask(url, f"http://127.0.0.1:{free_port()}")).outcome == "refused"
        assert pair.computed == 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_blocks_that_do_not_come_over_are_computed_here(stream: bool) -> None:
    async def lose(request: Received) -> None:
        if b"kv_transfer_params" not in request.body:
            await request.answer(ANSWER)
        elif stream:
            await request.begin_stream()
            await request.chunk(b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n')
            await request.chunk(b'data: {"error":{"message":"Internal server error","code":500}}\n\n')
            await request.chunk(b"")
        else:
            await request.answer(b'{"error":{"message":"Internal server error"}}', status=500)

    async with NixlPair() as pair, before(pair.decode.url) as (url, _):
        pair.decode.script = lose
        answer = await ask(url, pair.prefill.url, stream=stream)
    assert (answer.status, report_of(answer).outcome, len(pair.decode.received)) == (200, "lost", 2)


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_client_that_leaves_frees_the_engine_that_works_for_it(leg: str) -> None:
    async def wait(request: Received) -> None:
        await request.gone.wait()

    async with NixlPair() as pair, before(pair.decode.url) as (url, _):
        engine = pair.prefill if leg == "prefill" else pair.decode
        engine.script = wait
        async with raw_connection(url) as client:
            header = f"x-prefiller-host-port: {pair.prefill.url.partition('//')[2]}"
            await client.send(post(CHAT, json.dumps(BODIES[CHAT]).encode(), header))
            await eventually(lambda: bool(engine.received))
        await eventually(engine.received[0].gone.is_set)


@pytest.mark.parametrize("prefiller", ["http://10.0.0.1", "http://metadata.internal:80/x", "http://10.0.0.1:80"])
async def test_a_prefiller_that_may_not_be_asked_is_refused(prefiller: str) -> None:
    async with NixlPair() as pair, before(pair.decode.url, allowed=("127.0.0.1",)) as (url, _):
        assert (await ask(url, prefiller)).status == 403
        assert (await ask(url, pair.prefill.url)).status == 200


async def test_two_engines_that_meet_get_the_request_at_once_and_one_that_waits_in_vain_is_left() -> None:
    both = asyncio.Barrier(2)

    async def meet(request: Received) -> None:
        if b"bootstrap_room" in request.body:
            await both.wait()
        await request.answer(ANSWER)

    async def wait(request: Received) -> None:
        if b"bootstrap_room" in request.body:
            await request.gone.wait()
        else:
            await request.answer(ANSWER)

    async with (
        ScriptedEngine(meet) as prefill,
        ScriptedEngine(meet) as decode,
        before(decode.url, "sglang", bootstrap_port=9001) as (url, _),
    ):
        assert report_of(await ask(url, prefill.url)).outcome == "answered"
        assert json.loads(decode.received[0].body)["bootstrap_port"] == 9001
        prefill.script, decode.script = fail, wait
        answer = await ask(url, prefill.url)
        # It computes no prompts.
        assert (answer.status, report_of(answer).outcome) == (503, "failed")
        assert (await ask(url, prefill.url)).status == 503


async def test_other_requests_pass_as_they_are() -> None:
    async with ScriptedEngine() as engine, before(engine.url) as (url, _):
        answer = await raw_request(url, b"GET /v1/models?a=b HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (answer.status, answer.body) == (200, ANSWER)
        await raw_request(url, post("/tokenize", b'{"prompt":"x"}', "x-prefiller-host-port: 10.0.0.1:80"))
    got, posted = engine.received
    assert (got.method, got.path) == ("GET", "/v1/models?a=b")
    assert (posted.body, posted.header("x-prefiller-host-port")) == (b'{"prompt":"x"}', None)


async def test_a_request_that_both_engines_refuse_is_the_clients_error() -> None:
    async def refuse(request: Received) -> None:
        await request.answer(b'{"error":{"message":"temperature is wrong"}}', status=400)

    async with (
        ScriptedEngine(refuse) as prefill,
        ScriptedEngine(refuse) as decode,
        before(decode.url, "sglang") as (url, _),
    ):
        answer = await ask(url, prefill.url)
    assert (answer.status, b"temperature is wrong" in answer.body) == (400, True)


async def test_each_leg_asks_for_the_rank_of_its_own_engine() -> None:
    async with NixlPair() as pair, before(pair.decode.url) as (url, _):
        body = json.dumps({"model": "llama-8b", **BODIES[CHAT]}).encode()
        prefiller = f"x-prefiller-host-port: {pair.prefill.url.partition('//')[2]}"
        ranks = (None, "x-prefiller-rank: 3/8")
        for rank in ranks:
            headers = [prefiller, "x-data-parallel-rank: 1", *([] if rank is None else [rank])]
            assert (await raw_request(url, post(CHAT, body, *headers))).status == 200
        assert [each.header("x-data-parallel-rank") for each in pair.prefill.received] == [None, "3"]
        assert [each.header("x-data-parallel-rank") for each in pair.decode.received] == ["1", "1"]
        assert [each.header("x-prefiller-rank") for each in pair.decode.received] == [None, None]
