"""One worker on the bus: its registration and its load, as its engine was seen."""

import asyncio
from collections.abc import Callable
from typing import Final

from pointsman_engines.load_reporter import LoadReporter
from pointsman_engines.registrar import Registrar
from pointsman_engines.report import ReportedWorker
from pointsman_engines.status import EngineStatus
from pointsman_engines.stored_entry import RegistrationEntries
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.cancellation import end_all


def _whole(status: EngineStatus) -> EngineStatus:
    return status


class WorkerVoice:
    """Speaks for one worker from `start` to `stop`. `narrow` gives what it says of its engine's status."""

    def __init__(
        self,
        bus: Bus,
        entries: RegistrationEntries,
        worker: ReportedWorker,
        *,
        named: bool,
        narrow: Callable[[EngineStatus], EngineStatus] = _whole,
    ) -> None:
        """`named` as in `LoadReporter`."""
        self.worker: Final = worker
        self.loads: Final = LoadReporter(bus, worker, named=named)
        self.registrar: Final = Registrar(
            lambda announcement: bus.publish(announcement, worker.pool, worker.worker),
            entries,
            worker,
            agent=bus.process.instance,
            version=bus.process.version,
            on_registered=self.loads.publish_load,
        )
        self.status = EngineStatus()
        """The current knowledge about the worker."""
        self._narrow: Final = narrow
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to keep it registered."""
        self._task = asyncio.get_running_loop().create_task(self.registrar.run())

    def saw(self, status: EngineStatus) -> None:
        """Take in what the watch saw of the engine."""
        self.status = own = self._narrow(status)
        self.registrar.saw(own)
        self.loads.saw(own)

    def withhold(self, reason: str) -> None:
        """Publish nothing about the worker, for this reason; an empty one ends that."""
        self.registrar.withhold(reason)
        self.loads.withhold(withheld=bool(reason))

    def raise_task_error(self) -> None:
        """Raise the error of a task that has failed."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def stop(self, *, leave: bool) -> None:
        """Stop; with `leave` remove the registration, else leave it to another process."""
        if self._task is not None:
            await end_all([self._task])
        self.loads.stop()
        if leave:
            await self.registrar.remove_registration()
