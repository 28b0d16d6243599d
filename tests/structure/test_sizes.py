"""A file is short enough to be read in one sitting."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
MOST = 400


def test_no_file_of_the_product_is_longer_than_400_lines() -> None:
    assert not {str(path.relative_to(ROOT)): lines for path, lines in product() if lines > MOST}


def test_half_of_the_files_that_do_something_have_at_most_120_lines() -> None:
    assert median(lines for _, lines in product() if lines > 1) <= 120


def product() -> Iterator[tuple[Path, int]]:
    """The product's own files in Python and JavaScript, and their lines."""
    members = [
        ROOT / "contracts",
        *chain.from_iterable((ROOT / name).iterdir() for name in ("services", "shared", "tools")),
    ]
    for path in chain.from_iterable(
        member.glob(f"pointsman_*/**/*.{suffix}") for member in members for suffix in ("py", "js")
    ):
        if "vendor" not in path.parts:
            yield path, len(path.read_text(encoding="utf-8").splitlines())
