"""A request that continues an earlier response goes to the engine that keeps it, whichever edge it comes to."""

import json

from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.reply import Rejection
from pointsman_edge.telling.kept_responses import KeptResponses
from pointsman_testing import eventually
from pointsman_testing.fake_bucket import FakeBucket
from pointsman_testing.fake_stages import StartEdge
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import Received, ScriptedEngine

FIRST = post("/v1/responses", b'{"model":"llama-8b","input":"a"}')
NEXT = post("/v1/responses", b'{"model":"llama-8b","input":"b","previous_response_id":"resp_1"}')


async def respond(request: Received) -> None:
    await request.answer(
        b'{"id":"resp_1","object":"response","status":"completed","model":"llama-8b",'
        b'"usage":{"input_tokens":70,"output_tokens":8,"total_tokens":78}}'
    )


def fleet(boot_id: str) -> PoolSnapshot:
    worker = WorkerView(worker="worker-1", url="http://a:1", state="serving", boot_id=boot_id)
    return PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(worker,))


async def test_another_edge_sends_it_to_the_same_engine_unless_that_is_gone_or_has_restarted(
    start_edge: StartEdge,
) -> None:
    bucket = FakeBucket()
    async with ScriptedEngine(respond) as engine:
        first = await start_edge(engine.url, responses=KeptResponses(bucket))
        first.hear(fleet("boot-1"))
        assert (await raw_request(first.url, FIRST)).status == 200
        await eventually(lambda: bool(bucket.entries))
        second = await start_edge(engine.url, responses=KeptResponses(bucket))
        second.hear(fleet("boot-1"))
        assert (await raw_request(second.url, NEXT)).status == 200
        [(asked, _, _)] = second.stages.asked
        assert (asked.headers["x-gateway-worker-id"], asked.model, asked.continued_tokens) == ("worker-1", None, 78)

        restarted = await start_edge(engine.url, responses=KeptResponses(bucket))
        restarted.hear(fleet("boot-2"))
        gone = await start_edge(engine.url, responses=KeptResponses(bucket))
        gone.stages.reply = lambda request: Rejection(
            request_id=request.request_id,
            stage="scheduler",
            status=400,
            type="invalid_request_error",
            code="unknown_worker",
            message="no such worker",
        )
        for edge in (restarted, gone):
            answer = await raw_request(edge.url, NEXT)
            error = json.loads(answer.body)["error"]
            assert (answer.status, error["code"], error["param"]) == (
                400, "previous_response_not_found", "previous_response_id",
            )  # fmt: skip
            assert "send the whole conversation" in error["message"]
            assert edge.metric("pointsman_edge_responses_gone_total") == 1
    assert len(engine.received) == 2
