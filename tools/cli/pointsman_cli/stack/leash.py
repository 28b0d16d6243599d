"""Runs a command that can't outlive the process that asked for it:
`python -I -S leash.py <parent pid> normal|batch <command…>`.

The kernel sends SIGKILL to the command when its parent ends, however the parent ends (prctl(2), PR_SET_PDEATHSIG;
Linux alone). A `batch` command gets the policy SCHED_BATCH (sched(7), Linux alone): when it wakes, it waits for the
running process to sleep or to use up its time slice. The settings belong to the process and survive exec, so this file
leaves no code in memory. A `preexec_fn` would do the same inside the fork of a process that has threads, where Python
may deadlock.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            # The parent ended before the setting took effect, so the kernel had no process to watch.
            sys.exit(1)
        if sys.argv[2] == "batch":
            try:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            except OSError as error:  # a container may forbid it
                sys.stderr.write(f"SCHED_BATCH: {error.strerror}\n")
    command = sys.argv[3:]
    try:
        os.execvp(command[0], command)  # noqa: S606 - runs what `pointsman up` planned
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(127)
