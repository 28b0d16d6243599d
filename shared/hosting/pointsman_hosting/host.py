"""A process: one service or several, on one connection, with one health server, ended by one signal."""

import asyncio
import gc
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence, Set
from itertools import count
from typing import Final, TypeVar

import uvloop
from prometheus_client import GCCollector, PlatformCollector, ProcessCollector, disable_created_metrics

from pointsman_contracts.event_loss import EventsLost, LostEvents
from pointsman_contracts.services import EDGES
from pointsman_contracts.timing import TIMES
from pointsman_core.config import ConfigError
from pointsman_core.plugins import PluginError
from pointsman_hosting.configuration_source import ConfigurationSource
from pointsman_hosting.descriptor_watch import DescriptorWatch
from pointsman_hosting.health import BusCollector, HealthApp, LoopWatch, Readiness
from pointsman_hosting.http_server import HttpServer
from pointsman_hosting.memory_return import MemoryReturn
from pointsman_hosting.program import Member, Program
from pointsman_hosting.service import Server, Service
from pointsman_journey.process_stages import ProcessStages
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.event_keeper import EventKeeper
from pointsman_runtime.bus.held_events import HeldEvents
from pointsman_runtime.bus.hub import Hub
from pointsman_runtime.configuring.settings import ServiceSettings, SettingsError, load
from pointsman_runtime.configuring.urls import without_login
from pointsman_runtime.jetstream.events import Events
from pointsman_runtime.telling import descriptors, logs
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.metrics_registry import MetricsRegistry
from pointsman_runtime.telling.process import Process

EXIT_SETTINGS: Final = 78
"""`EX_CONFIG` of sysexits.h: the settings are wrong; starting again won't help."""
EXIT_FAILED: Final = 70
"""`EX_SOFTWARE`: a part that must run has ended."""
LOSSES_EVERY_S: Final = 1.0
"""How often a process looks whether it lost events that no event tells of."""
GC_OBJECTS: Final = 10_000
"""Objects made and not freed since the last look, after which the garbage collector looks again."""
EVENTS_AWAITED_S: Final = 3.0
"""How long a process that ends waits until the stream has its events."""
OTHERS_AWAITED_S: Final = 5.0
"""How long an edge waits for the other services of its process before it takes requests."""

T = TypeVar("T", bound=ServiceSettings)

_log = Log("service")


