"""A process may open as many files as its hard limit allows."""

import subprocess
import sys

SCRIPT = """
import resource
from pointsman_runtime.telling import descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 777))
descriptors.raise_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), descriptors.limit())
"""


def test_the_soft_limit_of_descriptors_is_raised_to_the_hard_one() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == ["777", "777", "777"]
