"""Holds for all tests: the signals of their processes, a seed, and their order, the longest first, so that none of
them begins when the other workers are about to end."""

import os
import random
import signal
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent
LONGEST: Final = frozenset(
    ROOT / name
    for name in (
        "tests/audit/test_audit.py",
        "tests/integration/test_budgets.py",
        "tests/integration/test_console.py",
        "tests/integration/test_faults.py",
        "tests/integration/test_regret.py",
        "tests/integration/test_twin.py",
        "tests/integration/test_unruly.py",
        "tools/simulator/tests/test_comparison.py",
        "tools/simulator/tests/test_twin.py",
    )
)
"""Files with a test of half a minute or more."""


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and commands that tests end by Ctrl-C would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Workers inherit it, and a test whose name has a seed needs the same one in all of them.
    os.environ.setdefault("POINTSMAN_UNRULY_SEED", str(random.randrange(10**6)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Neighbours stay together."""
    items.sort(key=lambda item: item.path not in LONGEST)
