"""Several policies on one workload: what each gets out of the same fleet."""

import multiprocessing
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final

from pointsman_core.config import SchedulingPolicy
from pointsman_core.plugins import unknown
from pointsman_simulator.baselines import DynamoCostBaseline, GieDefault, LeastRequests, RoundRobinBaseline
from pointsman_simulator.disturbance import Disturbance
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Lags, SimulatedFleet
from pointsman_simulator.judged import JudgedPolicy
from pointsman_simulator.policy import RoutingPolicy
from pointsman_simulator.scheduler_policy import SchedulerPolicy
from pointsman_simulator.session_baselines import GiePreciseBaseline, SessionAffinityBaseline, SessionHashBaseline
from pointsman_simulator.summary import Summary, summarize
from pointsman_simulator.trace import TraceRequest, reusable


@dataclass(frozen=True, slots=True)
class Setting:
    """The fleet and its settings for a workload."""

    workers: int
    """Engines, or all their data-parallel ranks."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    lags: Lags = field(default_factory=Lags)
    scheduling: Mapping[str, SchedulingPolicy] = field(default_factory=dict[str, SchedulingPolicy])
    """Policies of a configuration file, by name; each is one more that can be chosen."""
    loras: tuple[str, ...] = ()
    """Adapters that every engine serves."""
    kv_blocks: tuple[int, ...] = ()
    """Size of each engine's KV cache; empty where it is that of `engine`."""
    kv_events: bool = True
    """Whether engines publish what is in their caches."""
    speeds: tuple[float, ...] = ()
    """The speeds of the engines, relative to `engine`; all 1 when empty."""
    ranks: int = 1
    """Data-parallel ranks of an engine."""
    schedulers: int = 1
    """That share the requests of our policies."""
    disturbances: tuple[Disturbance, ...] = ()
    ties: tuple[int, ...] = ()
    """Seed of each request's decision, in order of arrival: a policy of ours settles its ties by them in every run.
    Empty where runs have seeds of their own."""

    @property
    def list_engines(self) -> list[EngineConfig]:
        """The engines, each with its speed."""
        timing = self.engine.timing
        return [
            replace(self.engine, timing=replace(timing, speedup=timing.speedup * speed))
            for speed in self.speeds or (1.0,) * self.workers
        ]


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy's results, one for each seed."""

    policy: str
    runs: tuple[Summary, ...]

    @property
    def has_sessions(self) -> bool:
        """Whether the requests have sessions."""
        return any(run.session_p95 for run in self.runs)

    def mean_of(self, figure: str) -> float:
        return sum(getattr(run, figure) for run in self.runs) / len(self.runs)

    def spread_of(self, figure: str) -> tuple[float, float]:
        """Least and greatest."""
        values = [getattr(run, figure) for run in self.runs]
        return min(values), max(values)

    def by_length(self) -> tuple[list[float], list[float]]:
        """Prompt tokens, and the mean time to the first token of prompts of about this length, in ms."""
        lengths: dict[float, list[float]] = {}
        for run in self.runs:
            for each in run.by_length:
                lengths.setdefault(each.tokens, []).append(each.ttft_ms)
        return sorted(lengths), [fmean(lengths[tokens]) for tokens in sorted(lengths)]


DEFAULT_POLICY: Final = "pointsman"
ONE_TIER: Final = "pointsman-device"
"""The default policy without what it knows of host memory."""
_MAKERS: Final[dict[str, Callable[[Setting, int], RoutingPolicy]]] = {
    "round-robin": lambda setting, _: RoundRobinBaseline(setting.workers),
    "least-requests": lambda setting, seed: LeastRequests(setting.workers, seed),
    "power-of-two": lambda setting, seed: LeastRequests(setting.workers, seed, choices=2),
    "gie": lambda setting, seed: GieDefault(setting.workers, seed),
    "dynamo": lambda setting, seed: DynamoCostBaseline(setting.workers, setting.engine.block_size, seed),
    "dynamo-scale-2": lambda setting, seed: DynamoCostBaseline(
        setting.workers, setting.engine.block_size, seed, prefill_load_scale=2.0
    ),
    DEFAULT_POLICY: lambda setting, seed: _scheduler(SchedulingPolicy(), setting, seed),
    ONE_TIER: lambda setting, seed: _scheduler(SchedulingPolicy(), setting, seed, tiers=False),
    "session-hash": lambda setting, seed: SessionHashBaseline(setting.workers, seed),
    "llm-d-precise": lambda setting, seed: GiePreciseBaseline(setting.workers, seed),
    "llm-d-session": lambda setting, seed: SessionAffinityBaseline(lambda: GiePreciseBaseline(setting.workers, seed)),
}
SESSION_POLICIES: Final = ("session-hash", "llm-d-precise", "llm-d-session")
"""Compared by default where requests have sessions."""
POLICIES: Final = tuple(name for name in _MAKERS if name not in (*SESSION_POLICIES, ONE_TIER))


