"""An endpoint picker whose file descriptors are all in use: it says so, closes what it can't take, and recovers."""

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from pointsman_testing import NatsServer, Processes, eventually
from pointsman_testing.exhausted_descriptors import FREE, is_closed, limit_descriptors, many_clients
from pointsman_testing.processes import ServiceProcess
from pointsman_testing.raw_http import raw_request

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""HTTP/2's preface and empty settings: a server answers with its own."""


@pytest.fixture
async def picker(own_nats_server: NatsServer, processes: Processes, tmp_path: Path) -> ServiceProcess:
    config = tmp_path / "pointsman.yaml"
    config.write_text(yaml.safe_dump({"pools": {"llama-8b": {}}}))
    env = {"POINTSMAN_NATS_URL": own_nats_server.url, "POINTSMAN_CONFIG": str(config), "POINTSMAN_PORT": "0"}
    process = processes.start("pointsman-epp-adapter", env=env)
    await eventually(lambda: said(process, "serving"), timeout=60)
    return process


def said(process: ServiceProcess, event: str) -> list[dict[str, object]]:
    return [line for line in process.log_lines() if line["event"] == event]


@pytest.mark.timeout(240)
async def test_a_picker_without_descriptors_closes_new_connections_says_so_and_recovers(
    picker: ServiceProcess, own_nats_server: NatsServer
) -> None:
    url = str(said(picker, "serving")[0]["url"])
    place = ("127.0.0.1", int(url.rpartition(":")[2]))
    limit_descriptors(picker)
    with many_clients(place) as clients, ExitStack() as held:
        await eventually(lambda: said(picker, "no_descriptor_left"), timeout=30)
        async with asyncio.timeout(60):
            closed = [await is_closed(client, HELLO) for client in clients]
        assert closed[0] is False
        assert closed[-1] is True
        # Its own connections end, and their descriptors are taken before they can be made again.
        own_nats_server.kill()
        await eventually(lambda: said(picker, "bus_disconnected"), timeout=30)
        for _ in range(4 * FREE):
            held.enter_context(socket.create_connection(place))
        await asyncio.to_thread(own_nats_server.start)
        await eventually(
            lambda: [line for line in said(picker, "bus_unreachable") if line["reason"] == "Too many open files"],
            timeout=30,
        )
    await eventually(lambda: said(picker, "descriptors_again"), timeout=30)
    await eventually(lambda: len(said(picker, "bus_connected")) == 2, timeout=30)
    with socket.create_connection(place) as client:
        client.setblocking(False)
        assert not await is_closed(client, HELLO)
    metrics = (await raw_request(picker.http_url or "", b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).body.decode()
    (line,) = [each for each in metrics.splitlines() if each.startswith("pointsman_without_descriptors_total")]
    assert float(line.split()[1]) >= 1
    assert len(said(picker, "no_descriptor_left")) <= 2
