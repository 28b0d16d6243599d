"""An engine whose every byte a test decides, on a real socket."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self, cast


@dataclass
class Received:
    """One request as it reached the engine, and the way to answer it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    """Lower-case names, in order."""
    body: bytes
    connection: int
    """Number of the connection that it came on."""
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client hangs up."""
    gone_at: float = 0.0
    """`time.monotonic()` of that."""

    def header(self, name: str) -> str | None:
        """The first value of a header."""
        return next((value for key, value in self.headers if key == name), None)

    async def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def answer(
        self, body: bytes, *, status: int = 200, content_type: str = "application/json", more: str = ""
    ) -> None:
        """Send a whole response; `more` are further header lines, each ending with CRLF."""
        head = f"HTTP/1.1 {status} Status\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
        await self.write(head.encode() + body)

    async def begin_stream(self, content_type: str = "text/event-stream; charset=utf-8") -> None:
        """Send the head of a stream of events, or of anything else that comes in chunks."""
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
        await self.write(head.encode())

    async def chunk(self, data: bytes) -> None:
        """Send one chunk; an empty one ends the answer."""
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def cut(self) -> None:
        """End the connection at once."""
        self.writer.transport.abort()


Script = Callable[[Received], Awaitable[None]]

ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","model":"llama-8b","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2}}'
)


async def answer_at_once(request: Received) -> None:
    """A chat completion of two tokens."""
    await request.answer(ANSWER)


class ScriptedEngine:
    """`async with ScriptedEngine(script) as engine:` listens; `script` answers each request and may be changed."""

    def __init__(
        self, script: Script = answer_at_once, tls: ssl.SSLContext | None = None, *, host: str = "127.0.0.1"
    ) -> None:
        self.script = script
        self._host = host
        self._tls = tls
        self.received: list[Received] = []
        self.connections = 0
        self.port = 0
        """Kept from the first `start` on."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http{'s' if self._tls else ''}://{self._host}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, self._host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Be gone: connections are cut, new ones refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        number = self.connections
        try:
            head = await self._head(reader, writer, first=True)
            while await self._serve_one(reader, writer, number, head):
                head = await self._head(reader, writer, first=False)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the test or the client ended it
        finally:
            writer.transport.abort()
            self._tasks.discard(task)
            self._writers.discard(writer)

    async def _head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, first: bool) -> bytes:
        """That of the connection's next request, whenever it comes."""
        del writer, first
        return await reader.readuntil(b"\r\n\r\n")

    async def _serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, first_lines: bytes
    ) -> bool:
        head = first_lines.decode("latin-1").split("\r\n")
        pairs = [line.partition(":") for line in head[1:] if line]
        headers = [(name.lower(), value.strip()) for name, _, value in pairs]
        named = dict(headers)
        if named.get("transfer-encoding") == "chunked":
            body = await _read_chunks(reader)
        else:
            body = await reader.readexactly(int(named.get("content-length", "0")))
        method, path, _ = head[0].split(" ")
        request = Received(method, path, headers, body, number, writer)
        self.received.append(request)
        watch = asyncio.create_task(_until_gone(reader, request))
        try:
            await self.script(request)
        finally:
            if not watch.done():
                watch.cancel()
            await asyncio.wait([watch])
        return not request.gone.is_set() and not writer.is_closing()


async def _until_gone(reader: asyncio.StreamReader, request: Received) -> None:
    """A client sends nothing while it waits: any readable event is its end."""
    with contextlib.suppress(ConnectionError):
        await reader.read(1)
    request.gone_at = time.monotonic()
    request.gone.set()


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return b"".join(pieces)
