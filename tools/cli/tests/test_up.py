"""`pointsman up` and `demo` as a person runs them: real processes, real signals."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pointsman_testing import NatsServer, Processes, eventually
from pointsman_testing.answered import answered
from pointsman_testing.processes import ServiceProcess

POINTSMAN = str(Path(sys.executable).with_name("pointsman"))
ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "pointsman.yaml"
POLICY = ("up", "--config", "examples/policy.yaml")
"""Starts the whole policy, as docs/policy.md says."""
POLICY_KEY = "pm-example-acme"
FREE = ("--port", "0", "--nats-port", "0")
READY_S = 180

pytestmark = pytest.mark.timeout(480)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


def _up(processes: Processes, folder: Path, *options: str) -> ServiceProcess:
    return processes.start(
        "pointsman", "up", "--run-dir", str(folder), "--port", "0", "--speedup", "10", "--simulated", "2", *options
    )


async def _state(process: ServiceProcess, folder: Path) -> dict[str, Any]:
    """Where everything is, once it is ready."""
    file = folder / "state.json"

    def found() -> bool:
        assert process.returncode is None, process.log_text()
        return file.exists()

    await eventually(found, timeout=READY_S)
    return json.loads(file.read_text())


def _pids(state: dict[str, Any]) -> dict[str, int]:
    return {process["name"]: process["pid"] for process in state["processes"]}


def _alive(pid: int) -> bool:
    """A zombie has ended; who reaps it is the init process's business."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def _complete(http: aiohttp.ClientSession, door: str, model: str, key: str = "") -> int:
    body = {"model": model, "prompt": "Count to three", "max_tokens": 4}

    async def once() -> tuple[int]:
        async with http.post(f"{door}/v1/completions", json=body, headers={"x-api-key": key}) as answer:
            return (answer.status,)

    return (await answered(once))[0]


@pytest.mark.parametrize(
    ("shape", "named", "victim"),
    [
        (
            ("--separate",),
            {"frontend", "scheduler-1", "scheduler-2", "agent-1", "agent-2", "guard", "semantic-cache"},
            "scheduler-1",
        ),
        ((), {"gateway", "scheduler-2"}, "gateway"),
    ],
    ids=["separate", "bundle"],
)
async def test_the_whole_policy_serves_each_model_starts_what_crashed_again_and_nothing_outlives_a_killed_up(
    tmp_path: Path,
    processes: Processes,
    http: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[str, ...],
    named: set[str],
    victim: str,
) -> None:
    monkeypatch.chdir(ROOT)
    options = (*FREE, "--run-dir", str(tmp_path), "--speedup", "10", "--simulated", "2", "--replicas", "scheduler=2")
    up = processes.start("pointsman", *POLICY, *options, *shape)
    state = await _state(up, tmp_path)
    pids = _pids(state)
    assert {"nats", "engine-1", "engine-2", *named} <= set(pids)
    if sys.platform == "linux":
        batch = {name for name, pid in pids.items() if pid and os.sched_getscheduler(pid) == os.SCHED_BATCH}
        assert batch == (set() if shape else {"nats"})
    for model in ("llama-8b", "llama-70b", "auto"):
        assert await _complete(http, state["door"], model, POLICY_KEY) == 200, model

    os.kill(pids[victim], signal.SIGKILL)
    await eventually(lambda: f"{victim} killed by SIGKILL; starting it again" in up.log_text())
    await eventually(lambda: f"{victim} is ready again" in up.log_text(), timeout=READY_S)
    assert await _complete(http, state["door"], "auto", POLICY_KEY) == 200

    up.signal(signal.SIGKILL)
    await eventually(lambda: up.returncode is not None)
    await eventually(lambda: not [name for name, pid in pids.items() if _alive(pid)])


