"""gRPC with nobody behind it, a part of the adapter's cost: `python -m benchmarks.envoy.empty_answer <port file>`."""

import asyncio
import itertools
import sys
from pathlib import Path

import grpc.aio
import uvloop

from pointsman_epp_adapter.adapters.wire import CONTINUE, METHOD, SERVICE

ANSWERS = [CONTINUE[kind] for kind in ("request_headers", "request_body", "response_headers", "response_body")]


async def process(requests: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
    """`ExternalProcessor.Process`, of a processor that looks at nothing."""
    del requests
    for answer in itertools.cycle(ANSWERS):
        if await context.read() is grpc.aio.EOF:
            return
        await context.write(answer)


async def serve(port_file: Path) -> None:
    """Serve until killed."""
    server = grpc.aio.server()
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await asyncio.to_thread(port_file.write_text, str(port))
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
