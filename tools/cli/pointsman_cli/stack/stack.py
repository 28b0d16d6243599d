"""A whole gateway as processes: brought up in order, kept alive, taken down in an order that loses no request."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from pointsman_cli.config import configuration, stored_configuration
from pointsman_cli.config.configuration import Document
from pointsman_cli.engines import engines
from pointsman_cli.engines.engines import EngineModels
from pointsman_cli.services import ADAPTER
from pointsman_cli.stack import envoy, nats_server, plan
from pointsman_cli.stack.envoy_engines import Address
from pointsman_cli.stack.jetstream_keeper import JetStreamKeeper
from pointsman_cli.stack.keeper import Keeper
from pointsman_cli.stack.plan import Kind, Plan
from pointsman_cli.stack.ports import claimable, free_port, is_free
from pointsman_cli.stack.run_folder import RunFolder
from pointsman_cli.stack.supervision import State
from pointsman_cli.words import CommandError
from pointsman_core.config import Config, EngineTls, identifies
from pointsman_core.engine_url import unix_address
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.configuring.urls import without_login

START_TIMEOUT_S: Final = 90.0
END_PATIENCE_S: Final = 8.0
"""Longer than what services allow the work in hand after SIGTERM."""
DRAIN_S: Final = 5.0
ASK_MODELS_S: Final = 0.04
"""Between two questions until the gateway lists every model."""
CONSOLE_PORT: Final = 8090
METRICS_PORT: Final = 9100
SIMULATED_MODEL: Final = "simulated-model"


@dataclass(frozen=True)
class StackOptions:
    """The options of `up` and `demo`."""

    run_dir: Path
    config: Path | None = None
    nats: str | None = None
    """A server that runs already; None starts one."""
    nats_port: int = 0
    port: int = 0
    engines: tuple[str, ...] = ()
    engine_key: str | None = None
    engine_tls: EngineTls | None = None
    """How to connect to engines with https:// URLs; None: as the configuration's pools say."""
    simulated: int = 3
    speedup: float = 1.0
    replicas: Mapping[str, int] = field(default_factory=dict[str, int])
    separate: bool = False
    """Whether each service is a process of its own; otherwise all are bundled in one."""
    envoy: bool = False
    """Whether Envoy takes the requests at `port`, with an endpoint picker behind it."""
    console: bool = True
    """Whether the console runs beside the gateway."""
    console_port: int | None = None
    """None: 8090 if it is free and the gateway's port isn't chosen freely; else a free one. 0: a free one."""
    metrics_port: int | None = None
    """Port of the first process's metrics; each further process has the next. None: 9100, unless the gateway's port is
    chosen freely. 0: free ones. A port that is in use is left for a free one."""


@dataclass(frozen=True)
class _Crew:
    """The engines that agents speak for."""

    running: Sequence[plan.EngineUse]
    simulated: Sequence[tuple[Plan, str]]
    """The simulated engines to start, each with its pool."""


