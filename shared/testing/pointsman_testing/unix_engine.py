"""An engine behind a real uvicorn on a Unix socket, as `vllm serve --uds` has it."""

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from pointsman_testing.eventually import eventually
from pointsman_testing.fake_engine import FakeEngine

Message = MutableMapping[str, Any]


@dataclass
class UnixEngine:
    """Its pages are a `FakeEngine`'s; chats are answered with two words, streamed where that is asked for."""

    socket: Path
    base: str = ""
    """Path before those of the API."""
    asked: list[str] = field(default_factory=list[str])
    """Paths of the requests for answers."""
    hosts: set[str] = field(default_factory=set[str])
    """Their `Host` headers."""
    pages: FakeEngine = field(default_factory=FakeEngine)

    @property
    def url(self) -> str:
        """For configurations and agents."""
        return f"unix:{self.socket}:{self.base}" if self.base else f"unix:{self.socket}"

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        path = str(scope["path"]).removeprefix(self.base)
        if scope["method"] == "GET":
            await self._page(path, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.asked.append(str(scope["path"]))
        self.hosts.update(value.decode() for name, value in scope["headers"] if name == b"host")
        if json.loads(body).get("stream"):
            await _start(send, "text/event-stream; charset=utf-8")
            for word in ("Hel", "lo"):
                choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
                await _more(send, b"data: %b\n\n" % json.dumps({"id": "1", "choices": [choice]}).encode())
            end: Message = {"index": 0, "delta": {}, "finish_reason": "stop"}
            await _more(send, b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"id": "1", "choices": [end]}).encode())
            await _more(send, b"", last=True)
            return
        message = {"role": "assistant", "content": "Hello"}
        answer = {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        await _whole(send, json.dumps(answer).encode())

    async def _page(self, path: str, send: Callable[[Message], Awaitable[None]]) -> None:
        match path:
            case "/metrics" | "/metrics/":
                await _whole(send, self.pages.metrics().encode(), "text/plain; charset=utf-8")
            case "/v1/models":
                await _whole(send, json.dumps(self.pages.models).encode())
            case "/health":
                await _whole(send, b"")
            case _:
                await _whole(send, b"", status=404)


@asynccontextmanager
async def unix_engine(base: str = "") -> AsyncGenerator[UnixEngine]:
    """Serve for the length of a `with`. The socket is in a folder of a short name: its path has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="pm-") as folder:
        engine = UnixEngine(Path(folder) / "engine.sock", base)
        server = uvicorn.Server(
            uvicorn.Config(engine, uds=str(engine.socket), log_level="error", lifespan="off", timeout_keep_alive=5)
        )
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(server.serve())
        await eventually(lambda: server.started)
        try:
            yield engine
        finally:
            server.should_exit = True
            await serving


async def _start(send: Callable[[Message], Awaitable[None]], kind: str, status: int = 200) -> None:
    headers = [(b"content-type", kind.encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _more(send: Callable[[Message], Awaitable[None]], body: bytes, *, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})


async def _whole(
    send: Callable[[Message], Awaitable[None]], body: bytes, kind: str = "application/json", status: int = 200
) -> None:
    await _start(send, kind, status)
    await _more(send, body, last=True)
