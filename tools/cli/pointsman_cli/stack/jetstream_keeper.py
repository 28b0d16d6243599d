"""Restarts JetStream inside the stack's own NATS server when its disk has room again.

A stream that the server couldn't write to takes nothing more until JetStream starts again, even when there is room. A
reload without JetStream and one with it is such a start; connections and core messages stay.
"""

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Final, Protocol, cast

import aiohttp

LOOK_S: Final = 0.5
ROOM_BYTES: Final = 4 * 1024 * 1024
"""Bytes of free disk space; with less, JetStream would fail again at once."""
REST_S: Final = 3.0
"""Between two restarts."""
_RELOADED_WITHIN_S: Final = 5.0
_ANSWER_TIMEOUT: Final = aiohttp.ClientTimeout(total=1.0)


class KeptServer(Protocol):
    """The kept server; a `Keeper` is one."""

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        ...

    @property
    def url(self) -> str:
        """URL of its monitoring."""
        ...

    @property
    def problem(self) -> str:
        """Why it isn't healthy; empty when it is."""
        ...


class JetStreamKeeper:
    """Restarts JetStream on the server that runs with the file `config`. The store is beside that file."""

    def __init__(self, server: KeptServer, config: Path, http: aiohttp.ClientSession) -> None:
        self.restarts = 0
        self._server = server
        self._config = config
        self._http = http

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if stuck(self._server.problem) and shutil.disk_usage(self._config.parent).free >= ROOM_BYTES:
                await self.restart_server()
                await asyncio.sleep(REST_S)

    async def restart_server(self) -> None:
        """End JetStream and start it again. Does nothing while the server doesn't run."""
        folder, pid = self._config.parent, self._server.pid
        if pid is None:
            return
        text = self._config.read_text()
        with_it, without_it = folder / "with.conf", folder / "without.conf"
        try:
            # Both are written before any change: a disk that fills up again leaves the server unchanged.
            with_it.write_text(text)
            without_it.write_text("\n".join(line for line in text.splitlines() if not line.startswith("jetstream")))
        except OSError:
            return
        without_it.replace(self._config)
        try:
            _send_reload(pid)
            await self._until(disabled=True)
        finally:
            with_it.replace(self._config)
            _send_reload(pid)
        await self._until(disabled=False)
        self.restarts += 1

    async def _until(self, *, disabled: bool) -> None:
        try:
            async with asyncio.timeout(_RELOADED_WITHIN_S):
                while await self._disabled() is not disabled:  # noqa: ASYNC110 - the server sets no event
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return  # the next look shows the server's state

    async def _disabled(self) -> bool | None:
        """Whether JetStream is off; None when the server doesn't report it."""
        try:
            async with self._http.get(f"{self._server.url}/jsz", timeout=_ANSWER_TIMEOUT) as answer:
                document = cast("dict[str, object]", await answer.json())
        except (aiohttp.ClientError, TimeoutError):
            return None
        return bool(document.get("disabled", False))


def stuck(problem: str) -> bool:
    """Whether a server with this problem needs JetStream to be restarted."""
    return "JetStream" in problem


def _send_reload(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGHUP)
    except ProcessLookupError:
        return  # it is started again by its keeper