class LocalStack:
    """The processes and their addresses. Call `up`, wait, then `down`; `tell` is called on each change worth a line."""

    def __init__(
        self, options: StackOptions, folder: RunFolder, http: aiohttp.ClientSession, tell: Callable[[Keeper], None]
    ) -> None:
        self.options = options
        self.keepers: list[Keeper] = []
        self.nats_url = ""
        self.served = EngineModels("", (), ())
        """The models that the door lists once everything is ready."""
        self.config = Config()
        self.step = ""
        """The step in progress, in words."""
        self._console: Keeper | None = None
        self._token: Final = secrets.token_urlsafe(32)
        """Opens the console, once."""
        self._keeping: asyncio.Task[None] | None = None
        """The task that restarts JetStream in the stack's own server."""
        self._folder = folder
        self._http = http
        self._tell = tell

    @property
    def base_url(self) -> str:
        """Base URL of Envoy, or of the first frontend."""
        kind = Kind.PROXY if self.options.envoy else Kind.EDGE
        return next((keeper.door for keeper in self.keepers if keeper.plan.kind is kind), "")

    @property
    def shown_nats(self) -> str:
        """The bus's URL without a login."""
        return without_login(self.nats_url)

    @property
    def log_folder(self) -> Path:
        """Folder of the processes' logs."""
        return self._folder.logs

    def first_keeper(self, service: str) -> Keeper:
        """The first process that runs a service."""
        return next(keeper for keeper in self.keepers if service in keeper.plan.services)

    async def wait_for_console(self) -> str:
        """Address that opens the console, once; returned as soon as the console answers there. Empty without one, and
        when it can't be started."""
        keeper = self._console
        if keeper is None:
            return ""
        await keeper.wait_until(lambda it: it.life.state in (State.READY, State.GIVEN_UP))
        return f"{keeper.door}/login#token={self._token}" if keeper.life.state is State.READY else ""

    async def start_all(self) -> None:
        """Start all processes and return once they are ready. Raises CommandError with the process that isn't, and the
        reason."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._up()
        except TimeoutError:
            raise self._not_ready(f"is not ready within {START_TIMEOUT_S:g} s") from None
        if self.options.console:
            self._start_console()
        self._write_state()

    async def stop_all(self) -> None:
        """End everything: edges first, while all they need still answers, the bus last."""
        await self._leave_jetstream()
        for kinds in (
            (Kind.VIEWER, Kind.PROXY),
            (Kind.EDGE,),
            (Kind.AGENT, Kind.SERVICE),
            (Kind.ENGINE,),
            (Kind.NATS,),
        ):
            members = [keeper for keeper in self.keepers if keeper.plan.kind in kinds]
            await asyncio.gather(*(keeper.end_process(END_PATIENCE_S) for keeper in members))

    async def kill_all(self) -> None:
        """End everything at once."""
        await self._leave_jetstream()
        await asyncio.gather(*(keeper.end_process(0) for keeper in self.keepers))

    async def _leave_jetstream(self) -> None:
        if self._keeping is not None:
            await end_all([self._keeping])

    async def _up(self) -> None:
        claimable(self.options.port, "the gateway", "--port")
        if self.options.console:
            claimable(self.options.console_port or 0, "the console", "--console-port")
        if self.options.nats is None:
            claimable(self.options.nats_port, "the NATS server", "--nats-port")
        self.step = "checking the configuration"
        given = self._given()
        tls = self._engine_tls(None if given is None else given.config)
        served = await engines.ask(self.options.engines, self._http, self.options.engine_key, tls)
        document = given or self._generated(served)
        crew = self._crew(served, document.config)
        self.step = "starting NATS and engines"
        own: list[Plan] = []
        if self.options.nats is None:
            frontends = max(1, self.options.replicas.get("frontend", 1))
            # The server carries events and signals of bundles, and no request waits for them. When it interrupts a
            # bundle, both lose the contents of the processor's cache.
            batch = not self.options.separate
            own.append(nats_server.plan(self._folder, self.options.nats_port, frontends, batch=batch))
        server = next(iter(self._begin(own)), None)
        simulated = self._begin([each for each, _ in crew.simulated])
        await self._find_bus(server)
        # Stored before any service starts: a service would otherwise get ready with an earlier stack's configuration.
        self.step = "storing the configuration"
        async with stored_configuration.opened(self.nats_url) as store:
            await store.store_text(document.text)
        (self._folder.path / "pointsman.yaml").write_text(document.text)
        self.step = "starting services"
        env = self._environment()
        counts = {**dict.fromkeys(plan.needed(document.config), 1), **self.options.replicas}
        keyed = self.options.engine_key is not None
        port = 0 if self.options.envoy else self.options.port
        batch = bool(counts.get(plan.BATCH)) and not self.options.envoy
        # Lines and copies go to the frontend, whose port must then be known.
        sends_itself = batch or (bool(counts.get(plan.MIRROR)) and not self.options.envoy)
        port = port or (free_port() if sends_itself else 0)
        ground = plan.Ground(
            env,
            port,
            self._folder.state,
            keyed=keyed,
            envoy=self.options.envoy,
            door_port=self.options.port if self.options.envoy else port,
            batch_port=free_port() if batch else 0,
            separate=self.options.separate,
        )
        if self.options.separate:
            services = self._measured(plan.services(counts, ground))
            self._begin(services)
            uses = await self._uses(crew, simulated)
            self._begin(self._measured(plan.agents(uses, env, self.options.engine_key), len(services)))
        else:
            uses = await self._uses(crew, simulated)
            if counts[plan.FRONTEND] > 1 and not ground.port and not ground.envoy:
                ground = replace(ground, port=(port := free_port()), door_port=port)
            self._begin(self._measured(plan.bundles(counts, ground, uses, self.options.engine_key)))
        if self.options.envoy:
            if self.options.separate:
                self._begin([plan.adapter(ground)])
            await self._start_envoy(document.config)
        self.step = "waiting until everything is ready"
        await asyncio.gather(*(self._ready(keeper) for keeper in self.keepers))
        self.step = "asking the gateway for its models"
        self.config = document.config
        if any(identifies(use) for use in self.config.preprocessing):
            # The door lists models only to clients that it has authenticated.
            self.served = EngineModels(self.base_url, tuple(self.config.model_names()), ())
        else:
            self.served = await self._listed({name for pool in self.config.pools.values() for name in pool.models})

    def _environment(self) -> dict[str, str]:
        return {
            "POINTSMAN_NATS_URL": self.nats_url,
            "POINTSMAN_LOG_FORMAT": "json",
            "POINTSMAN_HTTP_PORT": "0",
            "POINTSMAN_DRAIN_TIMEOUT_S": f"{DRAIN_S:g}",
        }

    def _measured(self, plans: Sequence[Plan], before: int = 0) -> list[Plan]:
        """The processes with their ports for metrics; `before` of them have theirs already."""
        first = self.options.metrics_port
        if first is None and self.options.port:
            first = METRICS_PORT
        return plan.with_metrics(plans, first + before, is_free) if first else list(plans)

    def _start_console(self) -> None:
        """Not waited for: requests are served without it."""
        wanted = self.options.console_port
        if wanted is None and self.options.port and is_free(CONSOLE_PORT):
            wanted = CONSOLE_PORT
        [self._console] = self._begin([plan.console(self._environment(), wanted or free_port(), self._token)])

    def _given(self) -> Document | None:
        """The configuration of a file; None: it follows from the engines."""
        path = self.options.config
        if path is None and not self.options.engines and configuration.DEFAULT_FILE.exists():
            path = configuration.DEFAULT_FILE
        return None if path is None else configuration.checked(configuration.read(path), str(path))

    def _generated(self, served: Sequence[EngineModels]) -> Document:
        found = served or [EngineModels("", (SIMULATED_MODEL,), ())]
        written = configuration.written(engines.configuration(found, self.options.engine_tls))
        return configuration.checked(written, "the generated configuration")

    def _crew(self, served: Sequence[EngineModels], config: Config) -> _Crew:
        if not served:
            return _Crew((), self._simulated(config))
        pools = [(each, engines.pool_of(each, config)) for each in served]
        tls = self._engine_tls(config)
        return _Crew([plan.EngineUse(each.url, pool, each.name, tls) for each, pool in pools if pool is not None], ())

    def _simulated(self, config: Config) -> list[tuple[Plan, str]]:
        options = self.options
        return plan.simulated(
            config, options.simulated, options.speedup, self._folder.ports, ports_known=not options.separate
        )

    async def _find_bus(self, server: Keeper | None) -> None:
        """Wait until the stack's own server is ready; None takes the running one of the options."""
        if server is None:
            self.nats_url = self.options.nats or ""
            return
        await self._ready(server)
        jetstream = JetStreamKeeper(server, nats_server.config_file(self._folder), self._http)
        self._keeping = asyncio.get_running_loop().create_task(jetstream.run(), name="jetstream")
        self.nats_url = f"nats://127.0.0.1:{server.port}"

    async def _start_envoy(self, config: Config) -> None:
        self.step = "starting Envoy"
        engines = [keeper for keeper in self.keepers if keeper.plan.kind is Kind.ENGINE]
        await asyncio.gather(*(self._located(keeper) for keeper in engines))
        tls: dict[Address, EngineTls] = {}
        places = [(url, self._engine_tls(config)) for url in (*self.options.engines, *(each.url for each in engines))]
        places += [(each.url, pool.tls) for pool in config.pools.values() for each in pool.engines]
        addresses: dict[Address, None] = {}
        for url, settings in places:
            if unix_address(url) is not None:
                raise CommandError(
                    f"{url}: Envoy is told an engine by its IP address and port, which a Unix socket doesn't have.",
                    "Leave --envoy out: the frontend reaches it.",
                )
            parts = urlsplit(url)
            secured = parts.scheme == "https"
            address = parts.hostname or "", parts.port or (443 if secured else 80)
            addresses[address] = None
            if secured:
                tls[address] = settings or EngineTls()
        adapters = [keeper for keeper in self.keepers if ADAPTER in keeper.plan.services]
        for keeper in adapters:
            await keeper.wait_until(lambda it: bool(it.door) or it.life.state is State.GIVEN_UP)
            self._check_keeper(keeper)
        port = self.options.port or free_port()
        there = envoy.Upstreams([("127.0.0.1", keeper.port) for keeper in adapters], [*addresses], tls)
        self._begin([await asyncio.to_thread(envoy.plan, self._folder, port, there, config)])

    def _engine_tls(self, config: Config | None) -> EngineTls | None:
        """How to connect to the engines of the options: as they say, or else as the pools of the configuration do."""
        if self.options.engine_tls is not None or config is None:
            return self.options.engine_tls
        return next((pool.tls for pool in config.pools.values() if pool.tls is not None), None)

    async def _uses(self, crew: _Crew, keepers: Sequence[Keeper]) -> list[plan.EngineUse]:
        """The engines that get an agent; simulated ones, which `keepers` run, listen unless their port was known."""
        await asyncio.gather(*(self._located(keeper) for keeper in keepers if not keeper.plan.port))
        uses = [
            plan.EngineUse(keeper.url or f"http://127.0.0.1:{keeper.port}", pool, keeper.plan.name)
            for keeper, (_, pool) in zip(keepers, crew.simulated, strict=True)
        ]
        return [*crew.running, *uses]

    def _begin(self, plans: Sequence[Plan]) -> list[Keeper]:
        keepers = [Keeper(each, self._folder, self._http, self._tell) for each in plans]
        self.keepers += keepers
        for keeper in keepers:
            keeper.start_process()
        return keepers

    async def _located(self, keeper: Keeper) -> None:
        await keeper.wait_until(lambda it: bool(it.url) or it.life.state is State.GIVEN_UP)
        self._check_keeper(keeper)

    async def _ready(self, keeper: Keeper) -> None:
        await keeper.wait_until(lambda it: it.life.state in (State.READY, State.GIVEN_UP))
        self._check_keeper(keeper)

    def _check_keeper(self, keeper: Keeper) -> None:
        if keeper.life.state is State.GIVEN_UP:
            raise self._not_ready("can't be started")

    async def _listed(self, expected: set[str]) -> EngineModels:
        """The door's model list, once it has every expected model."""
        while True:
            try:
                served = await engines.ask_models(self.base_url, self._http)
            except CommandError as error:
                self.step = f"asking the gateway for its models: {error.problem}"
            else:
                missing = expected - {*served.models, *served.loras}
                if not missing:
                    return served
                self.step = f"asking the gateway for its models: {', '.join(sorted(missing))} missing"
            await asyncio.sleep(ASK_MODELS_S)

    def _not_ready(self, what: str) -> CommandError:
        lines: list[str] = []
        for keeper in self.keepers:
            life = keeper.life
            if life.state is not State.READY:
                lines.append(f"  {life.name}: {life.state}{f' ({life.why})' if life.why else ''}")
                if life.state in (State.GIVEN_UP, State.CRASHED):
                    lines += [f"      {line}" for line in keeper.read_complaints()]
        detail = "\n".join(lines) or f"  {self.step}"
        return CommandError(f"the stack {what}:\n{detail}", f"Logs are in {self._folder.logs}.")

    def _write_state(self) -> None:
        self._folder.write_state(
            {
                "started_at": time.time(),
                "door": self.base_url,
                "nats": self.shown_nats,
                "processes": [
                    {"name": keeper.plan.name, "kind": keeper.plan.kind.value, "pid": keeper.pid, "url": keeper.url}
                    for keeper in self.keepers
                ],
            }
        )
