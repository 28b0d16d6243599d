"""Runs each member's tests in an environment that has only what the member declares, and its `dev` group.

`python scripts/test_isolated.py [--collect-only] [MEMBER…]`: e.g. `services/scheduler`; all by default. With
`--collect-only` every test is found and none is run, which imports all that the tests import. tests/test_workspace.py
finds an undeclared import without an environment for each member; running finds what only running can, such as an
entry point or a data file of a distribution that isn't declared.

Members that are tested one after the other share an environment, and uv removes from it what the next member doesn't
declare. Packages that stay keep their bytecode; an import without bytecode takes twice as long.
"""

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".uv" / "bin" / "uv"
ENVIRONMENTS = ROOT / ".uv" / "isolated"


def members() -> list[Path]:
    """Folders of all members that have tests."""
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns: list[str] = workspace["tool"]["uv"]["workspace"]["members"]
    return [file.parent for pattern in patterns for file in sorted(ROOT.glob(f"{pattern}/tests"))]


def run(member: Path, options: Sequence[str], free: SimpleQueue[Path]) -> bool:
    """Run one member's tests in one of the `free` environments; whether they passed."""
    name = tomllib.loads((member / "pyproject.toml").read_text())["project"]["name"]
    began = time.monotonic()
    exactly = ["--exact", "--locked", "--python", sys.executable, "--package", name]
    command = [str(UV), "run", *exactly, "--", "python", "-m", "pytest", "-q", *options, str(member)]
    environment = free.get()
    try:
        surroundings = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(environment)}
        done = subprocess.run(command, cwd=ROOT, env=surroundings, check=False, capture_output=True, text=True)
    finally:
        free.put(environment)
    closing = (done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"])[-1]
    output = done.stdout[-6000:] + done.stderr[-2000:] if done.returncode else ""
    # Whole: others write at the same time.
    sys.stdout.write(f"{name:32} {time.monotonic() - began:5.0f} s  {closing}\n{output}")
    sys.stdout.flush()
    return done.returncode == 0


def main() -> int:
    """Status 1 when a member's tests fail."""
    collect = "--collect-only" in sys.argv
    chosen = [ROOT / argument for argument in sys.argv[1:] if not argument.startswith("-")] or members()
    options = ["--collect-only"] if collect else ["-n", "auto"]
    # Finding tests takes one core, and running them all cores.
    at_once = (os.cpu_count() or 1) if collect else 1
    free = SimpleQueue[Path]()
    for number in range(at_once):
        free.put(ENVIRONMENTS / str(number))
    with ThreadPoolExecutor(at_once) as pool:
        passed = list(pool.map(partial(run, options=options, free=free), chosen))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
