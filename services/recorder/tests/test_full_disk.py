"""A recorder that can write no more to its disk for a while."""

import resource
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.usage import UsageQuery, UsageSums
from pointsman_runtime.bus.errors import NoListener, NoReply
from pointsman_testing import NatsServer, Processes, ServiceProcess, eventually
from pointsman_testing.builders import unix_ms
from pointsman_testing.observer import Observer, observing

patiently = partial(eventually, timeout=60.0)


def completed(number: int) -> ResponseCompleted:
    return ResponseCompleted(
        request_id=f"r-{number}-{'x' * 200}",
        source="edge-1",
        sequence=number,
        at_ms=unix_ms(),
        pool="p",
        status=200,
        outcome="ok",
        usage=Usage(prompt_tokens=number, completion_tokens=1),
        served="llama",
    )


async def requests(seen: Observer) -> int:
    try:
        rows = UsageSums.decode(await seen.bus.ask(UsageQuery(by=()), timeout=10)).rows
    except (NoReply, NoListener):
        return -1
    return rows[0].requests if rows else 0


def refused(recorder: ServiceProcess) -> list[dict[str, object]]:
    return [line for line in recorder.log_lines() if line["event"] == "work_begins_anew"]


def largest(folder: Path) -> int:
    return max(each.stat().st_size for each in folder.rglob("*") if each.is_file())


async def test_a_recorder_whose_disk_is_full_says_so_and_goes_on_once_it_has_room(
    own_nats_server: NatsServer, processes: Processes, tmp_path: Path
) -> None:
    """The limit of a file's size refuses writes as a full disk does."""
    async with observing(own_nats_server.url) as seen:
        state = tmp_path / "state"
        env = {"POINTSMAN_NATS_URL": own_nats_server.url, "POINTSMAN_STATE_DIR": str(state)}
        recorder = processes.start("pointsman-recorder", env=env)
        await recorder.wait_ready()
        seen.bus.publish(completed(1), "p")

        async def counted(number: int) -> bool:
            return await requests(seen) >= number

        await patiently(lambda: counted(1))
        resource.prlimit(recorder.pid, resource.RLIMIT_FSIZE, (largest(state) + 4096, resource.RLIM_INFINITY))
        for number in range(2, 1001):
            seen.bus.publish(completed(number), "p")
        await patiently(lambda: refused(recorder))
        assert recorder.returncode is None
        resource.prlimit(recorder.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await patiently(lambda: counted(1000))
        assert await requests(seen) == 1000
        assert str(refused(recorder)[0]["reason"]).startswith("SQLITE_")
        await recorder.terminate()
    (database,) = [each for each in state.rglob("*") if each.is_file() and each.read_bytes().startswith(b"SQLite")]
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
