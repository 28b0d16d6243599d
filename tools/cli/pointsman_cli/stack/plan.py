"""Which processes a stack is made of: names, commands and environments. Pure."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from pointsman_cli.services import ADAPTER, SERVICES
from pointsman_cli.stack.ports import free_port
from pointsman_cli.words import CommandError
from pointsman_contracts.parties import AGENT
from pointsman_contracts.services import SERVICES as EVERY
from pointsman_core.config import Config, EngineTls, active
from pointsman_core.plugins import unknown

RECORDER: Final = "recorder"
CACHE: Final = "semantic-cache"
SCHEDULER: Final = "scheduler"
CONSOLE: Final = "console"
FRONTEND: Final = "frontend"
BATCH: Final = "batch"
MIRROR: Final = "mirror"
OPTIONAL: Final = tuple(service.name for service in EVERY if service.optional)
"""The services that a stack runs only if its configuration names them in an itinerary."""
SINGLE: Final = tuple(service.name for service in EVERY if service.single)
"""The services that only one bundle of a gateway runs."""
PORT: Final = "{port}"
"""Stands for the process's port in a command or environment: 0 at first, afterwards the one it got, so that a process
that is started again is found where it was."""


class Kind(Enum):
    """The kind of a process; decides where it reports its port and when it is ended."""

    NATS = "nats"
    ENGINE = "engine"
    AGENT = "agent"
    SERVICE = "service"
    EDGE = "edge"
    PROXY = "proxy"
    VIEWER = "viewer"


@dataclass(frozen=True)
class Plan:
    """One process to start."""

    name: str
    kind: Kind
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    port: int = 0
    port_file: Path | None = None
    """File in which the process writes its port; None when its log has it."""
    door: str = ""
    """URL at which it takes requests, when known before it starts."""
    services: tuple[str, ...] = ()
    """The services that it runs."""
    batch: bool = False
    """Whether it runs under SCHED_BATCH: then it doesn't interrupt a running process when it wakes."""

    def fill_port(self, port: int) -> tuple[tuple[str, ...], dict[str, str]]:
        """Command and environment with this port."""
        text = str(port)
        return (
            tuple(part.replace(PORT, text) for part in self.command),
            {name: value.replace(PORT, text) for name, value in self.env.items()},
        )


@dataclass(frozen=True)
class EngineUse:
    """An engine that gets an agent."""

    url: str
    pool: str
    name: str
    tls: EngineTls | None = None


def executable(command: str) -> str:
    """A console script of this environment."""
    path = Path(sys.executable).with_name(command)
    if not path.exists():
        raise CommandError(f"{command} isn't installed beside {sys.executable}.", "Install pointsman-cli again.")
    return str(path)


def needed(config: Config) -> tuple[str, ...]:
    """The services that a stack with this configuration has."""
    ways = (way for profile in config.profiles.values() for way in (profile.request, profile.response))
    named = {use.service for way in (*ways, config.postprocessing) for use in active(way)}
    return tuple(service for service in SERVICES if service not in OPTIONAL or service in named)


def replicas(wanted: Sequence[str]) -> dict[str, int]:
    """Parse `scheduler=2` texts. CommandError names the services that exist."""
    counts: dict[str, int] = {}
    for text in wanted:
        service, _, number = text.partition("=")
        # Requests need one of each other service.
        least = 0 if service == RECORDER else 1
        if service not in SERVICES:
            raise CommandError(
                f"--replicas {text}: {unknown('service', service, SERVICES)}.", "Write e.g. --replicas scheduler=2."
            )
        if not number.isdigit() or int(number) < least:
            raise CommandError(
                f"--replicas {text}: the number of replicas must be {least} or more.",
                f"Write e.g. --replicas {service}=2.",
            )
        counts[service] = int(number)
    return counts


@dataclass(frozen=True)
class Ground:
    """The surroundings that the processes of a stack share."""

    env: Mapping[str, str]
    """The environment of every process."""
    port: int
    """Port of the first frontend; 0: a free port."""
    state: Path
    """Folder of what outlives the processes."""
    keyed: bool = False
    """Whether clients' keys are forwarded to the engines."""
    envoy: bool = False
    """Whether Envoy takes the requests."""
    door_port: int = 0
    """Port at which the gateway takes requests, the first frontend's or Envoy's; 0 while it isn't known."""
    batch_port: int = 0
    """Port of the replicas of `batch`, which share it; 0: there are none."""
    separate: bool = False
    """Whether each service is a process of its own."""


