"""What happens to answers after their last byte."""

import asyncio
from collections.abc import Callable, Coroutine


class Afterwards:
    """Runs what comes after the last byte, without anybody waiting for it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[None, None, None], then: Callable[[], None]) -> None:
        """Run what comes after the last byte of an answer, and call `then` at its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: then())

    async def drain(self) -> None:
        """Wait until every stage that was asked has answered, or its time is over."""
        while self._tasks:
            await asyncio.wait(self._tasks)
