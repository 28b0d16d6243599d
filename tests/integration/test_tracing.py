"""A sampled request is one trace in an OTLP collector: the edge, every stage, the engine."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,  # pyright: ignore[reportUnknownVariableType] - no type
)

from pointsman_testing import eventually
from pointsman_testing.ports import free_port
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

TRACE = "ab" * 16
PROMPT = "a-secret-word-of-a-prompt"


@dataclass
class Receiver:
    """OTLP over HTTP, as OpenTelemetry's collector takes it (protobuf messages of opentelemetry-proto)."""

    port: int
    spans: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    """By service name."""
    bodies: list[bytes] = field(default_factory=list[bytes])

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = next(
                each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
            )
            self.spans.setdefault(service, []).extend(span for scope in resource.scope_spans for span in scope.spans)
        return web.Response()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver(free_port())
    app = web.Application()
    app.router.add_post("/v1/traces", made.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", made.port).start()
    yield made
    await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[False, True], ids=["separate", "bundled"])
async def stack(stacks: StackFactory, receiver: Receiver, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    receiver.spans.clear()
    exporting = {"POINTSMAN_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}", "POINTSMAN_TRACE_RATIO": "0"}
    async with stacks.start(bundled=request.param, settings=exporting) as started:
        yield started


async def test_a_sampled_request_is_one_trace_of_every_step(stack: Stack, receiver: Receiver) -> None:
    body = {"model": "auto", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}
    async with aiohttp.ClientSession() as http:

        async def is_full() -> bool:
            """Every stage knows the others, and the loads of engines. Without a parent, a request isn't sampled."""
            async with http.post(f"{stack.door}/v1/chat/completions", json=body) as answer:
                return answer.status == 200 and answer.headers["x-pointsman-level"] == "full"

        await eventually(is_full)
        for flags in ("01", "00"):
            headers = {"traceparent": f"00-{TRACE}-{'cd' * 8}-{flags}"}
            async with http.post(f"{stack.door}/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
    stages = ("preprocessor", "profile-picker", "model-selector", "scheduler")
    expected = {"pointsman-frontend", *(f"pointsman-{stage}" for stage in stages)}
    await eventually(lambda: expected <= set(receiver.spans) and len(receiver.spans["pointsman-frontend"]) == 2)
    spans = [span for each in receiver.spans.values() for span in each]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    ids = {span.span_id for span in spans}
    roots = [span for span in spans if span.parent_span_id not in ids]
    assert [(root.name, root.parent_span_id.hex()) for root in roots] == [("POST /v1/chat/completions", "cd" * 8)]
    attributes = {each.key: each.value for each in roots[0].attributes}
    assert attributes["pointsman.level"].string_value == "full"
    assert attributes["gen_ai.usage.output_tokens"].int_value == 2
    assert attributes["pointsman.endpoint"].string_value
    (engine,) = [span for span in spans if span.kind == Span.SPAN_KIND_CLIENT]
    assert engine.parent_span_id == roots[0].span_id
    assert not [each for each in receiver.bodies if PROMPT.encode() in each]
    await _linked_metrics(stack, roots[0].span_id.hex())


async def _linked_metrics(stack: Stack, span_id: str) -> None:
    """Every process is read by a scraper of OpenMetrics, and the edge's histograms link to this span alone."""
    links: dict[str, set[tuple[str, str]]] = {}
    urls = {stack.door, *[process.http_url for replicas in stack.services.values() for process in replicas]}
    for url in urls:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{url}/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}) as answer,
        ):
            text = await answer.text()
        for family in openmetrics_families(text):
            for sample in family.samples:
                if sample.exemplar is not None:
                    labels = sample.exemplar.labels
                    links.setdefault(family.name, set()).add((labels["trace_id"], labels["span_id"]))
    found = {(TRACE, span_id)}
    assert links == {"pointsman_edge_decision_seconds": found, "pointsman_edge_first_byte_seconds": found}
