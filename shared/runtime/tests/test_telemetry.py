"""Traces: one per sampled request, across stages, nothing for the rest."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pointsman_contracts.journey import Journey
from pointsman_contracts.reply import read_reply
from pointsman_runtime.telling.process import Process
from pointsman_runtime.telling.telemetry import Tracing, provider_for, sampled
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = SAMPLED[:-1] + "0"


def recording(service: str) -> tuple[Tracing, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = provider_for(Process(service, f"{service}-1"))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider, ratio=1.0), exporter


async def run(buses: Buses, traceparent: str | None) -> list[InMemorySpanExporter]:
    """Send one journey through two stages; the exporters of both."""
    selector, scheduler, edge = buses.make("model-selector"), buses.make("scheduler"), buses.make("frontend")
    exporters: list[InMemorySpanExporter] = []
    for bus in (selector, scheduler):
        bus.tracing, exporter = recording(bus.process.service)
        exporters.append(exporter)
    selector.stage(Journey, lambda journey, hop: hop.advance())
    scheduler.stage(Journey, lambda journey, hop: hop.reject(429, "full"))
    answers: list[object] = []
    edge.bus.link.subscribe("_INBOX.test", lambda _s, _r, _h, payload: answers.append(read_reply(payload)))
    await buses.meet()
    edge.forward(builders.journey("model-selector", "scheduler"), "_INBOX.test", traceparent)
    await eventually(lambda: answers)
    return exporters


async def test_the_spans_of_a_sampled_request_form_one_trace(buses: Buses) -> None:
    exporters = await run(buses, SAMPLED)
    (first,), (second,) = (exporter.get_finished_spans() for exporter in exporters)
    assert first.parent is not None
    assert f"{first.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert second.parent is not None
    assert first.context is not None
    assert second.context is not None
    assert second.parent.span_id == first.context.span_id
    assert first.context.trace_id == second.context.trace_id == int("4bf92f3577b34da6a3ce929d0e0e4736", 16)
    assert (first.name, second.name) == ("model-selector", "scheduler")
    assert not second.status.is_ok
    assert second.resource.attributes["service.name"] == "pointsman-scheduler"


@pytest.mark.parametrize("traceparent", [None, UNSAMPLED])
async def test_a_request_that_is_not_sampled_makes_no_span(buses: Buses, traceparent: str | None) -> None:
    exporters = await run(buses, traceparent)
    assert [exporter.get_finished_spans() for exporter in exporters] == [(), ()]


def test_an_edge_keeps_the_clients_trace_and_its_decision_not_to_sample() -> None:
    tracing, _ = recording("frontend")
    assert tracing.adopt_trace(SAMPLED) == SAMPLED
    assert tracing.adopt_trace(UNSAMPLED) == UNSAMPLED


def test_an_edge_without_an_exporter_starts_no_trace() -> None:
    assert Tracing().adopt_trace(None) is None
    assert Tracing().begin_span("request", SAMPLED).traceparent == SAMPLED


@given(st.text(max_size=80) | st.just(SAMPLED + "\r\nPm-Deadline: 1"))
def test_a_malformed_header_never_travels_on(header: str) -> None:
    tracing, _ = recording("frontend")
    adopted = tracing.adopt_trace(header)
    assert adopted is not None
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", adopted)
    assert sampled(adopted)
