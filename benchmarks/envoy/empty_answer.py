"""gRPC without a gateway, a part of the adapter's cost: `python -m benchmarks.envoy.empty_answer <port file>`."""

import asyncio
import itertools
import sys
from pathlib import Path

import uvloop

from pointsman_epp_adapter.adapters.grpc_call import Call
from pointsman_epp_adapter.adapters.grpc_connection import Calls, GrpcConnection
from pointsman_epp_adapter.adapters.wire import CONTINUE, METHOD

ANSWERS = [CONTINUE[kind] for kind in ("request_headers", "request_body", "response_headers", "response_body")]


async def process(call: Call) -> None:
    """`ExternalProcessor.Process`, of a processor that looks at nothing."""
    for answer in itertools.cycle(ANSWERS):
        if await call.read() is None:
            return
        await call.write(answer)


async def serve(port_file: Path) -> None:
    """Serve until killed."""
    calls = Calls({METHOD: process}, 10_000)
    server = await asyncio.get_running_loop().create_server(lambda: GrpcConnection(calls), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await asyncio.to_thread(port_file.write_text, str(port))
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
