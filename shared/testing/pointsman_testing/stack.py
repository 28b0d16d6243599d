"""A whole gateway as real processes, whose parts a test may kill, stop and start again one by one."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp
import yaml
from pydantic import JsonValue

from pointsman_contracts.services import SERVICES as EVERY
from pointsman_contracts.services import names
from pointsman_contracts.worker import rank_name
from pointsman_testing.eventually import eventually
from pointsman_testing.nats_server import NatsServer, new_nats_server
from pointsman_testing.ports import free_port
from pointsman_testing.processes import READY_TIMEOUT_S, Processes, ServiceProcess

POOL: Final = "llama-8b"
OPTIONAL: Final = ("recorder", *(service.name for service in EVERY if service.optional))
"""Services that a stack is without unless it is asked for replicas of them."""
SERVICES: Final = (
    *(name for name in names("stage", "background") if name not in OPTIONAL),
    "frontend",
)


class ServedPool(NamedTuple):
    """The models and the pool of a stack's engines."""

    pool: str = POOL
    models: tuple[str, ...] = ("llama-3.1-8b",)
    loras: tuple[str, ...] = ("sql-lora",)
    ranks: int = 1
    """Data-parallel ranks of each engine."""
    options: tuple[str, ...] = ()
    """Further options of `pointsman-simulator serve`."""


class KvTelling(NamedTuple):
    """Engines that tokenize and publish their KV events."""

    tokenizer: Path
    """Folder of the tokenizer."""
    blocks: int
    block_tokens: int
    index_block_tokens: int
    """`block_tokens` of the pool."""
    tells: bool = True
    """They publish their KV events."""


