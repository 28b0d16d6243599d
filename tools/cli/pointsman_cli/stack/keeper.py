"""Keeps one planned process alive: starts it, asks whether it is ready, starts it again when it ends."""

import asyncio
import time
from collections.abc import Callable
from typing import cast

import aiohttp

from pointsman_cli.stack import nats_server
from pointsman_cli.stack.child import Child, LogTail, complaints
from pointsman_cli.stack.plan import Kind, Plan
from pointsman_cli.stack.run_folder import RunFolder
from pointsman_cli.stack.supervision import State, SupervisedProcess
from pointsman_contracts.services import EDGES

LOOK_S = 0.01
"""Seconds between looks at the port file until it has a port."""
ASK_STARTING_S = 0.04
ASK_READY_S = 1.0
ASK_AGAIN_S = 0.5
"""Seconds between readiness checks of a process that was ready and isn't now."""
_ASKED_EVERY_S = {State.READY: ASK_READY_S, State.NOT_READY: ASK_AGAIN_S}
_ANSWER_TIMEOUT = aiohttp.ClientTimeout(total=1.0)
_READY_PATH = {Kind.ENGINE: "/health", Kind.NATS: "/healthz"}


class Keeper:
    """One process of the stack through all its restarts. `tell(keeper)` is called on each change to report."""

    def __init__(
        self, plan: Plan, folder: RunFolder, http: aiohttp.ClientSession, tell: "Callable[[Keeper], None]"
    ) -> None:
        self.plan = plan
        self.life = SupervisedProcess(plan.name)
        self.url = ""
        """URL of its health endpoints; empty until known."""
        self.door = plan.door
        """URL at which an edge takes requests; empty until known."""
        self._port = plan.port
        self._folder = folder
        self._log = folder.log_path(plan.name)
        self._http = http
        self._tell = tell
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def port(self) -> int:
        """The port that it has in every life; 0 while it isn't known."""
        return max(self._port, 0)

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._child.pid if self._child is not None and self._child.is_running else None

    @property
    def problem(self) -> str:
        """Why it isn't ready; empty while it is, or starts."""
        return self.life.why if self.life.state is State.NOT_READY else ""

    def start_process(self) -> None:
        """Start the process and keep it alive until `end`."""
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=self.plan.name)

    async def wait_until(self, condition: "Callable[[Keeper], bool]") -> None:
        """Wait until the condition holds; checked at every change."""
        while not condition(self):
            self._changed.clear()
            await self._changed.wait()

    async def end_process(self, patience_s: float) -> None:
        """End the process and keep it ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._child is not None:
            await self._child.end_process(patience_s)
        self.life.record_stop()
        self._note()

    def read_complaints(self) -> list[str]:
        """The last lines of its log that report a problem."""
        return complaints(self._log)

    async def _keep(self) -> None:
        while True:
            tail = LogTail(self._log)
            command, env = self.plan.fill_port(self._port)
            self.url = ""
            self._child = await Child.start(command, env, self._log, batch=self.plan.batch)
            self.life.record_start(time.monotonic())
            self._note()
            watching = asyncio.get_running_loop().create_task(self._watch(tail))
            try:
                code = await self._child.wait()
            finally:
                watching.cancel()
            delay = self.life.record_end(time.monotonic(), code)
            self._note(tell=True)
            if delay is None:
                return
            await asyncio.sleep(delay)

    async def _watch(self, tail: LogTail) -> None:
        while True:
            self._read_where(tail)
            # An edge can be ready a moment before its log says where it serves.
            known = self.url and (self.door or self.plan.kind is not Kind.EDGE)
            if known and self.life.record_readiness(await self._reasons()):
                self._note(tell=True)
            self._note()
            await asyncio.sleep(_ASKED_EVERY_S.get(self.life.state, ASK_STARTING_S) if self.url else LOOK_S)

    def _read_where(self, tail: LogTail) -> None:
        if self.plan.kind is Kind.NATS:
            if self.plan.port_file is not None and self.pid is not None:
                found = nats_server.where(self.plan.port_file, self.pid)
                if found is not None:
                    self._port, self.url = found
        elif self.plan.port_file is not None:
            if self.plan.port_file.exists() and (text := self.plan.port_file.read_text().strip()):
                # A port, or a host and a port.
                self._port = int(text.rpartition(":")[2])
                self.url = f"http://127.0.0.1:{self._port}"
        else:
            self._read_log(tail)

    def _read_log(self, tail: LogTail) -> None:
        for event in tail.read_events():
            if event.get("event") == "http_listening":
                self.url = str(event["url"])
            elif event.get("event") == "serving" and event.get("service") in EDGES:
                # Beside an edge in one process, `batch` serves as well.
                self.door = str(event["url"])
                self._port = int(self.door.rpartition(":")[2])

    async def _reasons(self) -> dict[str, str] | str | None:
        try:
            async with self._http.get(
                self.url + _READY_PATH.get(self.plan.kind, "/ready"), timeout=_ANSWER_TIMEOUT
            ) as answer:
                if answer.status == 200:
                    return None
                if answer.status == 503 and answer.content_type == "application/json":
                    document = cast("dict[str, object]", await answer.json())
                    if self.plan.kind is Kind.NATS:
                        return str(document.get("error", ""))
                    return cast("dict[str, str]", document.get("reasons", {}))
                return f"its readiness answers HTTP {answer.status}"
        except TimeoutError:
            return "doesn't answer"
        except aiohttp.ClientError:
            return "doesn't take connections"

    def _note(self, *, tell: bool = False) -> None:
        self._changed.set()
        if tell:
            self._tell(self)
