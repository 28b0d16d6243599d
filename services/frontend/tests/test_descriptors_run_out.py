"""A frontend whose file descriptors are all in use: it says so, closes what it can't take, and recovers."""

import asyncio
from pathlib import Path

import pytest
import yaml

from pointsman_testing import NatsServer, Processes, eventually
from pointsman_testing.exhausted_descriptors import is_closed, limit_descriptors, many_clients
from pointsman_testing.processes import ServiceProcess
from pointsman_testing.raw_http import raw_request

LIVE = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
async def frontend(own_nats_server: NatsServer, processes: Processes, tmp_path: Path) -> ServiceProcess:
    config = tmp_path / "pointsman.yaml"
    config.write_text(yaml.safe_dump({"pools": {"llama-8b": {}}}))
    env = {"POINTSMAN_NATS_URL": own_nats_server.url, "POINTSMAN_CONFIG": str(config), "POINTSMAN_PORT": "0"}
    process = processes.start("pointsman-frontend", env=env)
    await process.wait_ready()
    return process


def said(process: ServiceProcess, event: str) -> list[dict[str, object]]:
    return [line for line in process.log_lines() if line["event"] == event]


async def test_a_frontend_without_descriptors_closes_new_connections_says_so_and_recovers(
    frontend: ServiceProcess,
) -> None:
    url = str(said(frontend, "serving")[0]["url"])
    place = ("127.0.0.1", int(url.rpartition(":")[2]))
    limit_descriptors(frontend)
    with many_clients(place) as clients:
        await eventually(lambda: said(frontend, "no_descriptor_left"))
        async with asyncio.timeout(30):
            closed = [await is_closed(client, LIVE) for client in clients]
        assert closed[0] is False
        assert closed[-1] is True
    await eventually(lambda: said(frontend, "descriptors_again"))
    assert (await raw_request(url, LIVE)).status == 200
    metrics = (await raw_request(frontend.http_url or "", b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()
    (line,) = [each for each in metrics.splitlines() if each.startswith("pointsman_without_descriptors_total")]
    assert float(line.split()[1]) >= 1
    assert len(said(frontend, "no_descriptor_left")) == 1