class EngineProcess:
    """One simulated engine and the agent beside it; the engine can come back on its address."""

    def __init__(
        self,
        name: str,
        processes: Processes,
        folder: Path,
        speedup: float,
        cache: KvTelling | None = None,
        served: ServedPool | None = None,
    ) -> None:
        self.name = name
        self._served = served or ServedPool()
        self.process: ServiceProcess
        self.agent: ServiceProcess
        self._processes = processes
        self._folder = folder
        self._speedup = speedup
        self._cache = cache
        self._port = free_port()
        self._admin = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def workers(self) -> tuple[str, ...]:
        """Its name as a worker, or those of its ranks."""
        ranks = self._served.ranks
        return (self.name,) if ranks == 1 else tuple([rank_name(self.name, rank) for rank in range(ranks)])

    async def start(self) -> None:
        """Start the engine (always on the same port) and wait until it listens."""
        port_file, admin_file = self._folder / f"{self.name}.port", self._folder / f"{self.name}.admin"
        kv_file = self._folder / f"{self.name}.kv"
        for file in (port_file, admin_file, kv_file):
            file.unlink(missing_ok=True)
        options = () if self._cache is None else (
            "--tokenizer", str(self._cache.tokenizer), "--block-size", str(self._cache.block_tokens),
            "--blocks", str(self._cache.blocks),
        )  # fmt: skip
        if self._cache is not None and self._cache.tells:
            told = ("--kv-events", "tcp://127.0.0.1:*", "--kv-replay", "tcp://127.0.0.1:*", "--kv-file", str(kv_file))
            options = (*options, *told)
        self.process = self._processes.fork(
            "pointsman-simulator", "serve", "--name", self.name, "--port", str(self._port),
            "--port-file", str(port_file), "--admin-port", "0", "--admin-port-file", str(admin_file),
            "--speedup", str(self._speedup), "--data-parallel-size", str(self._served.ranks),
            *(part for model in self._served.models for part in ("--model", model)),
            *(part for lora in self._served.loras for part in ("--lora", lora)), *self._served.options, *options,
        )  # fmt: skip
        await eventually(lambda: port_file.exists() and admin_file.exists(), timeout=READY_TIMEOUT_S)
        self._port = int(port_file.read_text())
        self._admin = f"http://127.0.0.1:{int(admin_file.read_text())}"

    def start_agent(self, env: Mapping[str, str]) -> None:
        """Start the agent; wait with `agent.wait_ready`."""
        told: dict[str, str] = {}
        if self._cache is not None and self._cache.tells:
            live, replay = (self._folder / f"{self.name}.kv").read_text().split()
            size = str(self._cache.index_block_tokens)
            told = {
                "POINTSMAN_KV_EVENTS": live, "POINTSMAN_KV_REPLAY": replay, "POINTSMAN_KV_BLOCK_TOKENS": size,
            }  # fmt: skip
        self.agent = self._processes.fork(
            "pointsman-worker-agent",
            env={
                "POINTSMAN_WORKER": self.name,
                **env,
                "POINTSMAN_ENGINE_URL": self.url,
                "POINTSMAN_POOL": self._served.pool,
                **told,
            },
        )

    async def restart(self) -> None:
        """SIGKILL the engine if it still lives, and start it on the same port."""
        self.process.kill()
        await self.start()

    async def set_faults(self, *faults: str) -> None:
        """Make the engine misbehave, in the terms of `pointsman-simulator serve --fault`; without faults it
        recovers."""
        async with (
            aiohttp.ClientSession() as http,
            http.put(f"{self._admin}/faults", json={"faults": faults}) as answer,
        ):
            answer.raise_for_status()

    async def state(self) -> dict[str, JsonValue]:
        """The engine's own counters: running, aborted, …"""
        async with aiohttp.ClientSession() as http, http.get(f"{self._admin}/state") as answer:
            return json.loads(await answer.text())

    async def metric(self, name: str) -> float:
        """Sum over the samples of one metric family of the engine's `/metrics`."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/metrics") as answer:
            text = await answer.text()
        return sum(
            float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))
        )


Login = Callable[[str], Mapping[str, str]]
"""The login settings of a process, by its service or `worker-agent/<pool>/<worker>`."""


def nobody(user: str) -> Mapping[str, str]:
    """No login, for a server without accounts."""
    del user
    return {}


class Stack:
    """NATS, the services and the engines of one test or one module."""

    def __init__(
        self,
        nats: NatsServer,
        processes: Processes,
        folder: Path,
        config: Path,
        *,
        stored: bool = False,
        logins: Login = nobody,
        served: ServedPool | None = None,
        bundled: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.nats = nats
        self._settings = dict(settings or {})
        self.bundled = bundled
        """Whether services share processes."""
        self._served = served or ServedPool()
        self.logins = logins
        self.services: dict[str, list[ServiceProcess]] = {}
        self.engines: list[EngineProcess] = []
        self.door = ""
        self.config = config
        """The file with the configuration that it began with."""
        self._stored = stored
        self._processes = processes
        self._folder = folder
        self._door_port = free_port()
        self.batch_url = f"http://127.0.0.1:{free_port()}"
        """Where replicas of `batch` take requests, which share the port."""
        self._batches = False
        """Whether there are any."""

    @property
    def env(self) -> dict[str, str]:
        """The environment of every service of this stack."""
        config = "kv" if self._stored else str(self.config)
        return {"POINTSMAN_NATS_URL": self.nats.url, "POINTSMAN_CONFIG": config, **self._settings}

    @property
    def door_address(self) -> tuple[str, int]:
        """Host and port of the frontend."""
        return "127.0.0.1", self._door_port

    def all_services(self) -> list[ServiceProcess]:
        """Every living service and agent."""
        processes = [process for replicas in self.services.values() for process in replicas]
        return [*dict.fromkeys(processes), *(engine.agent for engine in self.engines)]

    async def begin(
        self, replicas: Mapping[str, int], engines: int, speedup: float, cache: KvTelling | None = None
    ) -> None:
        """Start everything and wait until the frontend lists the models."""
        if self._stored:
            code, output = await self.command("config", "apply", str(self.config))
            if code != 0:
                raise AssertionError(output)
        counts = {name: replicas.get(name, 0 if name in OPTIONAL else 1) for name in (*OPTIONAL, *SERVICES)}
        self._batches = counts.get("batch", 0) > 0
        if self.bundled:
            self._start_bundles(counts)
        else:
            for service, count in counts.items():
                self.services[service] = [self.start(service) for _ in range(count)]
        for number in range(1, engines + 1):
            self.engines.append(self._engine(f"engine-{number}", speedup, cache))
        await asyncio.gather(*(engine.start() for engine in self.engines))
        for engine in self.engines:
            engine.start_agent({**self.env, **self.logins(f"worker-agent/{self._served.pool}/{engine.name}")})
        await asyncio.gather(*(process.wait_ready() for process in self.all_services()))
        self.door = f"http://127.0.0.1:{self._door_port}"
        async with aiohttp.ClientSession() as http:

            async def serves_on_every_engine() -> bool:
                async with http.get(f"{self.door}/v1/models") as answer:
                    if answer.status == 401:
                        return True  # for any client
                    names = {model["id"] for model in (await answer.json())["data"]}
                return {*self._served.models, *self._served.loras} <= names

            await eventually(serves_on_every_engine)
        for engine in self.engines:
            await eventually(self.state_is(engine, "serving"))

    def _engine(self, name: str, speedup: float, cache: KvTelling | None) -> EngineProcess:
        return EngineProcess(name, self._processes, self._folder, speedup, cache, self._served)

    async def command(self, *arguments: str) -> tuple[int, str]:
        """Run `pointsman` with this stack's bus; returns its status and everything that it printed."""
        process = self._processes.fork(
            "pointsman",
            *arguments,
            env={"POINTSMAN_NATS_URL": self.nats.url, **self._settings, **self.logins("operator")},
        )
        return await process.ended(120), process.log_text()

    async def restart(self, service: str, index: int) -> ServiceProcess:
        """Put a new process in the place of one that was killed; returns when it is ready."""
        self.services[service][index] = process = self.start(service)
        await process.wait_ready()
        return process

    def state_is(self, engine: EngineProcess, *states: str) -> "Callable[[], asyncio.Future[bool]]":
        """A condition: the metrics-collector shows the engine, or each of its ranks, in one of these states."""

        async def shows() -> bool:
            url = self.services["metrics-collector"][0].http_url
            async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
                text = await answer.text()
            lines = [
                line
                for line in text.splitlines()
                if line.startswith("pointsman_worker_state{")
                and any(f'state="{state}"' in line for state in states)
                and float(line.rpartition(" ")[2]) == 1.0
            ]
            return all(any(f'worker="{worker}"' in line for line in lines) for worker in engine.workers)

        return lambda: asyncio.ensure_future(shows())

    def start(self, service: str) -> ServiceProcess:
        """Start one more process of a service; wait with `wait_ready`."""
        env = {**self.env, **self._own(service), **self.logins(service)}
        return self._processes.fork(f"pointsman-{service}", env=env)

    def start_agent_of(self, url: str, **settings: str) -> ServiceProcess:
        """Start an agent for an engine at this URL; wait with `wait_ready`."""
        env = {**self.env, "POINTSMAN_ENGINE_URL": url, "POINTSMAN_POOL": self._served.pool, **settings}
        return self._processes.fork("pointsman-worker-agent", env=env)

    def start_bundle(self, *services: str) -> ServiceProcess:
        """Start one more process of several services; wait with `wait_ready`."""
        env = {**self.env, **self.logins("bundle"), "POINTSMAN_PORT_SHARED": "true"}
        for service in services:
            env |= self._own(service)
        return self._processes.fork("pointsman-bundle", *services, env=env)

    def _start_bundles(self, counts: Mapping[str, int]) -> None:
        """The n-th replica of every service is in the n-th process."""
        self.services = {name: [] for name in counts}
        for number in range(max(counts.values())):
            members = [name for name, count in counts.items() if count > number]
            process = self.start_bundle(*members)
            for name in members:
                self.services[name].append(process)

    def _own(self, service: str) -> dict[str, str]:
        if service == "frontend":
            batch = {"POINTSMAN_BATCH_URL": self.batch_url} if self._batches else {}
            return {"POINTSMAN_PORT": str(self._door_port), **batch}
        if service == "batch":
            prefix = "POINTSMAN_BATCH" if self.bundled else "POINTSMAN"
            return {
                f"{prefix}_PORT": self.batch_url.rpartition(":")[2],
                "POINTSMAN_PORT_SHARED": "true",
                "POINTSMAN_GATEWAY_URL": f"http://127.0.0.1:{self._door_port}",
            }
        if service == "mirror":
            return {"POINTSMAN_GATEWAY_URL": f"http://127.0.0.1:{self._door_port}"}
        return {"POINTSMAN_STATE_DIR": str(self._folder / "recorder-state")} if service == "recorder" else {}


