"""Ends tasks for certain."""

import asyncio
from collections.abc import Iterable
from typing import Final

AGAIN_S: Final = 2.0
"""How long a task has for its last steps before it is cancelled again."""


async def end_all(tasks: Iterable["asyncio.Task[object]"]) -> None:
    """Cancel them and wait until they have ended.

    More than once if need be: before Python 3.12 `asyncio.wait_for`, by which nats-py waits, loses a cancellation that
    comes together with what it waits for (https://github.com/python/cpython/issues/86296).
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
