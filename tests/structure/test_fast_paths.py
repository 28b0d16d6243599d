"""Each fast path is a file of its own that names its benchmark, and there are few of them."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
MOST: Final = 10
BENCHMARK: Final = "benchmarks.fast_paths"


def test_each_fast_path_is_timed_and_there_are_at_most_ten() -> None:
    files = {
        path.stem
        for home in ("contracts", "shared", "services", "tools")
        for path in (ROOT / home).glob("**/pointsman_*/**/*.py")
        if BENCHMARK in path.read_text(encoding="utf-8")
    }
    timed = set(
        re.findall(r'Pair\(\s*"(\w+)"', (ROOT / "benchmarks/fast_paths/__main__.py").read_text(encoding="utf-8"))
    )
    assert timed
    assert files == timed
    assert len(files) <= MOST