class Host:
    """The parts that the services of a process share: connections, configuration, metrics, health, signals, the end."""

    def __init__(self, process: Process, settings: ServiceSettings) -> None:
        TIMES.set(settings.times)
        self.process = process
        self.settings = settings
        self._link = Connection(
            settings.nats_servers,
            name=f"{process.service} {process.instance}",
            login=settings.nats_login,
            tls=settings.nats_tls(),
        )
        self.hub = Hub(self._link, process.inbox)
        self.held = HeldEvents(settings.events_kept)
        self.stages = ProcessStages(self.hub)
        self.events = Events(settings, process, self.hub.tallies)
        self.metrics = MetricsRegistry()
        self.configurations = ConfigurationSource(self.events, settings.buckets_replicas)
        self.services: list[Service[ServiceSettings]] = []
        self._stop = asyncio.Event()
        self._failed = False
        self._health: HttpServer | None = None
        self._listening: list[Server] = []

    def add_service(self, member: Member) -> None:
        """Compose one more service."""
        alike = sum(_role(each.name) == _role(member.name) for each in self.services)
        service = member.compose(self, self.process.instance + (f"-{alike + 1}" if alike else ""))
        self.metrics.add(service.registry)
        self.services.append(service)

    def stop(self) -> None:
        """End the process as SIGTERM does."""
        self._stop.set()

    def fail(self) -> None:
        """End the process because a part that must run has ended."""
        self._failed = True
        self._stop.set()

    async def run(self) -> int:
        """Live until a signal; returns the exit code."""
        watch = self._measure()
        watch.start()
        memory = MemoryReturn()
        memory.start()
        files = DescriptorWatch(self.metrics.own)
        files.start()
        loop = asyncio.get_running_loop()
        for what in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(what, self._stop.set)
        keeping: list[asyncio.Task[None]] = []
        try:
            health = HealthApp(self.check_readiness(), self.metrics, self._drained())
            self._health = HttpServer(health, self.settings.http_host, self.settings.http_port)
            await self._health.start()
            _log.info("http_listening", url=self._health.url)
            keeps_events = any(service.keeps_events for service in self.services)
            if keeps_events:
                keeper = EventKeeper(self.held, f"{self.process.inbox}.kept")
                self._link.keep_events(keeper)
                self.events.on_event_stream = keeper.set_confirming
            for service in self.services:
                service.journeys.open()
            self._link.allow_haste(decides_elsewhere({service.name for service in self.services}))
            self.events.open()
            if keeps_events:
                keeping.append(loop.create_task(self.events.keep_events(), name="event stream"))
                keeping.append(loop.create_task(self._tell_losses(), name="event losses"))
            starting = loop.create_task(self._start())
            stopped = loop.create_task(self._stop.wait())
            await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
            elif (error := starting.exception()) is not None:
                raise error
            await stopped
        finally:
            await self._end(keeping)
            watch.stop()
            memory.stop()
            files.stop()
            for what in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(what)
        return EXIT_FAILED if self._failed else 0

    def _measure(self) -> LoopWatch:
        own = self.metrics.own
        ProcessCollector(registry=own)
        PlatformCollector(registry=own)
        GCCollector(registry=own)
        own.register(BusCollector(self.hub.tallies, self.hub.replies, self.held))
        return LoopWatch(own)

    def check_readiness(self) -> Readiness:
        """The checks of the health server: of several services each reason is under the name of its service.

        Beside an edge the others may be without the bus: the edge says itself whether it can serve then.
        """
        if len(self.services) == 1:
            return self.services[0].readiness
        whole = Readiness()
        names = Counter(service.name for service in self.services)
        with_edge = any(service.name in EDGES for service in self.services)
        for service in self.services:
            # Each agent of a bundle counts: a check replaces the one of its name.
            name = service.name if names[service.name] == 1 else f"{service.name} {service.process.instance}"
            whole.include_checks(name, service.readiness, "bus" if with_edge and service.name not in EDGES else "")
        return whole

    def _drained(self) -> Readiness | None:
        """The checks that engines have nothing left, of every agent; None without one."""
        whole = Readiness()
        for service in self.services:
            if service.drained.has_checks:
                whole.include_checks(service.process.instance, service.drained)
        return whole if whole.has_checks else None

    async def _start(self) -> None:
        await self._wait_for_the_bus()
        # Objects that exist now live as long as the process: the garbage collector needn't traverse them while requests
        # wait. Most of them belong to modules, and are collected once here, while no request waits.
        gc.collect()
        gc.freeze()
        # One beat of every peer, so that the first forward doesn't find an empty table of who lives.
        await asyncio.sleep(1.5 * TIMES.beat_s)
        while any(service.heartbeat.find_conflicting_peer for service in self.services):  # noqa: ASYNC110 - beats set no event
            await asyncio.sleep(TIMES.beat_s)
        loop = asyncio.get_running_loop()
        others = [loop.create_task(self._bring_up(each, ())) for each in self.services if not each.servers]
        edges = [loop.create_task(self._bring_up(each, others)) for each in self.services if each.servers]
        try:
            await asyncio.gather(*others, *edges)
        except BaseException:
            await end_all([*others, *edges])
            raise
        gc.collect()
        gc.freeze()
        # Reference counts free a request's objects. At Python's default of 700, the collector runs for 0.3 ms whenever
        # a few more requests than before are open.
        gc.set_threshold(GC_OBJECTS, 10, 10)
        _log.info("ready", version=self.services[0].process.version)

    async def _bring_up(self, service: Service[ServiceSettings], others: Sequence["asyncio.Task[None]"]) -> None:
        await service.run_start_steps()
        if others:
            await asyncio.wait(others, timeout=OTHERS_AWAITED_S)
        for server in service.servers:
            await server.start()
            self._listening.append(server)
            _log.info("serving", service=service.name, url=server.url)
        service.take_work()

    async def _wait_for_the_bus(self) -> None:
        waiting = asyncio.get_running_loop().create_task(self.services[0].bus.wait_connected())
        patience = 2.0
        try:
            while not (await asyncio.wait([waiting], timeout=patience))[0]:
                _log.warning(
                    "bus_unreachable",
                    servers=", ".join(without_login(server) for server in self.settings.nats_servers),
                    reason=self._link.reason,
                    hint="connecting is retried; start a NATS server there, or set POINTSMAN_NATS_URL to another one",
                )
                patience = min(patience * 2, 60.0)
        finally:
            waiting.cancel()

    async def _tell_losses(self) -> None:
        """Publish how many events were lost, once the stream takes events again."""
        service = self.services[0]
        for sequence in count(1):
            while not (lost := self.held.take_losses()):  # noqa: ASYNC110 - losses set no event
                await asyncio.sleep(LOSSES_EVERY_S)
            _log_lost(lost, "the stream took none for too long")
            report = EventsLost(
                source=service.process.instance,
                sequence=sequence,
                at_ms=time.time_ns() // 1_000_000,
                lost=lost,
            )
            service.bus.publish(report, service.name)

    async def _settle_events(self) -> None:
        if not await self._link.settle(EVENTS_AWAITED_S):
            _log_lost(self.held.lost_at_end(), "the stream took none while this process ended")

    async def _end(self, keeping: Sequence["asyncio.Task[None]"]) -> None:
        _log.info("stopping")
        for service in self.services:
            service.refuse_work()
        if self._listening and not self._failed:
            await asyncio.sleep(self.settings.linger_s)
        # The edges' connections end first, all at once, while the stages that they need still answer.
        await asyncio.gather(*(server.stop() for server in self._listening))
        await asyncio.gather(*(service.finish_work() for service in self.services if service.name in EDGES))
        await asyncio.gather(*(service.finish_work() for service in self.services if service.name not in EDGES))
        await self._settle_events()
        await end_all(keeping)
        await self.configurations.close()
        await self.events.close()
        await self.hub.close()
        if self._health is not None:
            await self._health.stop()
        _log.info("stopped")


