"""Represents one engine on the bus: reads it, publishes its load, keeps it registered."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from pointsman_core.config import EngineTls
from pointsman_engines.client import EngineClient
from pointsman_engines.drain import Drain
from pointsman_engines.endpoint_watch import ANSWER_TIMEOUT_S, EndpointWatch
from pointsman_engines.opaque_watch import OpaqueWatch
from pointsman_engines.pace import ReadingPace
from pointsman_engines.ranks import Rank, RankStatus, disputed, rank_worker, ranks_of
from pointsman_engines.report import ReportedWorker
from pointsman_engines.status import OPAQUE, EngineStatus, reason_of
from pointsman_engines.stored_entry import RegistrationEntries
from pointsman_engines.watch import EngineWatch
from pointsman_engines.worker_voice import WorkerVoice
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.telling.logs import Log

_log = Log("engine")


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
    """No answer is late before; a page that usually takes longer is waited for longer."""
    tls: EngineTls | None = None
    """How to connect to an https:// URL; None: as the system does it."""
    ranks: int | None = None
    """Its data-parallel ranks that are workers of their own; 1: none, it is one worker; None: those that its metrics
    name."""


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
        self.worker: Final = worker
        self.ranks: tuple[Rank, ...] = ()
        """Its data-parallel ranks, where each of them is a worker; empty otherwise."""
        self.voices: tuple[WorkerVoice, ...]
        """One for the engine, or one for each of its ranks."""
        self._bus: Final = bus
        self._entries: Final = entries
        self._named: Final = access.named
        self._configured: Final = access.ranks
        self._started = False
        self._former: set[asyncio.Task[None]] = set()
        """Voices that fall silent."""
        self._changes: Final[list[Callable[[], None]]] = []
        self.voices = (self._make_voice(worker),)
        self._client = client = EngineClient(
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
        registrar = self.voices[0].registrar
        if registrar.withheld:
            return registrar.withheld
        if not self.status.reachable:
            return f"engine {self.worker.url} unreachable: {self.status.reason}"
        if self.unregistered is not None:
            return self.watch.facts_problem or self.unregistered
        reason = reason_of(self.status)
        return f"engine {self.worker.url} isn't ready: {reason}" if reason else None

    @property
    def unregistered(self) -> str | None:
        """Why one of its workers isn't registered; None when all are."""
        return next((voice.registrar.problem for voice in self.voices if voice.registrar.problem is not None), None)

    @property
    def withheld(self) -> str:
        """Why nothing is published about it; empty when it is."""
        return self.voices[0].registrar.withheld

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call this whenever `voices` are others than before."""
        self._changes.append(changed)

    def withhold(self, reason: str) -> None:
        """Publish nothing about the engine, for this reason; an empty one ends that."""
        for voice in self.voices:
            voice.withhold(reason)

    def renew_registrations(self) -> None:
        """Register again: earlier messages and entries may have been lost."""
        for voice in self.voices:
            voice.registrar.renew()

    def report_finding(self, kind: str, what: str) -> None:
        """Register each worker that was found (`Registrar.found`)."""
        for voice in self.voices:
            voice.registrar.found(kind, what)

    @property
    def drain(self) -> Drain | None:
        """The drain that is reported; None for an engine that takes requests."""
        return self.voices[0].loads.drain

    def set_drain(self, drain: Drain | None) -> None:
        """Report that the engine drains, or that it takes requests again."""
        for voice in self.voices:
            voice.loads.set_drain(drain)

    async def wake_engine(self, within_s: float) -> None:
        """Ask the engine to wake up. Raises PageUnread when it doesn't answer well within this time."""
        await self._client.wake_up(timeout=within_s)

    def report_wake(self, failed: str) -> None:
        """Report why the engine can't be woken; an empty reason ends that."""
        self.report_finding("wake_failed", failed)
        for voice in self.voices:
            voice.loads.set_wake_failed(failed)

    def start(self) -> None:
        """Begin to read and to publish."""
        self._started = True
        self._tasks = [asyncio.get_running_loop().create_task(self.watch.run())]
        for voice in self.voices:
            voice.start()

    def raise_task_error(self) -> None:
        """Raise the error that ended a task which must run; such an end is a fault of this program."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
        for voice in self.voices:
            voice.raise_task_error()

    async def stop(self, *, leave: bool) -> None:
        """Stop; with `leave` remove the registrations, else leave them to another process."""
        await end_all(self._tasks)
        await asyncio.gather(*self._former, *[voice.stop(leave=leave) for voice in self.voices])
        await self._client.close()

    def _saw(self, status: EngineStatus) -> None:
        if status.facts is not None:
            ranks = ranks_of(status.facts, self._configured)
            if ranks != self.ranks:
                self._change_ranks(ranks)
            if self._configured is not None:
                self.report_finding("rank_count", disputed(status.facts, self._configured))
        for voice in self.voices:
            voice.saw(status)

    def _change_ranks(self, ranks: tuple[Rank, ...]) -> None:
        _log.info("engine_ranks", url=self.worker.url, ranks=len(ranks) or 1, before=len(self.ranks) or 1)
        former, withheld, drain = self.voices, self.withheld, self.drain
        self.ranks = ranks
        count = len(ranks)
        self.voices = tuple(
            [self._make_voice(rank_worker(self.worker, rank, count), RankStatus(rank, count).narrow) for rank in ranks]
        ) or (self._make_voice(self.worker),)
        for voice in self.voices:
            voice.withhold(withheld)
            voice.loads.set_drain(drain)
            if self._started:
                voice.start()
        for voice in former:
            task = asyncio.get_running_loop().create_task(voice.stop(leave=True))
            self._former.add(task)
            task.add_done_callback(self._former.discard)
        for changed in self._changes:
            changed()

    def _make_voice(
        self, worker: ReportedWorker, narrow: Callable[[EngineStatus], EngineStatus] | None = None
    ) -> WorkerVoice:
        named = self._named
        if narrow is None:
            return WorkerVoice(self._bus, self._entries, worker, named=named)
        return WorkerVoice(self._bus, self._entries, worker, named=named, narrow=narrow)
