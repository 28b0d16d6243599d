"""The life of a service: settings, logs, health, bus, work, drain."""

import asyncio
import gc
import importlib.metadata
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import uvloop
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from pointsman_core.config import Config, ConfigError
from pointsman_core.plugins import PluginError
from pointsman_runtime import logs
from pointsman_runtime.buckets import Bucket
from pointsman_runtime.bus import Bus
from pointsman_runtime.cancellation import end_all
from pointsman_runtime.configuration import Configuration, Revision
from pointsman_runtime.connection import Connection
from pointsman_runtime.custom_answers import Servers
from pointsman_runtime.errors import BusDisconnected
from pointsman_runtime.events import Events
from pointsman_runtime.health import BusCollector, HealthApp, LoopWatch, Readiness
from pointsman_runtime.http_server import App, HttpServer
from pointsman_runtime.logs import Log
from pointsman_runtime.presence import BEAT_S
from pointsman_runtime.process import Process
from pointsman_runtime.settings import ServiceSettings, SettingsError, load
from pointsman_runtime.stores import CONFIG_BUCKET, HISTORY, WORKERS_BUCKET, WORKERS_TTL_S
from pointsman_runtime.telemetry import Tracing
from pointsman_runtime.urls import without_login

T = TypeVar("T", bound=ServiceSettings)
C = TypeVar("C")

EXIT_SETTINGS = 78
"""`EX_CONFIG` of sysexits.h: the settings are wrong; starting again won't help."""
EXIT_FAILED = 70
"""`EX_SOFTWARE`: a part that must run has ended."""

_log = Log("service")


class Server(Protocol):
    """Listens for requests."""

    @property
    def url(self) -> str:
        """Where, once started."""
        ...

    async def start(self) -> None:
        """Listen. Raises OSError when the address can't be had."""
        ...

    async def stop(self) -> None:
        """Take nothing new, let what is open end within a bound, close."""
        ...


