"""The gateway as its users start it, in front of a fixed fast backend."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MODEL = "fixed-model"
START_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Running:
    """The addresses for requests, and the processes whose CPU time is read."""

    direct: str
    door: str
    pids: dict[str, int]
    """Process ids by name, the backend among them."""
    urls: dict[str, str]
    """Health and metrics URLs of processes, by name."""
    logs: Path
    """A file for each process, by its name."""
    nats: str
    """The URL of its NATS server."""


def script(name: str) -> str:
    """A console script of this environment."""
    return str(Path(sys.executable).with_name(name))


@contextmanager
def backend(folder: Path, tokens: int) -> Generator[tuple[str, int]]:
    """`pointsman-simulator fixed`: answers at once; yields its URL and process id."""
    port_file = folder / "backend.port"
    process = subprocess.Popen(
        [
            *(script("pointsman-simulator"), "fixed", "--port", "0", "--port-file", str(port_file)),
            *("--model", MODEL, "--tokens", str(tokens)),
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for(port_file, process)
        yield f"http://127.0.0.1:{int(port_file.read_text())}", process.pid
    finally:
        process.kill()
        process.wait()


@contextmanager
def gateway(extra: tuple[str, ...] = (), tokens: int = 16, *, recorder: bool = False) -> Generator[Running]:
    """The backend and `pointsman up --engine <backend>`, both gone afterwards. Without `recorder` events are kept only
    in their stream: a recorder would read them on the two cores that are measured."""
    with TemporaryDirectory(prefix="pointsman-bench-") as name:
        folder = Path(name)
        with backend(folder, tokens) as (url, pid):
            options = ["--engine", url, "--replicas", f"recorder={int(recorder)}", *extra]
            with started(options, folder) as state:
                pids = {each["name"]: each["pid"] for each in state["processes"]}
                urls = {each["name"]: each["url"] for each in state["processes"]}
                pids["backend"] = pid
                yield Running(url, state["door"], pids, urls, folder / "run" / "logs", state["nats"])


@contextmanager
def started(options: Sequence[str], folder: Path, command: Path | None = None) -> Generator[dict[str, Any]]:
    """Run `pointsman up` with these options, and stop it afterwards. Yields the content of its state file once it is
    ready. `command`: the `pointsman` of another environment."""
    log = folder / "up.log"
    # benchmarks/console measures the cost of a console.
    own = ["--no-console", "--run-dir", str(folder / "run")]
    up = [str(command or script("pointsman")), "up", "--port", "0", "--nats-port", "0", *own, *options]
    with log.open("wb") as output:
        process = subprocess.Popen(up, stdout=output, stderr=output, env={**os.environ, "NO_COLOR": "1"})
    try:
        state_file = folder / "run" / "state.json"
        wait_for(state_file, process, log)
        yield json.loads(state_file.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def wait_for(file: Path, process: "subprocess.Popen[bytes]", log: Path | None = None) -> None:
    """Wait until the process has written the file. SystemExit when it ends before, or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            words = log.read_text(errors="replace")[-2000:] if log else ""
            raise SystemExit(f"{process.args} did not start\n{words}")
        time.sleep(0.05)
