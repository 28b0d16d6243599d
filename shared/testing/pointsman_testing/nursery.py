"""Forks scripts from a process that has imported all console scripts, for tests that start many.

A process of the gateway imports for more than a second of CPU time before its first line runs, and a whole gateway is
ten of them. A fork runs the script's own entry point, or the given file, in a process of its own. One test of each
package (`Processes.start`) and those of `pointsman up` and of the documents show that a script also starts by itself.
"""

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final

from pointsman_contracts.services import SERVICES

_PR_SET_PDEATHSIG: Final = 1
_FORKED: Final = (
    "pointsman",
    "pointsman-bundle",
    "pointsman-simulator",
    *(f"pointsman-{service.name}" for service in SERVICES),
)


class Forked:
    """A running fork, with as much of `subprocess.Popen` as `ServiceProcess` needs."""

    def __init__(self, script: str, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        context, scripts = _server()
        # A daemon in multiprocessing's terms: it ends with the test run even if a test leaves it behind. Where the run
        # is killed, the kernel ends it: `_end_with_parent`.
        self._process = context.Process(
            target=_become, args=(scripts.get(script, script), arguments, env, log), daemon=True
        )
        self._process.start()
        self.pid = self._process.pid or 0
        """Process id, which is also that of its session."""

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def send_signal(self, what: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, what)


@cache
def _server() -> tuple[ForkServerContext, dict[str, EntryPoint]]:
    """The process that forks, and the scripts of this environment: a member's own tests have few of them."""
    scripts = {each.name: each for each in entry_points(group="console_scripts") if each.name in _FORKED}
    context = multiprocessing.get_context("forkserver")
    modules = ["pointsman_hosting.host", *(each.module for each in scripts.values())]
    context.set_forkserver_preload([*modules, "pointsman_testing.fork_server"])
    return context, scripts


def _become(script: EntryPoint | str, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> None:
    _end_with_parent()
    os.setsid()
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    # As when a program is executed; with them, the process that forks would outlive the test run.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(env)
    # As an interpreter does when it starts.
    sys.path[:0] = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if isinstance(script, str):
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
    else:
        sys.argv = [str(Path(sys.executable).with_name(script.name)), *arguments]
        sys.exit(script.load()())


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, where it can: Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
