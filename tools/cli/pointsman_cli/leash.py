"""Runs a command that can't outlive the process that asked for it: `python -I -S leash.py <parent pid> <command…>`.

The kernel sends SIGKILL to the command when its parent ends, however the parent ends (prctl(2), PR_SET_PDEATHSIG;
Linux alone). The setting belongs to the process and survives exec, so this file leaves no code in memory. A
`preexec_fn` would do the same inside the fork of a process that has threads, where Python may deadlock.
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
    try:
        os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - runs what `pointsman up` planned
    except OSError as error:
        sys.stderr.write(f"{sys.argv[2]}: {error.strerror}\n")
        sys.exit(127)