async def test_running_engines_and_a_running_server_are_used_and_left_alone(
    tmp_path: Path, processes: Processes, own_nats_server: NatsServer, http: aiohttp.ClientSession
) -> None:
    port_file = tmp_path / "port"
    engine = processes.start(
        "pointsman-simulator", "serve", "--port-file", str(port_file), "--model", "qwen", "--speedup", "10"
    )
    await eventually(port_file.exists)
    url = f"http://127.0.0.1:{port_file.read_text()}"
    up = _up(processes, tmp_path / "run", "--engine", url, "--nats", own_nats_server.url)
    state = await _state(up, tmp_path / "run")
    assert [process["name"] for process in state["processes"] if process["kind"] in ("engine", "nats")] == []
    assert await _complete(http, state["door"], "qwen") == 200
    shown = await eventually(lambda: re.search(r"Console +(http://[^#\s]+)#token=", up.log_text()), timeout=READY_S)
    async with http.get(shown[1]) as answer:
        assert answer.status == 200, "an address that is printed answers"

    assert await up.terminate() == 0
    assert not [name for name, pid in _pids(state).items() if _alive(pid)]
    assert "processes have ended" in up.log_text()
    assert engine.returncode is None
    async with http.get(f"{url}/health") as answer:
        assert answer.status == 200


async def test_the_demo_ends_by_itself_with_its_figures_and_leaves_nothing(
    tmp_path: Path, processes: Processes
) -> None:
    demo = processes.start(
        "pointsman", "demo", "--config", str(SAMPLE), "--run-dir", str(tmp_path), "--seconds", "3", "--speedup", "10"
    )
    await eventually(lambda: demo.returncode is not None, timeout=READY_S)
    text = demo.log_text()
    assert demo.returncode == 0, text
    assert re.search(r"\d+ requests in \d+ s, none failed", text), text
    for kind in ("chat", "completion", "priority", "model: auto", "all"):
        assert re.search(rf"^  {kind} +\d+ ", text, re.MULTILINE), text
    assert re.search(r"Cache reuse +\d+% of [\d,]+ prompt tokens", text)
    assert re.search(r"Decisions +[\d.]+ ms", text)
    assert not [pid for pid in _pids(json.loads((tmp_path / "state.json").read_text())).values() if _alive(pid)]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([POINTSMAN, *arguments], check=False, capture_output=True, text=True, timeout=60)


async def test_a_port_in_use_is_said_before_anything_is_started(tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = str(taken.sockets[0].getsockname()[1])
    for option in ("--port", "--nats-port"):
        options = {"--port": "0", "--nats-port": "0", option: port}
        ran = await asyncio.to_thread(
            _run,
            "up",
            "--run-dir",
            str(tmp_path),
            "--config",
            str(SAMPLE),
            *(x for pair in options.items() for x in pair),
        )
        assert ran.returncode == 1
        assert f"port {port}, at which" in ran.stderr
        assert "is in use by another process" in ran.stderr
        assert option in ran.stderr
        assert not (tmp_path / "state.json").exists()
    taken.close()


def test_a_refused_configuration_is_said_with_its_line_before_anything_is_started(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("pools:\n  a:\n    models: [m]\n    schedulling: fast\n")
    ran = _run("up", *FREE, "--run-dir", str(tmp_path / "run"), "--config", str(file))
    assert ran.returncode == 1
    assert "unknown key 'schedulling'; did you mean 'scheduling'?" in ran.stderr
    assert "(line 4)" in ran.stderr


def test_an_engine_that_is_not_there_is_named(tmp_path: Path) -> None:
    ran = _run("up", *FREE, "--run-dir", str(tmp_path), "--engine", "http://127.0.0.1:1")
    assert ran.returncode == 1
    assert "http://127.0.0.1:1 can't be asked for its models" in ran.stderr


def test_a_nats_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    ran = _run("up", "--port", "0", "--nats", "nats://127.0.0.1:1", "--run-dir", str(tmp_path), "--config", str(SAMPLE))
    assert ran.returncode == 1
    assert "no NATS server answers at nats://127.0.0.1:1: connection refused" in ran.stderr
