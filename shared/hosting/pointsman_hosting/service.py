"""A service: its parts, and its life within a process."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry

from pointsman_contracts.kept_response import KEPT_S, MOST_BYTES, RESPONSES_BUCKET
from pointsman_contracts.timing import TIMES
from pointsman_core.config import Config
from pointsman_hosting.configuration import Configuration, Revision
from pointsman_hosting.configuration_source import ConfigurationSource
from pointsman_hosting.health import HealthApp, Readiness
from pointsman_journey.custom_answers import Servers
from pointsman_journey.journeys import Journeys
from pointsman_journey.process_stages import ProcessStages
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.bus.errors import BusDisconnected
from pointsman_runtime.bus.hub import Hub
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_runtime.jetstream.events import Events
from pointsman_runtime.jetstream.stores import WORKERS_BUCKET
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.metrics_registry import MetricsRegistry
from pointsman_runtime.telling.process import Process
from pointsman_runtime.telling.telemetry import Tracing

T_co = TypeVar("T_co", bound=ServiceSettings, covariant=True)
C = TypeVar("C")

_log = Log("service")


class Server(Protocol):
    """Listens for requests."""

    @property
    def url(self) -> str:
        """Where, once started."""
        ...

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken or isn't this machine's."""
        ...

    async def stop(self) -> None:
        """Take no new work, let open work end within a bound, close."""
        ...


class ProcessHost(Protocol):
    """The process that a service runs in."""

    process: Process
    hub: Hub
    stages: ProcessStages
    events: Events
    metrics: MetricsRegistry
    configurations: ConfigurationSource

    def stop(self) -> None:
        """End the process as SIGTERM does."""
        ...

    def fail(self) -> None:
        """End the process because a part that must run has ended."""
        ...


class Service(Generic[T_co]):
    """The parts of a service; its `build` adds handlers and everything else it needs."""

    def __init__(self, host: ProcessHost, process: Process, settings: T_co) -> None:
        self.name = process.service
        self.settings = settings
        self.process = process
        self.tracing = Tracing.export_to(settings.otlp_endpoint, settings.trace_ratio, process)
        self.bus = Bus(host.hub, process)
        self.journeys = Journeys(self.bus, host.stages, self.tracing)
        """The stages of the service, and requests on their way."""
        self.heartbeat = self.journeys.heartbeat
        """The heartbeat of this instance, and the table of every live instance."""
        self.events = host.events
        """Shared by the services of the process."""
        self.registry = CollectorRegistry()
        """Register Prometheus collectors of the service here."""
        self.keeps_events = True
        """Whether it makes the stream of events where none is; the login of an agent may not."""
        self.readiness = Readiness()
        # Edges, which may serve without it, put a check of their own in this one's place.
        self.readiness.add_check("bus", lambda: self.bus.missing)
        self.readiness.add_check("contracts", lambda: None if self._serving else self.heartbeat.find_conflicting_peer)
        self.readiness.add_check("service", lambda: None if self._serving else "starting or draining")
        self.drained = Readiness()
        """Checks that what it takes care of has nothing left; behind `/drained`, if there are any."""
        self.health = HealthApp(self.readiness, host.metrics)
        self.servers: list[Server] = []
        """Those that take requests while the service does."""
        self._host = host
        self._starting: list[Callable[[], Awaitable[None]]] = []
        self._stopping: list[Callable[[], Awaitable[None]]] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._serving = False

    def configuration(self, compile: Callable[[Config, int], C]) -> Configuration[C]:  # noqa: A002 - as there
        """The gateway's configuration, compiled by the service; loaded before any `on_start` step.

        `compile(config, revision)` raises ValueError (ConfigError is one) for what the service can't run.
        """
        configuration = Configuration(compile, self.registry)
        self.readiness.add_check("configuration", lambda: configuration.missing)

        async def load() -> None:
            self._host.configurations.feed_revisions(configuration, self.settings.config)
            await configuration.wait_loaded()

        def tell(revision: Revision[C]) -> None:
            config = revision.config
            never_static = (name for name, profile in config.profiles.items() if profile.static == "deny")
            servers = Servers(frozenset(config.pools), frozenset(config.providers))
            self.journeys.allow(config.edge.hop_budget, never_static, servers)
            heartbeat = self.heartbeat
            heartbeat.revision = revision.number
            if heartbeat.beating:
                # Edges wait for this word before they begin requests with the revision.
                heartbeat.publish_state()

        configuration.on_change(tell)
        self._starting.insert(0, load)
        return configuration

    def open_bucket(self, name: str, *, max_bytes: int | None = None) -> Bucket:
        """A key-value bucket, made when the server has none; closed with the service. `max_bytes` as `Bucket`."""
        return self._closing(Bucket(self.events, name, replicas=self.settings.buckets_replicas, max_bytes=max_bytes))

    def workers_bucket(self, *, make: bool = True) -> Bucket:
        """The bucket of registered workers. Their agents write all of it again within seconds, so it needs no disk.

        `make`: False for an agent, whose login may not choose the bucket's replicas."""
        bucket = Bucket(
            self.events,
            WORKERS_BUCKET,
            ttl_s=TIMES.worker_gone_s,
            replicas=self.settings.buckets_replicas,
            in_memory=True,
            make=make,
        )
        return self._closing(bucket)

    def responses_bucket(self) -> Bucket:
        """The bucket of responses that engines keep, in memory as theirs are."""
        bucket = Bucket(
            self.events,
            RESPONSES_BUCKET,
            ttl_s=KEPT_S,
            replicas=self.settings.buckets_replicas,
            in_memory=True,
            max_bytes=MOST_BYTES,
        )
        return self._closing(bucket)

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

    def run_in_background(self, name: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run a coroutine for the whole life of the service. Its end by an exception ends the process."""

        async def begin() -> None:
            self._keep_task(asyncio.get_running_loop().create_task(work(), name=name))

        self._starting.append(begin)

    def serve(self, server: Server) -> None:
        """Run a server of any protocol while the service takes work."""
        self.servers.append(server)

    def stop(self) -> None:
        """End the process as SIGTERM does."""
        self._host.stop()

    async def run_start_steps(self) -> None:
        """Run what `on_start` was given, in order; the bus is connected."""
        for step in self._starting:
            await step()

    def take_work(self) -> None:
        """Join the queue groups, and be ready."""
        self.journeys.serve()
        self._serving = True

    def refuse_work(self) -> None:
        """Stop being ready; current work continues."""
        self._serving = False

    async def finish_work(self) -> None:
        """Finish the current work and close everything that the service opened."""
        await self.journeys.drain(self.settings.drain_timeout_s, before_close=self._after_drain)

    async def _after_drain(self) -> None:
        for timer in self._timers:
            timer.cancel()
        await end_all(self._tasks)
        for step in reversed(self._stopping):
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - the other parts must be closed all the same
                _log.error("stop_failed", error, service=self.name)
        await asyncio.to_thread(self.tracing.close)

    def _closing(self, bucket: Bucket) -> Bucket:
        self._stopping.insert(0, bucket.close)
        return bucket

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

    def _keep_task(self, task: "asyncio.Task[object]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background_task_failed", error, task=task.get_name())
            self._host.fail()
