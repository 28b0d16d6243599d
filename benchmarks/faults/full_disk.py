"""The disk under JetStream is full: no request may need it, and all is normal soon after it has room."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import nats
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from benchmarks.faults.measure import BODY, Report, answered, steady_again
from pointsman_runtime.jetstream.stores import EVENT_STREAM
from pointsman_testing import eventually
from pointsman_testing.processes import Processes
from pointsman_testing.traffic import Traffic

POINTSMAN: Final = str(Path(sys.executable).with_name("pointsman"))
SIZE: Final = "48m"
RATE: Final = 20.0
FULL_S: Final = 25.0
"""Registrations lapse after 6 s; each stage of the recovery of a server takes some seconds too."""
READY_S: Final = 90.0


@dataclass(frozen=True)
class Up:
    """A stack of `pointsman up` whose folder is the disk."""

    folder: Path
    door: str
    nats: str


async def full_disk(config: Path, report: Report) -> None:
    """Traffic while the disk is full, and after."""
    with TemporaryDirectory(prefix="pointsman-disk-") as place, small_disk(Path(place)) as disk:
        if disk is None:
            print("         full disk: not measured, a tmpfs can't be mounted here; jetstream-loss stands for it")
            return
        async with (
            up(disk, config) as stack,
            jetstream(stack.nats) as js,
            Traffic(f"{stack.door}/v1/completions", RATE, BODY) as running,
        ):
            await answered(running, int(2 * RATE))
            full = running.now
            filler = asyncio.create_task(keep_full(disk))
            await asyncio.sleep(FULL_S)
            named = await doctor(stack)
            filler.cancel()
            await asyncio.wait([filler])
            free(disk)
            room = running.now
            stored_after = await until_stored(js)
            await answered(running, int(10 * RATE))
            after = await doctor(stack)
    failed = [end for end in running.failed() if full <= end.started < room]
    report.line(f"full disk for {FULL_S:g} s, failed requests", len(failed), 0, "requests")
    report.line("full disk, not named by doctor", float("can't write to its disk" not in named), 0, "times")
    report.line("room again, requests served steadily after", steady_again(running, room), 5.0, "s")
    report.line("room again, events stored after", stored_after, 5.0, "s")
    report.line("room again, not found healthy by doctor", float("✗" in after), 0, "times")


@contextmanager
def small_disk(place: Path) -> Generator[Path | None]:
    """A disk of `SIZE`, or None where none may be mounted."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield place if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)


@asynccontextmanager
async def up(disk: Path, config: Path) -> AsyncGenerator[Up]:
    """`pointsman up` with its folder on the disk."""
    folder = disk / "run"
    with TemporaryDirectory(prefix="pointsman-up-") as logs:
        processes = Processes(Path(logs))
        try:
            process = processes.start(
                "pointsman", "up", "--config", str(config), "--run-dir", str(folder),
                "--port", "0", "--nats-port", "0", "--simulated", "2", "--speedup", "20",
            )  # fmt: skip
            state = folder / "state.json"
            await eventually(lambda: state.exists() or process.returncode is not None, timeout=READY_S)
            told = json.loads(state.read_text())
            yield Up(folder, told["door"], told["nats"])
            await process.terminate()
        finally:
            processes.end_all()


@asynccontextmanager
async def jetstream(url: str) -> AsyncGenerator[JetStreamContext]:
    """A look at the streams of this server."""
    client = await nats.connect(url)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    yield client.jetstream(timeout=1.0)  # pyright: ignore[reportUnknownMemberType]
    await client.close()


async def keep_full(disk: Path) -> None:
    """Fill the disk, and any space that is freed, until cancelled."""
    while True:
        await asyncio.to_thread(fill, disk / "filler")
        await asyncio.sleep(0.5)


def fill(file: Path) -> None:
    """Write until no block is free."""
    for size in (1 << 20, 4096):
        with contextlib.suppress(OSError), file.open("ab", buffering=0) as filler:
            while True:
                filler.write(bytes(size))


def free(disk: Path) -> None:
    """Give the room back."""
    (disk / "filler").unlink()


async def until_stored(js: JetStreamContext) -> float:
    """Seconds until the stream takes an event."""
    began = time.monotonic()
    before = await last_event(js)

    async def stored() -> bool:
        return await last_event(js) > before

    await eventually(stored, timeout=60)
    return time.monotonic() - began


async def last_event(js: JetStreamContext) -> int:
    """Sequence of the last event; 0 while the server doesn't report it."""
    try:
        return (await js.stream_info(EVENT_STREAM)).state.last_seq
    except (NatsError, TimeoutError):
        return 0


async def doctor(stack: Up) -> str:
    """The doctor's output."""
    process = await asyncio.create_subprocess_exec(
        POINTSMAN, "doctor", "--nats", stack.nats, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    return (await process.communicate())[0].decode()