def _log_lost(lost: Sequence[LostEvents], reason: str) -> None:
    count = sum(each.count for each in lost)
    earliest, latest = min(each.from_ms for each in lost), max(each.to_ms for each in lost)
    _log.error("events_lost", count=count, from_ms=earliest, to_ms=latest, reason=reason)


def decides_elsewhere(services: Set[str]) -> bool:
    """Whether a process of these services takes requests, and no scheduler of its own hears at once how they end."""
    return not services.isdisjoint(EDGES) and "scheduler" not in services


def _role(service: str) -> str:
    """The role of a service. Of two services of one role only one may have an instance's name: edges are asked for
    content by it."""
    return "edge" if service in EDGES else service


def run(program: Program[T]) -> int:
    """Run one service until a signal; returns the exit code for `sys.exit`."""
    try:
        settings = load(program.settings)
    except SettingsError as error:
        sys.stderr.write(f"pointsman {program.name}: {error}\n")
        return EXIT_SETTINGS
    return run_all(program.name, settings, [program.build_member(settings)])


def run_all(name: str, settings: ServiceSettings, members: Sequence[Member]) -> int:
    """Run services in one process until a signal; returns the exit code. `settings` are the process's:
    connections, health server, logs."""
    logs.configure(settings.log_format, settings.log_level, name, settings.instance)
    descriptors.raise_limit()
    # A series more for each counter and histogram, with the time of its making; rates don't need it.
    disable_created_metrics()

    async def live() -> int:
        host = Host(Process(name, settings.instance, members[0].version, settings.nats_user or ""), settings)
        for member in members:
            host.add_service(member)
        return await host.run()

    try:
        return uvloop.run(live())
    except (ConfigError, PluginError) as error:
        _log.error("config_refused", problems=str(error))
        return EXIT_SETTINGS
    except SettingsError as error:
        _log.error("settings_refused", problems=str(error))
        return EXIT_SETTINGS
    except OSError as error:
        _log.error("cannot_start", error)
        return EXIT_FAILED
