"""Represents one engine on the bus: reads it, publishes its load, keeps it registered."""

import asyncio
from dataclasses import dataclass, field

import aiohttp

from pointsman_core.config import EngineTls
from pointsman_engines.client import EngineClient
from pointsman_engines.drain import Drain
from pointsman_engines.endpoint_watch import ANSWER_TIMEOUT_S, EndpointWatch
from pointsman_engines.load_reporter import LoadReporter
from pointsman_engines.opaque_watch import OpaqueWatch
from pointsman_engines.pace import ReadingPace
from pointsman_engines.registrar import Registrar
from pointsman_engines.report import ReportedWorker
from pointsman_engines.status import OPAQUE, EngineStatus, reason_of
from pointsman_engines.stored_entry import RegistrationEntries
from pointsman_engines.watch import EngineWatch
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.cancellation import end_all


@dataclass(frozen=True, slots=True)
class EngineAccess:
    """The access to an engine."""

    url: str
    """Base URL by which this process reaches it."""
    metrics_url: str | None = None
    """URL of its metrics if not one of the usual paths below `url`."""
    api_key: str | None = field(default=None, repr=False)
    engine: str | None = None
    """Its kind; None: found from its metrics."""
    health: str | None = None
    """Path of the health check of an `opaque` endpoint; None for the usual one."""
    named: bool = False
    """Whether its pool names it: an engine that never answers then counts as unreachable, and isn't waited for."""
    pace: ReadingPace = field(default_factory=ReadingPace)
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    tls: EngineTls | None = None
    """How to connect to an https:// URL; None: as the system does it."""
    """No answer is late before; a page that usually takes longer is waited for longer."""


class EngineSpeaker:
    """Speaks for one engine from `start` to `stop`. The HTTP session is the caller's."""

    def __init__(
        self,
        bus: Bus,
        entries: RegistrationEntries,
        session: aiohttp.ClientSession,
        worker: ReportedWorker,
        access: EngineAccess,
    ) -> None:
        self.worker = worker
        self.loads = LoadReporter(bus, worker, named=access.named)
        self.registrar = Registrar(
            lambda announcement: bus.publish(announcement, worker.pool, worker.worker),
            entries,
            worker,
            agent=bus.process.instance,
            version=bus.process.version,
            on_registered=self.loads.publish_load,
        )
        client = EngineClient(
            access.url, metrics_url=access.metrics_url, api_key=access.api_key, session=session, tls=access.tls
        )
        self.watch: EndpointWatch
        if access.engine == OPAQUE:
            self.watch = OpaqueWatch(client, self._saw, health=access.health, answer_timeout_s=access.answer_timeout_s)
        else:
            self.watch = EngineWatch(
                client,
                self._saw,
                engine=access.engine,
                pace=access.pace,
                answer_timeout_s=access.answer_timeout_s,
            )
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def status(self) -> EngineStatus:
        """The current knowledge about the engine."""
        return self.watch.status

    @property
    def problem(self) -> str | None:
        """Why no new request should reach the engine through the gateway; None when it may."""
        if self.registrar.withheld:
            return self.registrar.withheld
        if not self.status.reachable:
            return f"engine {self.worker.url} unreachable: {self.status.reason}"
        if self.registrar.problem is not None:
            return self.watch.facts_problem or self.registrar.problem
        reason = reason_of(self.status)
        return f"engine {self.worker.url} isn't ready: {reason}" if reason else None

    def withhold(self, reason: str) -> None:
        """Publish nothing about the engine, for this reason; an empty one ends that."""
        self.registrar.withhold(reason)
        self.loads.withhold(withheld=bool(reason))

    @property
    def drain(self) -> Drain | None:
        """The drain that is reported; None for an engine that takes requests."""
        return self.loads.drain

    def set_drain(self, drain: Drain | None) -> None:
        """Report that the engine drains, or that it takes requests again."""
        self.loads.set_drain(drain)

    def start(self) -> None:
        """Begin to read and to publish."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self.watch.run()), loop.create_task(self.registrar.run())]

    def raise_task_error(self) -> None:
        """Raise the error that ended a task which must run; such an end is a fault of this program."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def stop(self, *, leave: bool) -> None:
        """Stop; with `leave` remove the registration, else leave it to another process."""
        await end_all(self._tasks)
        self.loads.stop()
        if leave:
            await self.registrar.remove_registration()

    def _saw(self, status: EngineStatus) -> None:
        self.registrar.saw(status)
        self.loads.saw(status)