def make_policy(name: str, setting: Setting, seed: int) -> RoutingPolicy:
    """ValueError that names the known policies. `seed` settles ties."""
    if name in setting.scheduling:
        return _scheduler(setting.scheduling[name], setting, seed)
    maker = _MAKERS.get(name)
    if maker is None:
        raise ValueError(unknown("policy", name, (*_MAKERS, *setting.scheduling)))
    return maker(setting, seed)


_LOOK_S: Final = 0.25
"""How often the progress is read."""


def compare(
    trace: Sequence[TraceRequest],
    policies: Sequence[str],
    setting: Setting,
    seeds: int,
    processes: int,
    done: Callable[[Compared], None],
    progressed: Callable[[float], None] = lambda _: None,
) -> list[Compared]:
    """Run every policy with every seed, `processes` at a time. Call `done` with each policy when it is done, and
    `progressed` four times a second with the share of all requests that were decided, in [0,1]."""
    results: list[Compared] = []
    decided = multiprocessing.Array("q", len(policies) * seeds, lock=False)
    total = len(trace) * len(policies) * seeds
    sessions = any(request.session for request in trace)
    possible = reusable(trace, setting.engine.block_size) if sessions else 0.0
    work = (trace, setting, decided, possible)
    with ProcessPoolExecutor(processes, initializer=_take_work, initargs=work) as pool:
        started = {
            name: [pool.submit(_run, name, seed, number * seeds + seed) for seed in range(seeds)]
            for number, name in enumerate(policies)
        }
        for name, runs in started.items():
            open_runs: set[Future[Summary]] = set(runs)
            while open_runs:
                open_runs = wait(open_runs, timeout=_LOOK_S).not_done
                progressed(sum(decided) / total)
            results.append(Compared(name, tuple(run.result() for run in runs)))
            done(results[-1])
    return results


_work: tuple[Sequence[TraceRequest], Setting, MutableSequence[int], float] | None = None
"""Set once in each worker process: the trace is big, the tasks are many. The third part counts what each run decided,
the last is the share of the trace's prompt tokens that can be reused."""


def _take_work(trace: Sequence[TraceRequest], setting: Setting, decided: MutableSequence[int], possible: float) -> None:
    global _work  # noqa: PLW0603 - a pool's initializer has nowhere else to put it
    _work = (trace, setting, decided, possible)


def _run(name: str, seed: int, place: int) -> Summary:
    if _work is None:
        raise RuntimeError("the process was not initialised")
    trace, setting, decided, possible = _work
    fleet = SimulatedFleet(setting.list_engines, setting.lags, setting.disturbances)

    def count(requests: int) -> None:
        decided[place] = requests

    policy = JudgedPolicy(make_policy(name, setting, seed), setting.workers, setting.engine.block_size)
    outcomes = fleet.replay_trace(trace, policy, count)
    return summarize(outcomes, setting.workers, policy.sum_regret(), setting.engine, trace=trace, possible=possible)


def _scheduler(settings: SchedulingPolicy, setting: Setting, seed: int, *, tiers: bool = True) -> RoutingPolicy:
    return SchedulerPolicy(
        workers=setting.workers,
        settings=settings,
        engine=setting.engine,
        seed=seed,
        loras=setting.loras,
        kv_blocks=setting.kv_blocks or None,
        kv_events=setting.kv_events,
        schedulers=setting.schedulers,
        peer_lag_ms=setting.lags.peer,
        ties=setting.ties,
        tiers=tiers,
        ranks=setting.ranks,
    )
