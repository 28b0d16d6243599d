"""Real services as child processes: started, waited for, killed, and never left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp

from pointsman_testing.eventually import eventually
from pointsman_testing.nursery import Forked

READY_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 60.0


class ServiceProcess:
    """One running console script, in a session of its own: a service that starts children is ended together with them.
    Its log goes to a file, one JSON object a line."""

    def __init__(self, command: Sequence[str], process: "subprocess.Popen[bytes] | Forked", log_path: Path) -> None:
        self.log_path = log_path
        self.command = list(command)
        self._process = process

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code; None while it runs."""
        return self._process.poll()

    def log_lines(self) -> list[dict[str, object]]:
        """Every complete JSON line that it logged so far."""
        found: list[dict[str, object]] = []
        for line in self.log_path.read_text(errors="replace").splitlines():
            if line.startswith("{"):
                try:
                    found.append(json.loads(line))
                except json.JSONDecodeError:
                    continue  # the last line may be half written
        return found

    def log_text(self) -> str:
        """Everything it wrote to stdout and stderr."""
        return self.log_path.read_text(errors="replace")

    @property
    def http_url(self) -> str | None:
        """Base URL of its health endpoints, once known."""
        for line in self.log_lines():
            if line.get("event") == "http_listening":
                return str(line["url"])
        return None

    async def wait_ready(self, timeout: float = READY_TIMEOUT_S) -> str:  # noqa: ASYNC109 - as `eventually`
        """Wait until `/ready` answers 200 and return the base URL. Fails at once when the process ends."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:

            async def ready() -> str | None:
                if self.returncode is not None:
                    raise RuntimeError(f"{self.command} ended with {self.returncode}:\n{self.log_text()[-3000:]}")
                url = self.http_url
                if url is None:
                    return None
                try:
                    async with http.get(f"{url}/ready") as response:
                        return url if response.status == 200 else None
                except (aiohttp.ClientError, TimeoutError):
                    return None

            try:
                return await eventually(ready, timeout=timeout)
            except AssertionError as error:
                raise AssertionError(
                    f"{self.command} was not ready in {timeout} s:\n{self.log_text()[-3000:]}"
                ) from error

    def signal(self, what: signal.Signals) -> None:
        """Send a signal to this process only."""
        self._process.send_signal(what)

    def pause(self) -> None:
        """SIGSTOP: it keeps its sockets and answers nothing."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL the process and its children."""
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                # A fork that hasn't got as far as to a session of its own has started nothing yet.
                self.signal(signal.SIGKILL)
        self._process.wait(timeout=_END_TIMEOUT_S)

    async def terminate(self) -> int:
        """SIGTERM, wait for the end, return the exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended(_END_TIMEOUT_S)

    async def ended(self, timeout: float) -> int:  # noqa: ASYNC109 - as `eventually`
        """Wait for the end of a process that ends by itself; the exit code."""
        return await asyncio.to_thread(self._process.wait, timeout)


class Processes:
    """Starts services for one test and ends them all after it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[ServiceProcess] = []

    def start(self, script: str, *arguments: str, env: Mapping[str, str] | None = None) -> ServiceProcess:
        """Start a console script of this environment, e.g. `start("pointsman-scheduler", env={...})`.

        The script logs JSON and serves health on a free port unless `env` says otherwise.
        """
        executable = Path(sys.executable).with_name(script)
        command = [str(executable), *arguments]
        return self.start_command(command, env=env)

    def fork(self, script: str, *arguments: str, env: Mapping[str, str] | None = None) -> ServiceProcess:
        """Like `start`, without its seconds of imports (see `nursery`). `script` may also be the path of a file."""
        log_path = self._new_log(Path(script).name)
        process = Forked(script, arguments, self._surroundings(env), log_path)
        return self._add(ServiceProcess([script, *arguments], process, log_path))

    def start_command(self, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> ServiceProcess:
        """Start any command with the same surroundings."""
        log_path = self._new_log(Path(command[0]).name)
        with log_path.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - starts what the test names
                command,
                env=self._surroundings(env),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._add(ServiceProcess(command, process, log_path))

    def end_all(self) -> None:
        """SIGKILL everything that was started. A stopped process ends too."""
        for process in self._started:
            process.kill()

    def _new_log(self, name: str) -> Path:
        path = self._folder / f"{len(self._started):02d}-{name}.log"
        path.touch()
        return path

    def _surroundings(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {**os.environ, "POINTSMAN_LOG_FORMAT": "json", "POINTSMAN_HTTP_PORT": "0", **(env or {})}

    def _add(self, process: ServiceProcess) -> ServiceProcess:
        self._started.append(process)
        return process
