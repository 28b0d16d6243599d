"""A comparison as asked for: the workload, the fleet and the policies, read and checked before minutes are spent."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from pointsman_core.config import SchedulingPolicy, load
from pointsman_simulator.comparison import POLICIES, SESSION_POLICIES, Setting, make_policy
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Lags
from pointsman_simulator.trace import TraceRequest, read_mooncake, scale_arrivals
from pointsman_simulator.workloads import generate_workload


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The comparison to make. Either `trace` or `workload` is set."""

    trace: Path | None = None
    """A file in Mooncake's form."""
    workload: str | None = None
    """Name of a synthetic workload."""
    closed_loop: bool = False
    """Requests of the trace arrive when those that they wait for have ended; by the trace's times otherwise."""
    limit: int | None = None
    """Only the first requests of the trace."""
    scale: float = 1.0
    """The trace's arrivals, times as fast."""
    requests: int = 4000
    """Requests of the synthetic workload."""
    rate: float = 4.0
    """Requests a second of the synthetic workload."""
    workers: int = 4
    """Engines."""
    ranks: int = 1
    """Data-parallel ranks of an engine: each is an endpoint, with a cache and a batch of its own."""
    speeds: tuple[float, ...] = ()
    """The speeds of the engines, relative to `engine`; all 1 when empty."""
    schedulers: int = 1
    """That share the requests of the project's own policies."""
    policies: tuple[str, ...] = ()
    """All when empty."""
    config: Path | None = None
    """A configuration file whose scheduling policies are compared too."""
    seeds: int = 1
    engine: EngineConfig = field(default_factory=EngineConfig)
    lags: Lags = field(default_factory=Lags)
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    out: Path | None = None
    """Folder for the results."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A comparison that can be run."""

    trace: list[TraceRequest]
    setting: Setting
    policies: tuple[str, ...]

    @property
    def minutes(self) -> float:
        """Time until the last request arrives."""
        return max(request.arrival_ms for request in self.trace) / 60_000


def prepare(options: ReplayOptions) -> Replay:
    """The workload, its setting and the policies. Raises ValueError or OSError with the problem of the options."""
    if (options.trace is None) == (options.workload is None):
        raise ValueError("name one workload: --trace FILE, --workload NAME or --from LOG")
    trace = _trace(options)
    if not trace:
        raise ValueError("the workload has no request to replay")
    if options.ranks < 1:
        raise ValueError("an engine has one rank at least")
    if options.speeds and len(options.speeds) != options.workers:
        raise ValueError(f"{len(options.speeds)} speeds for {options.workers} engines: name one for each")
    engine = options.engine
    longest = max(request.prompt_tokens + request.output_tokens for request in trace)
    if longest > engine.num_blocks * engine.block_size:
        raise ValueError(
            f"a request of {longest} tokens never fits in {engine.num_blocks} blocks of {engine.block_size}"
        )
    configured = configured_policies(options.config)
    setting = Setting(
        workers=options.workers * options.ranks,
        engine=engine,
        lags=options.lags,
        speeds=tuple([speed for speed in options.speeds for _ in range(options.ranks)]),
        ranks=options.ranks,
        schedulers=options.schedulers,
        scheduling=configured,
        loras=tuple(sorted({request.lora for request in trace if request.lora is not None})),
    )
    with_sessions = SESSION_POLICIES if any(request.session is not None for request in trace) else ()
    policies = tuple(dict.fromkeys(options.policies or (*POLICIES, *with_sessions, *configured)))
    for name in policies:
        make_policy(name, setting, seed=0)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)  # before the minutes whose results it takes
    return Replay(trace, setting, policies)


def configured_policies(path: Path | None) -> Mapping[str, SchedulingPolicy]:
    """Policies of a configuration file, under `<file>:<name>` so that they can't hide those that are built in."""
    if path is None:
        return {}
    try:
        document: object = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {error}") from error
    return {f"{path.stem}:{name}": policy for name, policy in load(document).scheduling.items()}


def _trace(options: ReplayOptions) -> list[TraceRequest]:
    if options.trace is not None:
        return scale_arrivals(
            read_mooncake(
                options.trace, options.engine.block_size, limit=options.limit, closed_loop=options.closed_loop
            ),
            options.scale,
        )
    return generate_workload(
        options.workload or "", options.requests, options.rate, block_size=options.engine.block_size
    )
