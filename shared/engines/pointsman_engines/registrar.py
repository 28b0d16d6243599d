"""Announces one worker on the bus, and keeps its entry in the bucket of registered workers."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from pointsman_contracts.timing import TIMES
from pointsman_contracts.worker import WorkerAnnouncement, WorkerFinding, WorkerRegistration
from pointsman_engines.report import ReportedWorker, registration_of
from pointsman_engines.status import EngineStatus
from pointsman_engines.stored_entry import RETRY_S, RegistrationEntries, StoredEntry
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log

_log = Log("registration")


class Registrar:
    """Registers a worker once its engine has reported its models, and again on every change and every
    `TIMES.announce_s`.

    `announce` publishes, and raises BusError on failure. `on_registered` is called after each announcement that differs
    from the one before.
    """

    def __init__(
        self,
        announce: Callable[[WorkerAnnouncement], None],
        entries: RegistrationEntries,
        worker: ReportedWorker,
        *,
        agent: str,
        version: str,
        on_registered: Callable[[], None],
    ) -> None:
        self.problem: str | None = "the engine hasn't answered yet, so its kind and models are unknown"
        """Why the worker isn't registered; None when it is."""
        self.entry: Final = StoredEntry(entries, worker, self._wanted)
        self._announce: Final = announce
        self._worker: Final = worker
        self._agent: Final = agent
        self._version: Final = version
        self._on_registered: Final = on_registered
        self._status = EngineStatus()
        self._announced: WorkerRegistration | None = None
        self.withheld = ""
        """Why nothing is announced although it could be; empty when it is announced."""
        self._findings: dict[str, WorkerFinding] = {}
        """Those of the agent, by kind."""
        self._since_ms: Final = time.time_ns() // 1_000_000
        self._changed: Final = asyncio.Event()

    @property
    def findings(self) -> tuple[WorkerFinding, ...]:
        """Faults of the engine that an operator must mend."""
        return (*self._status.findings, *self._findings.values())

    def saw(self, status: EngineStatus) -> None:
        """Take in what the watch saw."""
        before, self._status = self._status, status
        if before.facts is not status.facts or before.boot_id != status.boot_id or before.findings != status.findings:
            self.renew()

    def found(self, kind: str, what: str) -> None:
        """The agent found a fault of this kind; an empty `what` ends it."""
        before = dict(self._findings)
        if what:
            self._findings[kind] = WorkerFinding(kind=kind, what=what)
        else:
            self._findings.pop(kind, None)
        if self._findings != before:
            self.renew()

    def withhold(self, reason: str) -> None:
        """Announce nothing for this reason, until it is called with an empty one."""
        if reason != self.withheld:
            self.withheld = reason
            self.problem = reason or "it is announced again in a moment"
            self.renew()

    def renew(self) -> None:
        """Register now: earlier messages and entries may have been lost."""
        self._changed.set()
        self.entry.write_now()

    async def run(self) -> None:
        """Keep the worker registered until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_announcing())
            # On its own: JetStream may take seconds to say that it does nothing.
            group.create_task(self.entry.keep_entry())

    async def remove_registration(self) -> None:
        """Publish that the worker is gone, and remove its entry."""
        if self._announced is not None:
            try:
                self._announce(WorkerAnnouncement(registration=self._announced, leaving=True))
            except BusError as error:
                _log.warning("worker_left_unannounced", worker=self._worker.worker, reason=str(error))
            else:
                _log.info("worker_left", pool=self._worker.pool, worker=self._worker.worker)
        await self.entry.remove_entry()

    def _wanted(self) -> WorkerRegistration | None:
        if self.withheld:
            return None
        return registration_of(
            self._worker, self._status, agent=self._agent, version=self._version, registered_ms=self._since_ms
        )

    async def _keep_announcing(self) -> None:
        while True:
            self._changed.clear()
            announced = self._register()
            try:
                async with asyncio.timeout(TIMES.announce_s if announced else RETRY_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _register(self) -> bool:
        wanted = self._wanted()
        if wanted is None:
            return False
        try:
            self._announce(WorkerAnnouncement(registration=wanted, findings=self.findings))
        except BusError as error:
            self.problem = str(error)
            return False
        before, self._announced = self._announced, wanted
        if self.problem is not None or wanted != before:
            self.problem = None
            _log.info(
                "worker_registered",
                pool=wanted.pool,
                worker=wanted.worker,
                engine=wanted.engine,
                boot_id=wanted.boot_id,
                models=", ".join(wanted.models),
            )
            self._on_registered()
        return True
