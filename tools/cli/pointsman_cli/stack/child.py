"""One operating-system process of the stack: started on a leash, logged to a file, ended for certain."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

_LEASH = Path(__file__).with_name("leash.py")
_TAIL_BYTES = 16384


class Child:
    """A running command. It ends when this process ends, for any reason."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], log: Path, *, batch: bool = False) -> "Child":
        """Start a command whose stdout and stderr are added to the file `log`. `batch`: as in `Plan`."""
        policy = "batch" if batch else "normal"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), policy, *command,
                env={**os.environ, **env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A session of its own: Ctrl-C in the terminal reaches only `pointsman`, which then ends the processes
                # in an order that loses no request.
                start_new_session=True,
            )  # fmt: skip
        return cls(process)

    @property
    def pid(self) -> int:
        """Process id, which is also that of its session."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """False once its end has been seen."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        return await self._process.wait()

    async def end_process(self, patience_s: float) -> None:
        """Ask it to end, wait up to `patience_s` seconds, then kill its whole session."""
        if self.is_running:
            self._send(signal.SIGTERM)
            # A stopped process acts on SIGTERM only once it continues.
            self._send(signal.SIGCONT)
            try:
                async with asyncio.timeout(patience_s):
                    await self._process.wait()
            except TimeoutError:
                await self.kill()

    async def kill(self) -> None:
        """End its whole session at once."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    def _send(self, what: signal.Signals) -> None:
        if self.is_running:
            self._process.send_signal(what)


class LogTail:
    """The lines that were added to a log file since they were last asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def read_lines(self) -> Iterator[str]:
        """Complete new lines."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._offset += len(complete)
        yield from complete.decode(errors="replace").splitlines()

    def read_events(self) -> Iterator[dict[str, object]]:
        """New lines that are JSON objects, which is what services log."""
        for line in self.read_lines():
            if line.startswith("{"):
                try:
                    yield cast("dict[str, object]", json.loads(line))
                except json.JSONDecodeError:
                    continue  # a line of something else that happens to begin with a brace


def complaints(path: Path) -> list[str]:
    """The last three lines of a log that report a problem: warnings, errors, and lines that aren't log records."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    found = [_complaint(line) for line in lines if line.strip(" ^~|-+")]
    return [line for line in found if line][-3:]


def _complaint(line: str) -> str:
    """The line in readable form; empty when it reports no problem."""
    try:
        document = cast("object", json.loads(line))
    except json.JSONDecodeError:
        return line
    if not isinstance(document, dict):
        return line
    fields = cast("dict[str, object]", document)
    if fields.get("level") not in ("warning", "error"):
        return ""
    hidden = {"at", "level", "service", "instance", "part", "event"}
    rest = " ".join(f"{name}={value}" for name, value in fields.items() if name not in hidden)
    return f"{fields['level']} {fields.get('event', '')} {rest}".strip()
