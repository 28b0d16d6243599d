"""`pointsman config apply --wait`, as a Job runs it beside servers that start."""

import asyncio
from pathlib import Path

import pytest

from pointsman_testing import Processes, eventually
from pointsman_testing.nats_server import NatsServer

RIGHT = "pools:\n  a: {models: [m]}\nmodels:\n  m: {pool: a}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pointsman.yaml"
    path.write_text(RIGHT)
    return path


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    path = tmp_path / "faulty.yaml"
    path.write_text(RIGHT.replace("models: [m]", "modells: [m]"))
    return path


async def test_it_waits_for_a_server_that_comes_late(
    own_nats_server: NatsServer, processes: Processes, file: Path
) -> None:
    await asyncio.to_thread(own_nats_server.kill)
    command = processes.start(
        "pointsman", "config", "apply", "--wait", "60", str(file), env={"POINTSMAN_NATS_URL": own_nats_server.url}
    )
    await eventually(lambda: "Waiting: no NATS server answers" in command.log_text())
    assert command.returncode is None
    await asyncio.to_thread(own_nats_server.start)
    await eventually(lambda: command.returncode is not None)
    assert (command.returncode, "is revision 1" in command.log_text()) == (0, True), command.log_text()


async def test_a_faulty_file_is_refused_at_once_though_no_server_answers(processes: Processes, faulty: Path) -> None:
    command = processes.start(
        "pointsman", "config", "apply", "--wait", "600", str(faulty), env={"POINTSMAN_NATS_URL": "nats://127.0.0.1:9"}
    )
    await eventually(lambda: command.returncode is not None)
    assert command.returncode == 1
    assert "modells" in command.log_text()


async def test_a_wait_ends_with_the_reason(processes: Processes, file: Path) -> None:
    command = processes.start(
        "pointsman", "config", "apply", "--wait", "0.1", str(file), env={"POINTSMAN_NATS_URL": "nats://127.0.0.1:9"}
    )
    await eventually(lambda: command.returncode is not None)
    assert command.returncode == 1
    assert "no NATS server answers" in command.log_text()
