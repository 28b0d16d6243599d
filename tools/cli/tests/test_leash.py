"""A process that is started on a leash ends with its parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pointsman_cli.stack import leash
from pointsman_cli.stack.child import Child
from pointsman_testing import eventually

PARENT = """
import asyncio, pathlib, sys
from pointsman_cli.stack.child import Child
async def main():
    folder = pathlib.Path(sys.argv[1])
    child = await Child.start((sys.executable, "-c", "import time; time.sleep(600)"), {}, folder / "log")
    (folder / "child").write_text(str(child.pid))
    await asyncio.sleep(600)
asyncio.run(main())
"""


def _alive(pid: int) -> bool:
    """A zombie has ended; who reaps it is the init process's business."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux alone")
async def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)])  # noqa: ASYNC220 - as another program would
    try:
        child = await eventually(lambda: (tmp_path / "child").exists() and int((tmp_path / "child").read_text() or 0))
        assert _alive(child)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    await eventually(lambda: not _alive(child))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux alone")
def test_a_command_whose_parent_has_gone_already_never_starts() -> None:
    not_the_parent = "1" if os.getpid() != 1 else "2"
    command = [sys.executable, "-I", "-S", str(leash.__file__), not_the_parent, "normal", "echo", "ran"]
    ran = subprocess.run(command, check=False, capture_output=True)
    assert (ran.returncode, ran.stdout) == (1, b"")


@pytest.mark.skipif(sys.platform != "linux", reason="the policy is Linux's")
@pytest.mark.parametrize("policy", ["normal", "batch"])
async def test_only_a_batch_command_never_interrupts_a_running_process(tmp_path: Path, policy: str) -> None:
    command = (sys.executable, "-c", "import os; print(os.sched_getscheduler(0) == os.SCHED_BATCH)")
    child = await Child.start(command, {}, tmp_path / "log", batch=policy == "batch")
    assert await child.wait() == 0
    assert (tmp_path / "log").read_text() == f"{policy == 'batch'}\n"
