"""One stack from its first process to its last. It ends with its work, at a signal, or on a failure."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Final

import aiohttp
from rich.console import Console

from pointsman_cli.stack.progress import Progress
from pointsman_cli.stack.run_folder import RunFolder
from pointsman_cli.stack.stack import LocalStack, StackOptions
from pointsman_runtime.telling import descriptors

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Work = Callable[[LocalStack, float], Coroutine[object, object, None]]
"""The work to do with a ready stack. The number is the seconds until it was ready."""


async def run(options: StackOptions, console: Console, work: Work) -> bool:
    """Bring a stack up, do the work, take it down. False when a signal ended it before the work was done.

    A second signal ends every process at once.
    """
    # Children inherit the limit; Envoy doesn't raise its own.
    descriptors.raise_limit()
    with RunFolder(options.run_dir) as folder:
        async with aiohttp.ClientSession() as http:
            progress = Progress(console)
            stack = LocalStack(options, folder, http, progress.report_change)
            signals = _Signals()
            try:
                return await signals.unless_told_to_end(_bring_up_and(work, stack, progress))
            finally:
                progress.end_progress()
                progress.close()
                with console.status("Stopping", spinner_style="dim"):
                    if not await signals.unless_told_to_end(stack.stop_all()):
                        await stack.kill_all()
                if stack.keepers:
                    console.print(f"[dim]All {len(stack.keepers)} processes have ended.[/]")
                signals.close()


async def _bring_up_and(work: Work, stack: LocalStack, progress: Progress) -> None:
    progress.show_stack(stack)
    try:
        await stack.start_all()
    finally:
        took = progress.end_progress()
    await work(stack, took)


class _Signals:
    """Each signal cancels the current work."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._current: asyncio.Task[None] | None = None
        self._told = False
        for what in SIGNALS:
            self._loop.add_signal_handler(what, self._end)

    async def unless_told_to_end(self, work: Coroutine[object, object, None]) -> bool:
        """Returns whether the work finished without a signal. Its exceptions are raised."""
        self._told = False
        self._current = self._loop.create_task(work)
        try:
            await self._current
        except asyncio.CancelledError:
            if not self._told:
                raise
            return False
        return True

    def close(self) -> None:
        for what in SIGNALS:
            self._loop.remove_signal_handler(what)

    def _end(self) -> None:
        self._told = True
        if self._current is not None:
            self._current.cancel()
