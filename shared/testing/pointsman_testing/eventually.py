"""The one way a test waits: for a condition, with a bound."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")

PATIENCE_S = 60.0
"""Seconds; long enough for a machine that gives a process no CPU for seconds, many times in a row. A longer wait is a
failure."""
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.05


async def eventually(condition: Callable[[], T | Awaitable[T | None] | None], timeout: float = PATIENCE_S) -> T:  # noqa: ASYNC109 - the bound is the point
    """Wait until `condition()` is truthy and return what it returned.

    The condition may be a coroutine function. A condition that raises AssertionError isn't met yet; the last
    such error is the cause of the AssertionError that is raised after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE_S
    while True:
        failure: AssertionError | None = None
        result: T | None = None
        try:
            outcome = condition()
            result = await cast("Awaitable[T | None]", outcome) if inspect.isawaitable(outcome) else outcome
        except AssertionError as error:
            failure = error
        if failure is None and result:
            return result
        if time.monotonic() >= deadline:
            seen = "" if failure else f"; it was {result!r}"
            raise AssertionError(f"not true within {timeout:g} s{seen}") from failure
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