def console(env: Mapping[str, str], port: int, token: str) -> Plan:
    """The console, in a process of its own: services of a bundle hand messages to each other without the bus, and what
    a browser asks for mustn't take time from requests."""
    return Plan(
        CONSOLE,
        Kind.VIEWER,
        (executable(f"pointsman-{CONSOLE}"),),
        {**env, "POINTSMAN_PORT": str(port), "POINTSMAN_ONE_TIME_TOKEN": token},
        door=f"http://127.0.0.1:{port}",
        services=(CONSOLE,),
    )


def adapter(ground: Ground) -> Plan:
    """The endpoint picker that Envoy asks."""
    return Plan(
        ADAPTER,
        Kind.EDGE,
        (executable(f"pointsman-{ADAPTER}"),),
        {**ground.env, "POINTSMAN_PORT": PORT, **_adapter_env(ground)},
        services=(ADAPTER,),
    )


def _adapter_env(ground: Ground) -> dict[str, str]:
    return {
        "POINTSMAN_FORWARD_CREDENTIALS": str(ground.keyed).lower(),
        "POINTSMAN_PROVIDERS": "true",  # as `envoy.document` has routes to them
    }


def services(counts: Mapping[str, int], ground: Ground) -> list[Plan]:
    """A process for every replica of every service. The first frontend takes requests on the ground's port, further
    ones on free ones."""
    return [
        Plan(
            name := service if count == 1 else f"{service}-{number}",
            Kind.EDGE if service == FRONTEND else Kind.SERVICE,
            (executable(f"pointsman-{service}"),),
            {**ground.env, **_own(service, name, ground)},
            port=ground.port if service == FRONTEND and number == 1 else 0,
            services=(service,),
        )
        for service, count in counts.items()
        for number in range(1, count + 1)
    ]


def bundles(counts: Mapping[str, int], ground: Ground, uses: Sequence[EngineUse], key: str | None) -> list[Plan]:
    """A process for each frontend, with every other service beside it; the first has the agents of the engines and the
    services that need one replica. Further replicas are processes of their own. Several bundles share the ground's
    port, which must then be known. Behind Envoy each has an endpoint picker in place of the frontend."""
    count = counts[FRONTEND]
    counts = {name: wanted if name in SINGLE else max(wanted, count) for name, wanted in counts.items()}
    left = Counter(counts)
    plans: list[Plan] = []
    for number in range(1, count + 1):
        names = tuple(name for name in SERVICES if left[name] and (number == 1 or name not in SINGLE))
        left -= Counter(names)
        agents_here = uses if number == 1 else ()
        name = "gateway" if count == 1 else f"gateway-{number}"
        env = {**ground.env, "POINTSMAN_PORT_SHARED": str(count > 1).lower()}
        for service in names:
            env |= _own(service, service if number == 1 else f"{service}-{number}", ground)
        if agents_here:
            env["POINTSMAN_AGENTS"] = json.dumps([_agent(use, key) for use in agents_here])
        if ground.envoy:
            names = tuple(ADAPTER if name == FRONTEND else name for name in names)
            env |= _adapter_env(ground)
        members = (*names, *((AGENT,) if agents_here else ()))
        command = (executable("pointsman-bundle"), *members)
        plans.append(Plan(name, Kind.EDGE, command, env, port=ground.port, services=members))
    alone = replace(ground, separate=True)
    return plans + [
        Plan(
            f"{service}-{number}",
            Kind.SERVICE,
            (executable(f"pointsman-{service}"),),
            {**ground.env, **_own(service, f"{service}-{number}", alone)},
            services=(service,),
        )
        for service, more in left.items()
        for number in range(counts[service] - more + 1, counts[service] + 1)
    ]


