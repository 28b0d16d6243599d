"""The benchmark of the matrix leaves no process behind when it is stopped."""

import signal
import sys
from pathlib import Path

from pointsman_testing import Processes, eventually

ROOT = Path(__file__).resolve().parents[1]


def left(pids: list[str]) -> list[str]:
    """The processes that are still there."""
    return [pid for pid in pids if Path(f"/proc/{pid}").is_dir()]


async def test_a_run_that_is_stopped_ends_its_processes(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    try:
        options = ["--only", "status 500", "--place", "f2w", "--systems", "round-robin"]
        running = processes.start_command(
            [sys.executable, "-m", "benchmarks.unruly", *options], env={"PYTHONPATH": str(ROOT)}
        )

        def children() -> list[str]:
            return Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()

        started = await eventually(lambda: children() if len(children()) > 1 else None, timeout=60)
        running.signal(signal.SIGTERM)
        assert await running.ended(60) == 128 + signal.SIGTERM, running.log_text()
        assert not left(started)
    finally:
        processes.end_all()
