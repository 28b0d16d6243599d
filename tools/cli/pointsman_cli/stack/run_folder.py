"""The folder of one running stack: who runs it, logs, the server's store, where everything listens."""

import fcntl
import json
import os
import shutil
from pathlib import Path
from types import TracebackType

from pointsman_cli.words import CommandError


class RunFolder:
    """Held by one `pointsman up` or `demo` at a time; use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.logs = self.path / "logs"
        self.nats = self.path / "nats"
        self.ports = self.path / "ports"
        self.state = self.path / "state"
        """State that is kept after the processes end, like the server's store."""
        self._lock = self.path / "pid"
        self._descriptor = -1

    def __enter__(self) -> "RunFolder":
        """Take the folder; CommandError when another stack has it or it can't be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # The lock belongs to the open file, so it is gone with the process however that ends.
            self._descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = self._lock.read_text().strip() or "unknown"
            raise CommandError(
                f"{self.path} is in use by another `pointsman` (process {owner}).",
                "End that one with Ctrl-C, or give this one a folder of its own with --run-dir.",
            ) from None
        except OSError as error:
            raise CommandError(
                f"{self.path} can't be used: {error.strerror}.", "Choose a folder that can be written with --run-dir."
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())
        # Logs and ports of an earlier stack would be read as this one's. The server's store is kept: it has the
        # events that `pointsman explain` reads.
        for old in (self.logs, self.ports):
            shutil.rmtree(old, ignore_errors=True)
        for folder in (self.logs, self.nats, self.ports):
            folder.mkdir(exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the folder; its files stay readable."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    def log_path(self, name: str) -> Path:
        """Log file of one process."""
        return self.logs / f"{name}.log"

    def write_state(self, state: dict[str, object]) -> None:
        """Write the addresses of all processes for other programs: `state.json`, replaced in one step."""
        temporary = self.path / "state.json.new"
        temporary.write_text(json.dumps(state, indent=2) + "\n")
        temporary.replace(self.path / "state.json")
