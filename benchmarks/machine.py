"""The machine that a figure was measured on."""

import os
import platform
import sys
from pathlib import Path


def describe() -> str:
    """Processor, cores, load, system and Python in one line."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    load = os.getloadavg()[0]
    interpreter = Path(sys.executable).resolve()
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, load {load:.1f} at the start, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()} at {interpreter}"
    )
