"""Other gateways in front of the same backend in the same run, where they are installed.

Looked for beside this interpreter, on PATH, and in the folder that POINTSMAN_PEERS names, e.g. the `bin` of a virtual
environment made with `uv pip install smg vllm-router 'litellm[proxy]'`.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.overhead.load import closed_loop
from benchmarks.overhead.stack import MODEL

START_TIMEOUT_S: Final = 60.0

COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "smg": (
        *("launch", "--host", "127.0.0.1", "--port", "{port}", "--worker-urls", "{backend}"),
        *("--policy", "round_robin", "--prometheus-port", "{other}"),
    ),
    "vllm-router": (
        *("--host", "127.0.0.1", "--port", "{port}", "--worker-urls", "{backend}"),
        *("--policy", "round_robin", "--prometheus-port", "{other}"),
    ),
    "litellm": (
        *("--host", "127.0.0.1", "--port", "{port}", "--model", f"openai/{MODEL}", "--alias", MODEL),
        *("--api_base", "{backend}/v1"),
    ),
}
"""Peer to the arguments that start it."""


def installed() -> dict[str, str]:
    """The peers that can be started, with their paths."""
    folders = os.pathsep.join(
        (str(Path(sys.executable).parent), os.environ.get("POINTSMAN_PEERS", ""), os.environ.get("PATH", ""))
    )
    return {name: path for name in COMMANDS if (path := shutil.which(name, path=folders)) is not None}


@asynccontextmanager
async def running(name: str, path: str, backend: str, body: bytes) -> AsyncGenerator[str | None]:
    """Start a peer; yields its chat URL once it answers, or None when it doesn't within the time."""
    port = _free_port()
    arguments = [
        part.format(port=port, other=_free_port(), backend=backend) if "{" in part else part for part in COMMANDS[name]
    ]
    process = subprocess.Popen(
        [path, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OPENAI_API_KEY": "unused"},
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    try:
        yield url if await _answers(url, body, process) else None
    finally:
        process.kill()
        process.wait()


async def _answers(url: str, body: bytes, process: "subprocess.Popen[bytes]") -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_TIMEOUT_S
    while loop.time() < deadline and process.poll() is None:
        try:
            if (await closed_loop(url, body, 1, 0.2)).latencies:
                return True
        except OSError:
            pass  # it doesn't listen yet
        await asyncio.sleep(0.5)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
