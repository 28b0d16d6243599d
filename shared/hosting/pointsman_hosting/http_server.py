"""An ASGI application on a socket of its own, within the service's event loop and life."""

import asyncio
import contextlib
import math
import socket
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any, Final

import uvicorn

# ASGI's own types: https://asgi.readthedocs.io/en/latest/specs/main.html
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


_DATE_S: Final = 1.0
"""How often the date that answers carry is renewed."""


class HttpServer:
    """Serves `app` between `start` and `stop`.

    `stop` gives open requests `grace_s` seconds and then cancels them. `protocol` is a class of uvicorn's for one
    connection, which calls `app` as it likes; by default it is uvicorn's own, and `app` an ASGI application. `shared`:
    other processes of this user may listen on the port too.
    """

    def __init__(
        self,
        app: Callable[..., object],
        host: str,
        port: int,
        *,
        grace_s: float = 5,
        protocol: type[asyncio.Protocol] | None = None,
        shared: bool = False,
    ) -> None:
        self.app = app
        self._host = host
        self._port = port
        self._shared = shared
        self._config = uvicorn.Config(
            app,
            interface="asgi3",  # else uvicorn guesses, and wraps an application that returns a coroutine
            http=protocol or "httptools",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=math.ceil(grace_s),
            timeout_keep_alive=75,
        )
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen and return once connections are taken. Raises OSError when the address can't be bound."""
        listener = socket.create_server(
            (self._host, self._port),
            family=socket.AF_INET6 if ":" in self._host else socket.AF_INET,
            backlog=2048,
            reuse_port=self._shared,
        )
        port = listener.getsockname()[1]
        self.url = f"http://[{self._host}]:{port}" if ":" in self._host else f"http://{self._host}:{port}"
        self._server = _Server(self._config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listener]))
        await self._server.up.wait()

    async def stop(self) -> None:
        """Take no new connection, let the open ones end within the grace, close."""
        if self._server is not None and self._task is not None:
            self._server.end()
            await self._task


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Stop serving."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        # uvicorn's own looks ten times a second whether it is to end.
        while not await self.on_tick(0):
            try:
                async with asyncio.timeout(_DATE_S):
                    await self._ending.wait()
            except TimeoutError:
                pass  # another second, another date

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals belong to the service."""
        yield
