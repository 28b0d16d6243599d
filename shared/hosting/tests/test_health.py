"""`/live`, `/ready`, `/metrics`, and an HTTP server that ends with its service."""

import asyncio
import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,  # pyright: ignore[reportUnknownVariableType] - no type
)
from prometheus_client.parser import text_string_to_metric_families as text_families

from pointsman_hosting.health import BusCollector, HealthApp, LoopWatch, Readiness
from pointsman_hosting.http_server import HttpServer
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.held_events import HeldEvents
from pointsman_runtime.telling.counting import Histogram
from pointsman_runtime.telling.process import Process
from pointsman_testing import eventually
from pointsman_testing.memory_nats import MemoryNats
from pointsman_testing.raw_http import raw_request


class Served:
    def __init__(self) -> None:
        self.readiness = Readiness()
        self.registry = CollectorRegistry()
        self.server = HttpServer(HealthApp(self.readiness, self.registry), "127.0.0.1", 0)

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as http, http.get(self.server.url + path) as response:
            return response.status, await response.text()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    made = Served()
    await made.server.start()
    yield made
    await made.server.stop()


async def test_a_service_is_ready_when_no_check_objects(served: Served) -> None:
    reason: list[str | None] = ["bus disconnected: connection refused"]
    served.readiness.add_check("bus", lambda: reason[0])
    served.readiness.add_check("other", lambda: None)
    assert await served.get("/ready") == (
        503,
        '{"ready": false, "reasons": {"bus": "bus disconnected: connection refused"}}',
    )
    reason[0] = None
    assert await served.get("/ready") == (200, '{"ready": true, "reasons": {}}')
    assert (await served.get("/live"))[0] == 200


async def test_a_probe_that_waits_is_answered_when_the_service_becomes_ready(served: Served) -> None:
    reason: list[str | None] = ["no configuration"]
    served.readiness.add_check("configuration", lambda: reason[0])
    answer = asyncio.create_task(served.get("/ready?wait_s=60"))
    assert (await served.get("/ready?wait_s=0.2"))[0] == 503
    assert not answer.done()
    reason[0] = None
    assert (await answer)[0] == 200


@pytest.mark.parametrize("wait", ["x", "-1", "nan", ""])
async def test_a_wait_that_is_no_length_of_time_is_none(wait: str, served: Served) -> None:
    served.readiness.add_check("bus", lambda: "disconnected")
    assert (await served.get(f"/ready?wait_s={wait}"))[0] == 503


async def test_another_path_is_404_and_names_the_known_ones(served: Served) -> None:
    status, text = await served.get("/healthz")
    assert status == 404
    assert "/ready" in text


async def test_a_websocket_handshake_is_answered_like_any_other_get(served: Served) -> None:
    offer = "Connection: UpGrade\r\nUpGrade: websocket\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    for version in ("", "sec-websocket-version: 13\r\n"):
        answer = await raw_request(served.server.url, f"GET /live HTTP/1.1\r\nhost: x\r\n{offer}{version}\r\n".encode())
        assert answer.status == 200


async def test_metrics_count_messages_by_outcome(served: Served) -> None:
    bus = Bus(MemoryNats().link(), Process("scheduler", "s"))
    served.registry.register(BusCollector(bus.hub.tallies, bus.hub.replies, HeldEvents(1)))
    tally = bus.new_tally("worker.load.v1")
    tally.handled, tally.dropped = 5, 2
    _, text = await served.get("/metrics")
    assert 'pointsman_bus_messages_total{outcome="handled",subscription="worker.load.v1"} 5.0' in text
    assert 'pointsman_bus_messages_total{outcome="dropped",subscription="worker.load.v1"} 2.0' in text


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        # As Prometheus 3 asks.
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2", True),
        ("text/plain, Application/OpenMetrics-Text;version=1.0.0", True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=abc", False),
        ("application/openmetrics-text;q=0.0, */*", False),
        ("text/plain;version=0.0.4", False),
        ("*/*", False),
        (";;=,", False),
    ],
)
async def test_a_scraper_that_reads_openmetrics_gets_exemplars(served: Served, accept: str, openmetrics: bool) -> None:
    took = Histogram("took_seconds", "T", registry=served.registry, buckets=(1.0,))
    took.observe(0.25)
    took.labels().observe_sampled(0.5, f"00-{'ab' * 16}-{'cd' * 8}-01")
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{served.server.url}/metrics", headers={"accept": accept}) as response,
    ):
        text, kind = await response.text(), response.headers["content-type"]
    assert kind.startswith("application/openmetrics-text; version=1.0.0;" if openmetrics else "text/plain;")
    assert ("# {" in text) == openmetrics
    [family] = openmetrics_families(text) if openmetrics else text_families(text)
    counts = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    assert counts == {"1.0": 2.0, "+Inf": 2.0}
    linked = [sample.exemplar for sample in family.samples if sample.exemplar is not None]
    assert [(each.labels, each.value) for each in linked] == (
        [({"trace_id": "ab" * 16, "span_id": "cd" * 8}, 0.5)] if openmetrics else []
    )


async def test_a_stalled_event_loop_shows_in_the_metrics() -> None:
    registry = CollectorRegistry()
    watch = LoopWatch(registry, every_s=0.01)
    watch.start()

    def lag() -> float:
        return registry.get_sample_value("pointsman_event_loop_lag_seconds") or 0.0

    loop = asyncio.get_running_loop()
    loop.call_later(0.005, lambda: stall(0.2))
    await eventually(lambda: lag() > 0.1)
    watch.stop()


def stall(seconds: float) -> None:
    """Keep the loop from turning, as a handler that computes for too long would."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        pass


async def test_an_address_in_use_is_an_error_at_start(served: Served) -> None:
    port = int(served.server.url.rpartition(":")[2])
    second = HttpServer(served.server.app, "127.0.0.1", port)
    with pytest.raises(OSError, match="in use"):
        await second.start()


async def test_a_stopped_server_has_let_its_port_go_and_logged_nothing(caplog: pytest.LogCaptureFixture) -> None:
    made = Served()
    with caplog.at_level(logging.WARNING):
        await made.server.start()
        await made.get("/live")
        await made.server.stop()
    with pytest.raises(aiohttp.ClientConnectionError):
        await made.get("/live")
    assert caplog.records == []