class StackFactory:
    """Starts stacks; each has its own NATS server and ends with its `async with`."""

    def __init__(self, folder: Path, sample: Path) -> None:
        self._folder = folder
        self._sample = sample
        self._count = 0

    @asynccontextmanager
    async def start(
        self,
        *,
        replicas: Mapping[str, int] | None = None,
        engines: int = 2,
        speedup: float = 50.0,
        static: str | None = "deny",
        hop_budget: str | None = "3s",
        changes: Mapping[str, JsonValue] | None = None,
        stored: bool = False,
        cache: KvTelling | None = None,
        nats: NatsServer | None = None,
        logins: Login = nobody,
        served: ServedPool | None = None,
        bundled: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Stack]:
        """A stack with the sample configuration, this `static` policy everywhere (None: as it says), a `hop_budget`
        and a `silent_wait` in which a busy machine lets every stage answer (`hop_budget` None: the product's own of
        both), and `changes` of top-level keys; the
        engines have what is `served`, by default what the sample of this repository names; `stored` applies it instead
        of giving services the file, `cache` lets the engines tell of theirs, `nats` is a server that isn't started
        yet; `bundled` runs the n-th replica of every service in one process; `settings` are environment
        variables of every process."""
        self._count += 1
        folder = self._folder / f"stack-{self._count}"
        folder.mkdir()
        document = yaml.safe_load(self._sample.read_text(encoding="utf-8"))
        if static is not None:
            for profile in document["profiles"].values():
                profile["static"] = static
        document.update(changes or {})
        if hop_budget is not None:
            document["edge"] = {"hop_budget": hop_budget, "silent_wait": "20s", **document.get("edge", {})}
        config = folder / "pointsman.yaml"
        config.write_text(yaml.safe_dump(document), encoding="utf-8")
        nats = nats or new_nats_server()
        processes = Processes(folder)
        await asyncio.to_thread(nats.start)
        try:
            stack = Stack(
                nats, processes, folder, config,
                stored=stored, logins=logins, served=served, bundled=bundled, settings=settings,
            )  # fmt: skip
            await stack.begin(replicas or {}, engines, speedup, cache)
            yield stack
        finally:
            processes.end_all()
            await asyncio.to_thread(nats.close)