class Service(Generic[T]):
    """What a service is made of; its `build` adds handlers and whatever else it needs."""

    def __init__(self, name: str, settings: T, distribution: str) -> None:
        self.name = name
        self.settings = settings
        version = importlib.metadata.version(distribution)
        self.process = Process(name, settings.instance, version, settings.nats_user or "")
        self.tracing = Tracing.to(settings.otlp_endpoint, settings.trace_ratio, self.process)
        self.bus = Bus(
            Connection(
                settings.nats_servers,
                name=f"{name} {settings.instance}",
                credentials=settings.nats_login,
                tls=settings.nats_tls(),
            ),
            self.process,
            self.tracing,
        )
        self.events = Events(settings, self.bus)
        self.registry = CollectorRegistry()
        """Register Prometheus collectors of the service here."""
        self.keeps_events = True
        """Whether it makes the stream of events where there is none; the login of an agent may not."""
        self.readiness = Readiness()
        # Edges, which may serve without it, put a check of their own in this one's place.
        self.readiness.add("bus", lambda: self.bus.missing)
        self.health = HealthApp(self.readiness, self.registry)
        self._starting: list[Callable[[], Awaitable[None]]] = []
        self._stopping: list[Callable[[], Awaitable[None]]] = []
        self._servers: list[Server] = []
        self._listening: list[Server] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._stop = asyncio.Event()
        self._failed = False
        self._serving = False

    def configuration(self, compile: Callable[[Config, int], C]) -> Configuration[C]:  # noqa: A002 - as there
        """The gateway's configuration, compiled by the service; loaded before any `on_start` step.

        `compile(config, revision)` raises ValueError (ConfigError is one) for what the service can't run.
        """
        configuration = Configuration(compile, self.registry)
        self.readiness.add("configuration", lambda: configuration.missing)

        async def load() -> None:
            if self.settings.config == "kv":
                configuration.follow(self.bucket(CONFIG_BUCKET, history=HISTORY))
            else:
                configuration.offer_file(Path(self.settings.config))
            await configuration.wait_loaded()

        def tell(revision: Revision[C]) -> None:
            config = revision.config
            never_static = (name for name, profile in config.profiles.items() if profile.static == "deny")
            servers = Servers(frozenset(config.pools), frozenset(config.providers))
            self.bus.allow(config.edge.hop_budget, never_static, servers)
            heartbeat = self.bus.heartbeat
            heartbeat.revision = revision.number
            if heartbeat.beating:
                # Edges wait for this word before they begin requests with the revision.
                heartbeat.beat()

        configuration.on_change(tell)
        self._starting.insert(0, load)
        return configuration

    def bucket(self, name: str, *, ttl_s: float | None = None, history: int = 1, in_memory: bool = False) -> Bucket:
        """A key-value bucket, made when it isn't there; closed with the service."""
        copies = self.settings.buckets_replicas
        bucket = Bucket(self.events, name, ttl_s=ttl_s, history=history, replicas=copies, in_memory=in_memory)
        self._stopping.insert(0, bucket.close)
        return bucket

    def on_start(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run once connected, before the service takes work; e.g. ask a peer for its state."""
        self._starting.append(step)

    def on_stop(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run after the drain, last added first, while the bus still works; e.g. close a client session."""
        self._stopping.append(step)

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` every so many seconds from the event loop, from the moment the service takes work.

        It may publish: while the bus is gone nothing is sent. Any other error is logged, and the next turn comes.
        """

        async def begin() -> None:
            self._repeat(seconds, action)

        self._starting.append(begin)

    def background(self, name: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run a coroutine for the whole life of the service. Its end by an exception ends the process."""

        async def begin() -> None:
            self._keep(asyncio.get_running_loop().create_task(work(), name=name))

        self._starting.append(begin)

    def workers_bucket(self) -> Bucket:
        """The bucket of registered workers. Their agents write all of it again within seconds, so it needs no disk."""
        return self.bucket(WORKERS_BUCKET, ttl_s=WORKERS_TTL_S, in_memory=True)

    def serve_http(
        self, app: App, host: str, port: int, *, grace_s: float = 5, protocol: type[asyncio.Protocol] | None = None
    ) -> None:
        """Serve an ASGI application of the service's own while it takes work; see `HttpServer`."""
        self.serve(HttpServer(app, host, port, grace_s=grace_s, protocol=protocol))

    def serve(self, server: Server) -> None:
        """Run a server of any protocol while the service takes work."""
        self._servers.append(server)

    def stop(self) -> None:
        """End the service as SIGTERM does."""
        self._stop.set()

    async def run(self) -> int:
        """Live until a signal; returns the exit code."""
        self._collect()
        watch = LoopWatch(self.registry)
        watch.start()
        self.readiness.add("contracts", lambda: None if self._serving else self.bus.heartbeat.stranger)
        self.readiness.add("service", lambda: None if self._serving else "starting or draining")
        loop = asyncio.get_running_loop()
        for what in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(what, self._stop.set)
        try:
            health = HttpServer(self.health, self.settings.http_host, self.settings.http_port)
            await self._listen(health, "http_listening")
            self.bus.open()
            self.events.open()
            if self.keeps_events:
                self._keep(loop.create_task(self.events.keep_events(), name="event stream"))
            starting = loop.create_task(self._start())
            stopped = loop.create_task(self._stop.wait())
            await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
            elif (error := starting.exception()) is not None:
                raise error
            await stopped
        finally:
            await self._end()
            watch.stop()
            for what in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(what)
        return EXIT_FAILED if self._failed else 0

    async def _start(self) -> None:
        await self._wait_for_the_bus()
        # One beat of everybody, so that the first forward doesn't find an empty table of who lives.
        await asyncio.sleep(1.5 * BEAT_S)
        while self.bus.heartbeat.stranger is not None:  # noqa: ASYNC110 - beats that stop coming set no event
            await asyncio.sleep(BEAT_S)
        for step in self._starting:
            await step()
        for server in self._servers:
            await self._listen(server, "serving")
        self.bus.serve()
        self._serving = True
        # What lives by now lives to the end: the collector needn't walk it while requests wait.
        gc.collect()
        gc.freeze()
        _log.info("ready", version=self.process.version)

    async def _wait_for_the_bus(self) -> None:
        waiting = asyncio.get_running_loop().create_task(self.bus.wait_connected())
        patience = 2.0
        while not (await asyncio.wait([waiting], timeout=patience))[0]:
            _log.warning(
                "bus_unreachable",
                servers=", ".join(without_login(server) for server in self.settings.nats_servers),
                reason=self.bus.link.reason,
                hint="still trying; is a NATS server running there? POINTSMAN_NATS_URL names it",
            )
            patience = min(patience * 2, 60.0)

    async def _end(self) -> None:
        _log.info("stopping")
        self._serving = False
        # The edge's connections end first, while the stages that it needs still answer.
        for server in reversed(self._listening[1:]):
            await server.stop()
        await self.bus.drain(self.settings.drain_timeout_s, before_close=self._after_drain)
        for server in self._listening[:1]:
            await server.stop()
        _log.info("stopped")

    async def _after_drain(self) -> None:
        for timer in self._timers:
            timer.cancel()
        await end_all(self._tasks)
        for step in reversed(self._stopping):
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - the other parts must be closed all the same
                _log.error("stop_failed", error)
        await self.events.close()
        await asyncio.to_thread(self.tracing.close)

    async def _listen(self, server: Server, event: str) -> None:
        await server.start()
        self._listening.append(server)
        _log.info(event, url=server.url)

    def _collect(self) -> None:
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(BusCollector(self.bus))

    def _repeat(self, seconds: float, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        slot = len(self._timers)
        due = loop.time()

        def turn() -> None:
            nonlocal due
            # A stall isn't made up for: the next turn is in the future.
            due = max(due + seconds, loop.time())
            self._timers[slot] = loop.call_at(due, turn)
            try:
                action()
            except BusDisconnected:
                return  # told by the bus once, and by `/ready`
            except Exception as error:  # noqa: BLE001 - a failed turn must not be the last
                _log.error("periodic_action_failed", error)

        self._timers.append(loop.call_later(seconds, turn))

    def _keep(self, task: "asyncio.Task[object]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background_task_failed", error, task=task.get_name())
            self._failed = True
            self._stop.set()


def run(name: str, settings: type[T], build: Callable[[Service[T]], None], distribution: str | None = None) -> int:
    """Run a service until it is told to stop; returns the exit code for `sys.exit`.

    `build(service)` composes the service inside the event loop: it constructs handlers, registers them, and
    connects to nothing. `distribution` names the installed distribution whose version is told.
    """
    try:
        loaded = load(settings)
    except SettingsError as error:
        sys.stderr.write(f"pointsman {name}: {error}\n")
        return EXIT_SETTINGS
    logs.configure(loaded.log_format, loaded.log_level, name, loaded.instance)
    # A series more for each counter and histogram, with the time of its making; rates don't need it.
    disable_created_metrics()

    async def live() -> int:
        service = Service(name, loaded, distribution or f"pointsman-{name}")
        build(service)
        return await service.run()

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
