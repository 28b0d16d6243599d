"""Checks long texts in threads."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Final

from pointsman_guard.domain.policy import Apart, Found
from pointsman_plugins.guarding import Checked


class Aside:
    """Checks long texts in threads, so that the event loop stays free."""

    def __init__(self, threads: Executor, above: int) -> None:
        """`above`: characters."""
        self._threads: Final = threads
        self._above: Final = above

    def check_aside(self, checked: Checked) -> Apart | None:
        """Runs the check of these texts in a thread; None when they are short enough for the event loop."""
        return self._run_detector if checked.size > self._above else None

    def _run_detector(self, detect: Callable[[Checked], Found], checked: Checked) -> Awaitable[Found]:
        return asyncio.get_running_loop().run_in_executor(self._threads, detect, checked)
