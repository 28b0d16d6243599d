"""A bare relay of the journey's hops: the cost of five processes that only forward a message.

An HTTP edge and four stages on a NATS server of their own, over the connection that the services use. Each stage
decodes a small message, notes its part and encodes it again with pydantic, then sends it to the next subject; the edge
asks the backend in the end. No presence, deadlines, events, policy or metrics. Any further cost of a gateway of such
hops is its own work.
"""

import asyncio
import itertools
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

import httptools
import uvloop
from pydantic import BaseModel

from benchmarks.overhead.load import Connection as EngineConnection
from benchmarks.overhead.load import connect, prepare
from pointsman_runtime.bus.connection import Connection
from pointsman_testing import eventually
from pointsman_testing.nats_server import LocalNatsServer

STAGES: Final = ("preprocess", "profile", "model", "schedule")
INBOX: Final = "relay.inbox"
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Passed(BaseModel):
    """The note of a stage."""

    stage: str
    took_ms: float


class Slip(BaseModel):
    """A request on its way."""

    request_id: str
    model: str
    prompt_tokens: int
    stages: tuple[str, ...]
    trail: tuple[Passed, ...] = ()


def pass_on(link: Connection, name: str) -> None:
    """Join as a stage: note in each message that it was here, and send it to the next one, or back to the edge."""

    def received(_subject: str, _reply: str, _headers: bytes, payload: bytes) -> None:
        slip = Slip.model_validate_json(payload)
        trail = (*slip.trail, Passed(stage=name, took_ms=0.1))
        onward = slip.model_copy(update={"stages": slip.stages[1:], "trail": trail})
        to = f"relay.{onward.stages[0]}" if onward.stages else INBOX
        link.publish(to, onward.model_dump_json().encode())

    link.subscribe(f"relay.{name}", received, queue=name)


class Edge:
    """Requests under way, and free connections to the backend."""

    def __init__(self, link: Connection, backend: str) -> None:
        self._link = link
        self._backend = backend
        self._waiting: dict[str, asyncio.Future[Slip]] = {}
        self._numbers = itertools.count()
        self._free: list[EngineConnection] = []
        link.subscribe(INBOX, self._replied)

    def _replied(self, _subject: str, _reply: str, _headers: bytes, payload: bytes) -> None:
        slip = Slip.model_validate_json(payload)
        self._waiting.pop(slip.request_id).set_result(slip)

    async def serve(self, client: asyncio.Transport, body: bytes) -> None:
        """One request through the stages to the backend."""
        request_id = str(next(self._numbers))
        replied = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        slip = Slip(request_id=request_id, model="m", prompt_tokens=len(body) // 4, stages=STAGES)
        self._link.publish(f"relay.{STAGES[0]}", slip.model_dump_json().encode())
        await replied
        engine = self._free.pop() if self._free else await connect(self._backend)
        await engine.send(prepare(f"{self._backend}/v1/chat/completions", body))
        self._free.append(engine)
        client.write(ANSWER)


class Client(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._body = b""
        self._serving: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        task = asyncio.get_running_loop().create_task(self._edge.serve(self._transport, body))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)


async def take_part(url: str, backend: str, ready: Path) -> None:
    """Be the stage that the file is named after, or the edge; write the edge's port to it once connected."""
    link = Connection([url], name=ready.name)
    port = ""
    if ready.name in STAGES:
        pass_on(link, ready.name)
    else:
        edge = Edge(link, backend)
        server = await asyncio.get_running_loop().create_server(lambda: Client(edge), "127.0.0.1", 0)
        port = str(server.sockets[0].getsockname()[1])
    link.open()
    await eventually(lambda: link.connected)
    await link.flush()
    await asyncio.to_thread(ready.write_text, f"{port}\n")
    await asyncio.Event().wait()


@asynccontextmanager
async def running(backend: str) -> AsyncGenerator[str]:
    """The whole of it; yields its chat URL."""
    server = LocalNatsServer()
    server.start()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with TemporaryDirectory(prefix="pointsman-bench-") as name:
            files = [Path(name) / part for part in (*STAGES, "edge")]
            for file in files:
                command = [sys.executable, "-m", __name__, server.url, backend, str(file)]
                processes.append(subprocess.Popen(command))
            await eventually(lambda: all(file.exists() and file.read_text() for file in files), timeout=30)
            yield f"http://127.0.0.1:{files[-1].read_text().strip()}/v1/chat/completions"
    finally:
        for process in processes:
            process.kill()
            process.wait()
        server.close()


if __name__ == "__main__":
    uvloop.run(take_part(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