def _own(service: str, name: str, ground: Ground) -> dict[str, str]:
    """Further environment variables of one replica of a service."""
    if service == RECORDER:
        # Each keeps everything for itself.
        return {"POINTSMAN_RECORDER_NAME": name, "POINTSMAN_STATE_DIR": str(ground.state / name)}
    if service == CACHE:
        # Each keeps its answers for itself.
        return {"POINTSMAN_SNAPSHOT_DIR": str(ground.state / name)}
    if service == SCHEDULER:
        return {"POINTSMAN_FLIGHT_DIR": str(ground.state / "flight")}
    if service == FRONTEND:
        batch = {"POINTSMAN_BATCH_URL": f"http://127.0.0.1:{ground.batch_port}"} if ground.batch_port else {}
        return {
            "POINTSMAN_PORT": PORT,
            "POINTSMAN_TELL_ENDPOINT": "true",
            "POINTSMAN_FORWARD_CREDENTIALS": str(ground.keyed).lower(),
            **batch,
        }
    if service == BATCH:
        return {
            f"POINTSMAN_{'' if ground.separate else 'BATCH_'}PORT": str(ground.batch_port),
            "POINTSMAN_BATCH_PORT_SHARED" if not ground.separate else "POINTSMAN_PORT_SHARED": "true",
            "POINTSMAN_GATEWAY_URL": f"http://127.0.0.1:{ground.port}",
        }
    if service == MIRROR and ground.door_port:
        return {"POINTSMAN_GATEWAY_URL": f"http://127.0.0.1:{ground.door_port}"}
    return {}


def simulated(
    config: Config, count: int, speedup: float, ports: Path, *, ports_known: bool = False
) -> list[tuple[Plan, str]]:
    """`count` simulated engines, dealt to the pools that take agents, each with its pool; none where all pools find
    their engines by themselves."""
    pools = [(name, pool) for name, pool in config.pools.items() if pool.discovery == "agents" and pool.models]
    if not pools:
        if config.providers or any(pool.discovery != "agents" for pool in config.pools.values()):
            return []
        raise CommandError(
            "the configuration has no pool that a simulated engine could join.",
            "Give a pool some `models` and `discovery: agents`, or name running engines with --engine.",
        )
    plans: list[tuple[Plan, str]] = []
    for number in range(count):
        name, pool = pools[number % len(pools)]
        engine = f"engine-{number + 1}"
        served = [model for model in pool.models if model not in pool.loras]
        plans.append(
            (
                Plan(
                    engine,
                    Kind.ENGINE,
                    (
                        executable("pointsman-simulator"), "serve",
                        "--port", PORT,
                        "--port-file", str(ports / engine),
                        "--name", engine,
                        "--speedup", f"{speedup:g}",
                        "--block-size", str(pool.block_tokens),
                        *(part for model in served for part in ("--model", model)),
                        *(part for lora in pool.loras for part in ("--lora", lora)),
                    ),
                    port_file=ports / engine,
                    port=free_port() if ports_known else 0,
                ),
                name,
            )
        )  # fmt: skip
    return plans


def with_metrics(plans: Sequence[Plan], first: int, free: Callable[[int], bool]) -> list[Plan]:
    """The processes with a port for metrics and health each, counted up from `first`; one that isn't `free` is left out
    for a port that the process finds."""
    wanted = range(first, first + len(plans))
    return [
        replace(each, env={**each.env, "POINTSMAN_HTTP_PORT": str(port if free(port) else 0)})
        for each, port in zip(plans, wanted, strict=True)
    ]


def agents(uses: Sequence[EngineUse], env: Mapping[str, str], engine_key: str | None) -> list[Plan]:
    """A process with an agent for each engine."""
    return [
        Plan(
            f"agent-{number}",
            Kind.AGENT,
            (executable(f"pointsman-{AGENT}"),),
            {**env, **_as_environment(_agent(use, engine_key))},
            services=(AGENT,),
        )
        for number, use in enumerate(uses, start=1)
    ]


def _agent(use: EngineUse, engine_key: str | None) -> dict[str, JsonValue]:
    """An agent's settings."""
    settings: dict[str, JsonValue] = {"engine_url": use.url, "pool": use.pool, "worker": use.name}
    if engine_key:
        settings["engine_api_key"] = engine_key
    if use.tls is not None and use.url.startswith("https://"):
        settings["engine_tls"] = use.tls.model_dump(exclude_defaults=True)
    return settings


def _as_environment(settings: Mapping[str, JsonValue]) -> dict[str, str]:
    return {
        f"POINTSMAN_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in settings.items()
    }
