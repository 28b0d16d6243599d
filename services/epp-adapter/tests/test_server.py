"""gRPC health, TLS, settings."""

import asyncio
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_edge.deciding.decider import UnusableStages
from pointsman_epp_adapter.settings import EppAdapterSettings
from pointsman_runtime.configuring.settings import SettingsError, load
from pointsman_testing import eventually
from pointsman_testing.ext_proc import ExtProcClient, health
from pointsman_testing.picker import StartPicker

CERTIFICATES = Path(__file__).with_name("certificates")
VIEW = WorkerView(worker="a", url="http://10.0.0.5:1")
SNAPSHOT = PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(VIEW,))


async def test_health_says_whether_requests_can_be_routed(start_picker: StartPicker) -> None:
    picker = await start_picker()
    for name in ("", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"):
        await eventually(lambda name=name: health(picker.client, name, "SERVING"))


async def test_without_stages_health_follows_from_whether_the_edge_may_and_can_decide_alone(
    start_picker: StartPicker,
) -> None:
    picker = await start_picker(missing=UnusableStages("bus disconnected", alone=True))
    await eventually(lambda: health(picker.client, "", "NOT_SERVING"))
    picker.hear(SNAPSHOT)
    await eventually(lambda: health(picker.client, "", "SERVING"))
    denied = {"profiles": {"standard": {"static": "deny"}}}
    strict = await start_picker(missing=UnusableStages("bus disconnected", alone=True), config=denied)
    helpless = await start_picker(missing=UnusableStages("no live preprocessor", alone=False))
    for picker in (strict, helpless):
        picker.hear(SNAPSHOT)
        await eventually(lambda picker=picker: health(picker.client, "", "NOT_SERVING"))


async def test_health_has_a_port_of_its_own_that_needs_no_certificate_and_serves_nothing_else(
    start_picker: StartPicker,
) -> None:
    first = CERTIFICATES / "first.crt"
    picker = await start_picker(
        health_port=0, tls_cert=first, tls_key=CERTIFICATES / "first.key", tls_client_ca=CERTIFICATES / "second.crt"
    )
    async with ExtProcClient(f"127.0.0.1:{picker.health_port}") as probe:
        await eventually(lambda: health(probe, "", "SERVING"))
        assert await probe.open().ended() is grpc.StatusCode.UNIMPLEMENTED


async def test_probes_hear_that_a_stopping_picker_takes_no_more_while_it_drains(start_picker: StartPicker) -> None:
    picker = await start_picker(health_port=0)
    async with ExtProcClient(f"127.0.0.1:{picker.health_port}") as probe:
        await eventually(lambda: health(probe, "readiness", "SERVING"))
        exchange = picker.client.open()
        await exchange.request()
        stopping = asyncio.ensure_future(picker.stop())
        await eventually(lambda: health(probe, "readiness", "NOT_SERVING"))
        exchange.reset()
        await stopping
        with pytest.raises(grpc.aio.AioRpcError):
            await health(probe, "readiness", "NOT_SERVING")


async def test_a_renewed_certificate_is_used_for_the_next_connection(start_picker: StartPicker, tmp_path: Path) -> None:
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def put(name: str) -> bytes:
        key.write_bytes((CERTIFICATES / f"{name}.key").read_bytes())
        cert.write_bytes((CERTIFICATES / f"{name}.crt").read_bytes())
        return cert.read_bytes()

    put("first")
    picker = await start_picker(tls_cert=cert, tls_key=key)
    for name in ("first", "second"):
        root = put(name)
        async with ExtProcClient(picker.target, grpc.ssl_channel_credentials(root)) as client:
            await eventually(lambda client=client: health(client, "", "SERVING"))


async def test_a_client_that_leaves_the_end_of_its_tls_connection_unanswered_is_left_behind(
    start_picker: StartPicker,
) -> None:
    picker = await start_picker(tls_cert=CERTIFICATES / "first.crt", tls_key=CERTIFICATES / "first.key")
    host, _, port = picker.target.rpartition(":")
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "first.crt"))
    context.set_alpn_protocols(["h2"])
    plain = await asyncio.to_thread(socket.create_connection, (host, int(port)))
    with await asyncio.to_thread(context.wrap_socket, plain, server_hostname="localhost") as client:
        await asyncio.to_thread(client.recv, 1)
        await picker.stop()
        raw = socket.socket(fileno=os.dup(client.fileno()))
        with raw:
            raw.settimeout(5)
            while await asyncio.to_thread(raw.recv, 65_536):
                pass


async def test_with_a_client_authority_other_clients_are_refused(start_picker: StartPicker) -> None:
    first, second = ((CERTIFICATES / f"{name}.crt", CERTIFICATES / f"{name}.key") for name in ("first", "second"))
    picker = await start_picker(tls_cert=first[0], tls_key=first[1], tls_client_ca=second[0])
    root = first[0].read_bytes()
    known = grpc.ssl_channel_credentials(root, second[1].read_bytes(), second[0].read_bytes())
    async with ExtProcClient(picker.target, known) as client:
        await eventually(lambda: health(client, "", "SERVING"))
    async with ExtProcClient(picker.target, grpc.ssl_channel_credentials(root)) as client:
        with pytest.raises(grpc.aio.AioRpcError):
            await health(client, "", "SERVING")


async def test_a_renewed_client_authority_takes_the_place_of_the_old_one(
    start_picker: StartPicker, tmp_path: Path
) -> None:
    first, second = ((CERTIFICATES / f"{name}.crt", CERTIFICATES / f"{name}.key") for name in ("first", "second"))
    authority = tmp_path / "ca.crt"
    authority.write_bytes(second[0].read_bytes())
    picker = await start_picker(tls_cert=first[0], tls_key=first[1], tls_client_ca=authority)
    authority.write_bytes(first[0].read_bytes())
    root = first[0].read_bytes()
    new, old = (
        grpc.ssl_channel_credentials(root, key.read_bytes(), cert.read_bytes()) for cert, key in (first, second)
    )
    async with ExtProcClient(picker.target, new) as client:
        await eventually(lambda: health(client, "", "SERVING"))
    async with ExtProcClient(picker.target, old) as client:
        with pytest.raises(grpc.aio.AioRpcError):
            await health(client, "", "SERVING")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"host": "0.0.0.0"}, "reachable from other hosts"),  # noqa: S104 - refused
        ({"tls_cert": "a.crt"}, "must be set together"),
        ({"tls_client_ca": "a.crt"}, "needs tls_cert"),
    ],
)
def test_settings_that_would_let_strangers_in_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load(EppAdapterSettings, **given)
