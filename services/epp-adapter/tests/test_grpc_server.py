"""Calls over real connections: what is refused, and what one call does to the next."""

# grpcio-health-checking has no type information.
# pyright: reportUnknownMemberType=false, reportAttributeAccessIssue=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import asyncio
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.presence import OpenRequestsQuery
from pointsman_edge.deciding.decider import UnusableStages
from pointsman_testing import eventually
from pointsman_testing.ext_proc import LIMIT_S, ExtProcClient, health
from pointsman_testing.picker import PickerUnderTest, StartPicker

SNAPSHOT = PoolSnapshot(
    pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(WorkerView(worker="a", url="http://10.0.0.5:1"),)
)
CHECK = health_pb2.HealthCheckRequest
ANSWER = health_pb2.HealthCheckResponse


async def answered(client: ExtProcClient) -> int:
    """Status of an answer that needs no engine."""
    exchange = client.open()
    await exchange.request(method="GET", path="/v1/models", end=True)
    return (await exchange.reply()).status


async def test_streams_over_the_limit_are_refused_at_once(start_picker: StartPicker) -> None:
    picker = await start_picker(max_streams=1)
    first = picker.client.open()
    await first.request(headers={"x-request-id": "first"})
    await eventually(lambda: picker.ask_open(OpenRequestsQuery(request_ids=("first",))).request_ids)
    assert await picker.client.open().ended() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("path", "compression", "expected"),
    [
        ("/envoy.service.ext_proc.v3.ExternalProcessor/Unheard", None, grpc.StatusCode.UNIMPLEMENTED),
        ("/grpc.health.v1.Health/Check", grpc.Compression.Gzip, grpc.StatusCode.UNIMPLEMENTED),
        ("/grpc.health.v1.Health/Check", None, grpc.StatusCode.NOT_FOUND),
    ],
    ids=["no such method", "compressed", "no such service"],
)
async def test_calls_that_cant_be_served_end_with_their_status(
    path: str, compression: grpc.Compression | None, expected: grpc.StatusCode, start_picker: StartPicker
) -> None:
    picker = await start_picker()
    call = picker.client.channel.unary_unary(path, request_serializer=CHECK.SerializeToString)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(CHECK(service="unheard" * 50), timeout=LIMIT_S, compression=compression)
    assert refused.value.code() is expected
    assert await answered(picker.client) == 200


async def test_a_client_of_another_protocol_is_disconnected(start_picker: StartPicker) -> None:
    picker = await start_picker()
    host, _, port = picker.target.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
    async with asyncio.timeout(LIMIT_S):
        while await reader.read(4096):
            pass
    writer.close()
    assert await answered(picker.client) == 200


@pytest.mark.skipif(sys.platform != "linux", reason="reads the connections of Linux from /proc")
async def test_a_client_that_vanishes_without_a_word_is_noticed(start_picker: StartPicker) -> None:
    picker = await start_picker()
    port = int(picker.target.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    ours, theirs = f":{port:04X} ", f":{writer.get_extra_info('sockname')[1]:04X} "

    def watched() -> bool:
        # Its timer is 02 for a connection that is idle and kept alive (Linux, proc_net_tcp).
        lines = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()]
        return any(
            f"{line[1]} ".endswith(ours) and f"{line[2]} ".endswith(theirs) and line[5][:3] == "02:" for line in lines
        )

    await eventually(watched)
    writer.close()
    await writer.wait_closed()


async def test_health_is_watched_from_change_to_change_and_to_the_end(start_picker: StartPicker) -> None:
    picker = await start_picker(missing=UnusableStages("bus disconnected", alone=True), drain_timeout_s=20)
    method = picker.client.channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=CHECK.SerializeToString,
        response_deserializer=ANSWER.FromString,
    )
    watch = method(CHECK(), timeout=LIMIT_S)
    seen = [await _next(watch)]
    picker.hear(SNAPSHOT)
    seen.append(await _next(watch))
    stopping = asyncio.ensure_future(picker.stop())
    seen.append(await _next(watch))
    assert seen == ["NOT_SERVING", "SERVING", "NOT_SERVING"]
    assert await watch.read() is grpc.aio.EOF
    await stopping


async def _next(watch: "grpc.aio.UnaryStreamCall[CHECK, ANSWER]") -> str:
    answer = await watch.read()
    assert isinstance(answer, ANSWER)
    return ANSWER.ServingStatus.Name(answer.status)


async def test_health_of_all_services_is_listed(start_picker: StartPicker) -> None:
    picker = await start_picker()
    await eventually(lambda: _serving(picker))
    call = picker.client.channel.unary_unary(
        "/grpc.health.v1.Health/List",
        request_serializer=health_pb2.HealthListRequest.SerializeToString,
        response_deserializer=health_pb2.HealthListResponse.FromString,
    )
    listed = await call(health_pb2.HealthListRequest(), timeout=LIMIT_S)
    assert set(listed.statuses) == {
        *("", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension", "readiness", "liveness")
    }


async def test_a_picker_that_cant_route_is_alive_and_not_ready(start_picker: StartPicker) -> None:
    picker = await start_picker(missing=UnusableStages("bus disconnected", alone=True))
    assert await health(picker.client, "readiness", "NOT_SERVING")
    assert await health(picker.client, "liveness", "SERVING")


async def _serving(picker: PickerUnderTest) -> bool:
    return await health(picker.client, "", "SERVING")
