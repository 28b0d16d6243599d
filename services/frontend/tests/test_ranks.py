"""An endpoint that is one data-parallel rank of its engine gets its requests as that rank."""

import json

import pytest

from pointsman_contracts.reply import ChosenEndpoint, PrefillLeg
from pointsman_contracts.response import AttemptFailed, ResponseCompleted
from pointsman_testing import eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.nixl_pair import NixlPair
from pointsman_testing.ports import free_port
from pointsman_testing.raw_http import RawResponse, post, raw_request
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine

CHAT = "/v1/chat/completions"
RANK = "x-data-parallel-rank"


async def ask(edge: EdgeUnderTest, *headers: str) -> RawResponse:
    body = {"model": "llama-8b", "messages": [{"role": "user", "content": "hello"}]}
    return await raw_request(edge.url, post(CHAT, json.dumps(body).encode(), *headers))


def rank(url: str, number: int, field: str | None = None) -> ChosenEndpoint:
    return ChosenEndpoint(worker=f"w-rank-{number}", url=url, rank=number, rank_field=field)


async def end_of(edge: EdgeUnderTest) -> ResponseCompleted:
    await eventually(lambda: bool(edge.events.of(ResponseCompleted)))
    return edge.events.of(ResponseCompleted)[-1]


async def test_each_attempt_asks_for_its_own_rank_whatever_the_client_asked_for(start_edge: StartEdge) -> None:
    async def answer(request: Received) -> None:
        await request.answer(
            b"{}" if request.header(RANK) == "1" else ANSWER, status=500 if request.header(RANK) == "1" else 200
        )

    async with ScriptedEngine(answer) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes = {"endpoints": (rank(engine.url, 1), rank(engine.url, 0))}
        assert (await ask(edge, f"{RANK}: 7")).status == 200
        assert [request.header(RANK) for request in engine.received] == ["1", "0"]
    end = await end_of(edge)
    assert [(each.worker, each.outcome) for each in end.attempts] == [("w-rank-1", "failed"), ("w-rank-0", "answered")]


async def test_an_engine_that_reads_the_rank_from_the_body_gets_it_there(start_edge: StartEdge) -> None:
    async def answer(request: Received) -> None:
        await request.answer(ANSWER)

    async with ScriptedEngine(answer) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes = {"endpoints": (rank(engine.url, 3, "data_parallel_rank"),)}
        assert (await ask(edge)).status == 200
        (request,) = engine.received
        assert json.loads(request.body)["data_parallel_rank"] == 3
        assert request.header(RANK) is None


async def test_an_engine_that_is_one_worker_is_asked_for_no_rank(start_edge: StartEdge) -> None:
    async def answer(request: Received) -> None:
        await request.answer(ANSWER)

    async with ScriptedEngine(answer) as engine:
        edge = await start_edge(engine.url)
        assert (await ask(edge, f"{RANK}: 7")).status == 200
        assert engine.received[0].header(RANK) is None


async def test_where_nothing_listens_no_other_rank_of_the_engine_is_tried(start_edge: StartEdge) -> None:
    async def answer(request: Received) -> None:
        await request.answer(ANSWER)

    async with ScriptedEngine(answer) as engine:
        gone = f"http://127.0.0.1:{free_port()}"
        edge = await start_edge(engine.url)
        other = ChosenEndpoint(worker="other", url=engine.url)
        edge.stages.changes = {"endpoints": (rank(gone, 0), rank(gone, 1), other)}
        assert (await ask(edge)).status == 200
    end = await end_of(edge)
    assert [each.worker for each in end.attempts] == ["w-rank-0", "other"]


async def test_a_rank_that_the_engine_does_not_have_is_no_error_of_the_client(start_edge: StartEdge) -> None:
    async def answer(request: Received) -> None:
        if int(request.header(RANK) or 0) > 1:
            text = f"data_parallel_rank {request.header(RANK)} is out of range [0, 2)."
            await request.answer(json.dumps({"error": {"message": text, "code": 400}}).encode(), status=400)
        else:
            await request.answer(ANSWER)

    async with ScriptedEngine(answer) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes = {"endpoints": (rank(engine.url, 2), rank(engine.url, 1))}
        assert (await ask(edge)).status == 200
    failed = edge.events.of(AttemptFailed)
    assert [(each.worker, each.outcome, each.status) for each in failed] == [("w-rank-2", "failed", None)]


async def test_a_request_that_is_wrong_stays_the_clients_error(start_edge: StartEdge) -> None:
    async def answer(request: Received) -> None:
        await request.answer(b'{"error":{"message":"max_tokens must be above 0","code":400}}', status=400)

    async with ScriptedEngine(answer) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes = {"endpoints": (rank(engine.url, 0), rank(engine.url, 1))}
        refused = await ask(edge)
        assert (refused.status, len(engine.received)) == (400, 1)
        assert b"max_tokens" in refused.body


@pytest.mark.parametrize("answering", [None, 1])
async def test_each_leg_asks_for_the_rank_of_its_engine_and_the_transfer_is_that_ranks(
    start_edge: StartEdge, answering: int | None
) -> None:
    async with NixlPair() as pair:
        edge = await start_edge(pair.decode.url)
        edge.stages.changes = {
            "endpoints": (ChosenEndpoint(worker="d", url=pair.decode.url, rank=answering),),
            "prefill": PrefillLeg(worker="p-rank-3", url=pair.prefill.url, engine="vllm", rank=3, ranks=4),
        }
        assert (await ask(edge)).status == 200
        assert [request.header(RANK) for request in pair.prefill.received] == ["3"]
        assert [request.header(RANK) for request in pair.decode.received] == [None if answering is None else "1"]
        assert pair.transfers == 1
    (leg,) = (await end_of(edge)).legs
    assert (leg.worker, leg.outcome) == ("p-rank-3", "answered")
