"""A run of tests leaves no service behind, however it ends."""

import os
import signal
import sys
from pathlib import Path

import pytest

from pointsman_testing import Processes, ServiceProcess, eventually

_SERVICE = "import time\nprint('{}', flush=True)\ntime.sleep(600)\n"
_RUN = """
import signal, sys
from pathlib import Path
from pointsman_testing import Processes

if __name__ == "__main__":
    processes = Processes(Path(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: (processes.end_all(), sys.exit(0)))
    forked = processes.fork(sys.argv[2])
    started = processes.start_command([sys.executable, sys.argv[2]])
    print('pids', forked.pid, started.pid, flush=True)
    signal.pause()
"""


def is_there(pid: int) -> bool:
    """Whether the process lives: one that ended and wasn't waited for doesn't."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def pids_of(run: ServiceProcess, folder: Path) -> tuple[int, int]:
    """The services of the run, once both have begun: the forked one and the started one."""

    def said() -> tuple[int, int] | None:
        line = next((line for line in run.log_text().splitlines() if line.startswith("pids ")), None)
        begun = [log for log in folder.glob("*.log") if log.read_text()]
        if line is None or len(begun) < 2:
            return None
        _, forked, started = line.split()
        return int(forked), int(started)

    return await eventually(said, timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("end", ["all of its processes get SIGTERM", "it is killed"])
async def test_a_run_that_ends_leaves_no_service_behind(tmp_path: Path, end: str) -> None:
    service, run_file = tmp_path / "service.py", tmp_path / "run.py"
    service.write_text(_SERVICE)
    run_file.write_text(_RUN)
    processes = Processes(tmp_path)
    inner = tmp_path / "inner"
    inner.mkdir()
    run = processes.start_command([sys.executable, str(run_file), str(inner), str(service)])
    started = None
    try:
        forked, started = await pids_of(run, inner)
        if end == "it is killed":
            run.signal(signal.SIGKILL)
            await eventually(lambda: not is_there(forked))
        else:
            os.killpg(run.pid, signal.SIGTERM)
            assert await run.ended(60) == 0, run.log_text()
            assert not is_there(forked)
            assert not is_there(started)
    finally:
        if started is not None and is_there(started):
            os.kill(started, signal.SIGKILL)
        processes.end_all()
