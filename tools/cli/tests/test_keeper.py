"""One kept process: real child processes that play a service."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from pointsman_cli.stack.keeper import Keeper
from pointsman_cli.stack.plan import PORT, Kind, Plan
from pointsman_cli.stack.run_folder import RunFolder
from pointsman_cli.stack.supervision import State
from pointsman_testing import eventually

FAKE = """
import http.server, json, os, pathlib, sys, threading, time
folder, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        reason = folder / "reason"
        body = json.dumps({"reasons": {"bus": reason.read_text()} if reason.exists() else {}}).encode()
        self.send_response(503 if reason.exists() else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Health)
threading.Thread(target=server.serve_forever).start()
for event in ("http_listening", "serving"):
    own = {"event": event, "service": "frontend", "url": f"http://127.0.0.1:{server.server_port}"}
    beside = {"event": event, "service": "batch", "url": "http://127.0.0.1:1"}
    lines = (own, beside) if event == "serving" else (own,)
    print("\\n".join(map(json.dumps, lines)), flush=True)
    if (folder / "late").exists():
        time.sleep(0.5)
"""


class Told:
    """The lines of a keeper."""

    def __init__(self) -> None:
        self.states: list[tuple[State, str]] = []

    def __call__(self, keeper: Keeper) -> None:
        self.states.append((keeper.life.state, keeper.life.why))


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def _fake(tmp_path: Path) -> Plan:
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    return Plan("fake", Kind.EDGE, (sys.executable, str(script), str(tmp_path), PORT))


async def test_a_killed_process_is_started_again_on_its_port_and_logged(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    told = Told()
    with RunFolder(tmp_path / "run") as folder:
        keeper = Keeper(_fake(tmp_path), folder, http, told)
        keeper.start_process()
        await eventually(lambda: keeper.life.state is State.READY)
        door, pid = keeper.door, keeper.pid
        # The address of `batch` in the same process is another one.
        assert door == keeper.url
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: keeper.life.starts == 2 and keeper.life.state is State.READY)
        assert keeper.door == door
        assert keeper.pid != pid
        await keeper.end_process(patience_s=5)
        assert keeper.pid is None
    assert told.states == [(State.READY, ""), (State.CRASHED, "killed by SIGKILL"), (State.READY, "")]


async def test_an_edge_is_ready_only_once_its_address_is_known(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    (tmp_path / "late").touch()
    doors: list[str] = []
    with RunFolder(tmp_path / "run") as folder:
        keeper = Keeper(_fake(tmp_path), folder, http, lambda keeper: doors.append(keeper.door))
        keeper.start_process()
        await eventually(lambda: keeper.life.state is State.READY)
        await keeper.end_process(patience_s=5)
    assert doors[0] == keeper.door != ""


async def test_a_process_that_stops_being_ready_says_why(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    told = Told()
    with RunFolder(tmp_path / "run") as folder:
        keeper = Keeper(_fake(tmp_path), folder, http, told)
        keeper.start_process()
        await eventually(lambda: keeper.life.state is State.READY)
        (tmp_path / "reason").write_text("bus disconnected: no server")
        await eventually(lambda: keeper.life.state is State.NOT_READY)
        assert told.states[-1] == (State.NOT_READY, "bus disconnected: no server")
        await keeper.end_process(patience_s=5)


async def test_a_process_that_ignores_sigterm_is_killed_when_patience_ends(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    deaf = "from signal import *; import time; signal(SIGTERM, SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    with RunFolder(tmp_path / "run") as folder:
        keeper = Keeper(Plan("deaf", Kind.SERVICE, (sys.executable, "-c", deaf)), folder, http, Told())
        keeper.start_process()
        await eventually(lambda: folder.log_path("deaf").exists() and "deaf" in folder.log_path("deaf").read_text())
        pid = keeper.pid
        assert pid is not None
        await keeper.end_process(patience_s=0.2)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_stopped_process_is_ended_too(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with RunFolder(tmp_path / "run") as folder:
        keeper = Keeper(_fake(tmp_path), folder, http, Told())
        keeper.start_process()
        await eventually(lambda: keeper.life.state is State.READY)
        pid = keeper.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await keeper.end_process(patience_s=20)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_command_that_does_not_exist_is_given_up_with_its_reason(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with RunFolder(tmp_path / "run") as folder:
        keeper = Keeper(Plan("ghost", Kind.SERVICE, ("/nowhere/ghost",)), folder, http, Told())
        keeper.start_process()
        await eventually(lambda: keeper.life.state is State.GIVEN_UP)
        assert keeper.read_complaints()[-1] == "/nowhere/ghost: No such file or directory"
        await keeper.end_process(patience_s=1)


async def test_the_complaints_of_a_log_read_like_a_sentence(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    line = {"at": "2026-01-01", "level": "error", "service": "frontend", "event": "cannot_start", "detail": "in use"}
    command = f"import sys; print({json.dumps(json.dumps(line))}); sys.exit(78)"
    with RunFolder(tmp_path / "run") as folder:
        keeper = Keeper(Plan("frontend", Kind.SERVICE, (sys.executable, "-c", command)), folder, http, Told())
        keeper.start_process()
        await eventually(lambda: keeper.life.state is State.GIVEN_UP)
        assert keeper.read_complaints() == ["error cannot_start detail=in use"]
        await keeper.end_process(patience_s=1)
