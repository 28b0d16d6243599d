"""An endless batch behind a workload, in virtual time: the idle capacity that a rule finds, and what it costs the
others."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from pointsman_core.config import SchedulingPolicy
from pointsman_scheduler.domain.background import OpenRequestsOfEngine, is_within_bound, read_engine
from pointsman_simulator.comparison import Setting
from pointsman_simulator.fleet import Outcomes, SimulatedFleet
from pointsman_simulator.policy import (
    Arrival,
    BackgroundLoad,
    KvChanged,
    Load,
    Observation,
    Reported,
    Started,
)
from pointsman_simulator.scheduler_policy import SchedulerPolicy
from pointsman_simulator.sequence import Sequence as EngineSequence
from pointsman_simulator.trace import TraceRequest

LOOK_MS: Final = 20.0
"""How often a rule looks for capacity without news."""
PASS_TOKENS: Final = 8192.0
"""Prompt tokens of a pass, for the room that is measured."""
WAITING: Final = 32
"""Requests of the batch that wait at the scheduler."""
_QUEUE: Final = 5
_KV_USAGE: Final = 0.8
"""A pool of the Gateway API Inference Extension is saturated when every endpoint has more requests waiting, or more of
its cache in use: its utilization detector's defaults."""
_SLOTS: Final = 64
"""Requests that a plain rule lets an engine have."""

Filling = Literal["none", "pointsman", "gie-priorities", "two-queues"]
FILLINGS: Final[tuple[Filling, ...]] = ("none", "pointsman", "gie-priorities", "two-queues")

MayFill = Callable[[Load, int, int], bool]
"""Whether one more request of the batch goes to the engine of this row, which has so many requests."""


def may_fill_by_priority(load: Load, row: int, there: int) -> bool:
    """Requests of low priority wait while the pool is saturated, by the waiting requests and the caches of its
    endpoints."""
    full = [waiting > _QUEUE or kv > _KV_USAGE for waiting, kv in zip(load.waiting, load.kv_usage, strict=True)]
    return not all(full) and not full[row] and there < _SLOTS


def may_fill_slots(load: Load, row: int, there: int) -> bool:
    """Each engine's free places are filled from a second queue."""
    del load, row
    return there < _SLOTS


_PLAIN: Final[dict[Filling, MayFill]] = {"gie-priorities": may_fill_by_priority, "two-queues": may_fill_slots}


class BackgroundPolicy:
    """The default policy with an endless batch behind it."""

    def __init__(self, inner: SchedulerPolicy, fleet: SimulatedFleet, setting: Setting, load: BackgroundLoad) -> None:
        self._inner: Final = inner
        self._fleet: Final = fleet
        self._load: Final = load
        self._block: Final = setting.engine.block_size
        self._filling: Filling = "none"
        self._next = self._first = 0
        """Requests of the batch have numbers from `_first` on."""
        self._running: Final[dict[int, EngineSequence]] = {}
        self._waiting = 0
        self._attempts: Final[dict[int, int]] = {}
        """How often each request was stopped."""
        self._again: Final[deque[int]] = deque()
        self.ended: Final[list[float]] = []
        """When each answer of the batch ended."""
        self.stops = 0
        self.used_ms = self.room_ms = 0.0
        """Requests of the batch that ran, and those that the bound allowed, times milliseconds."""
        self._seen_at = 0.0

    def begin(self, requests: int, filling: Filling) -> None:
        """The trace has so many requests."""
        self._next = self._first = requests
        self._filling = filling

    def observe(self, observation: Observation, now: float) -> None:
        """See `RoutingPolicy.observe`."""
        if not isinstance(observation, KvChanged | Reported) and observation.request >= self._first:
            if isinstance(observation, Started):
                return  # an answer that isn't streamed: nothing reports its first token
            if self._running.pop(observation.request, None) is None:
                return
            self.ended.append(observation.at)
        self._inner.observe(observation, now)

    def choose(self, arrival: Arrival) -> int | None:
        """See `RoutingPolicy.choose`."""
        return self._inner.choose(arrival)

    def bind(self, now: float, load: Load) -> list[tuple[int, int]]:
        """See `LatePolicy.bind`."""
        if self._filling == "none":
            return self._inner.bind(now, load)
        self._count_use(now)
        if self._filling == "pointsman":
            while self._waiting < WAITING:
                request, self._waiting = self._take_next(), self._waiting + 1
                self._inner.offer_background(request, self._load, self._attempts.get(request, 0) + 1)
        leaving: list[tuple[int, int]] = []
        for request, row in self._inner.bind(now, load):
            if request < self._first:
                leaving.append((request, row))
            else:
                self._waiting -= 1
                self._submit(request, row, now)
        for request, row in self._inner.find_stopped():
            if self._fleet.drop_sequence(row, self._running.pop(request)):
                self.stops += 1
                self._attempts[request] = self._attempts.get(request, 0) + 1
                self._again.append(request)
        fills = _PLAIN.get(self._filling)
        if fills is not None:
            for row, worker in enumerate(self._inner.schedulers[0].pool.fleet.workers):
                while fills(load, row, worker.open):
                    request = self._take_next()
                    self._inner.offer_background(request, self._load, 1, row)
                    self._submit(request, row, now)
        return leaving

    def look_at(self) -> float:
        """See `LatePolicy.look_at`."""
        at = self._inner.look_at()
        return at if self._filling == "none" else min(at, self._seen_at + LOOK_MS)

    def _take_next(self) -> int:
        if self._again:
            return self._again.popleft()
        self._next += 1
        return self._next - 1

    def _submit(self, request: int, row: int, now: float) -> None:
        load, blocks = self._load, self._load.prompt_tokens // self._block
        first = (1 << 62) + request * (blocks + 1)
        names = list(range(first, first + blocks))
        sequence = EngineSequence(request, load.prompt_tokens, load.output_tokens, names)
        self._running[request] = sequence
        self._fleet.add_sequence(row, sequence, now)

    def _count_use(self, now: float) -> None:
        took, self._seen_at = now - self._seen_at, now
        for worker in self._inner.schedulers[0].pool.fleet.workers:
            work, allowed = self._look_at_engine(worker.row, now)
            self.room_ms += allowed * took
            self.used_ms += min(allowed, work.background) * took

    def _look_at_engine(self, row: int, now: float) -> tuple[OpenRequestsOfEngine, int]:
        """The engine's work, and how many requests of the batch the bound allows it."""
        scheduler = self._inner.schedulers[0]
        settings, forecast = scheduler.policy.flow_control.settings, scheduler.policy.forecast
        rates = forecast.best.model.rates if forecast is not None and forecast.best.model.was_trusted else None
        work = read_engine(scheduler.pool.fleet.workers[row], rates, PASS_TOKENS, now / 1000.0)
        tokens = self._load.prompt_tokens + self._load.output_tokens / 2
        allowed, more = 0, work._replace(background=0, background_tokens=0.0).with_background(tokens)
        while is_within_bound(settings.background, rates, PASS_TOKENS, more):
            allowed, more = allowed + 1, more.with_background(tokens)
        return work, allowed


class Filled(NamedTuple):
    """Times of the workload in milliseconds, and the batch work done beside it."""

    filling: Filling
    ttft_mean: float
    ttft_p99: float
    itl_mean: float
    itl_p99: float
    """A quantile of the requests' mean times between tokens."""
    background_per_s: float
    """Answers of the batch, until the last arrival."""
    used: float
    """The used part of the room that the bound allowed: requests of the batch that ran, over those that it allowed, in
    [0,1]."""
    stops: int


def run_filled(
    trace: Sequence[TraceRequest],
    setting: Setting,
    filling: Filling,
    load: BackgroundLoad | None = None,
    settings: SchedulingPolicy | None = None,
    seed: int = 0,
) -> Filled:
    """Replay a trace with an endless batch behind it."""
    fleet = SimulatedFleet(setting.list_engines, setting.lags, setting.disturbances)
    inner = SchedulerPolicy(
        workers=setting.workers, settings=settings or SchedulingPolicy(), engine=setting.engine, seed=seed
    )
    policy = BackgroundPolicy(inner, fleet, setting, load or BackgroundLoad())
    policy.begin(len(trace), filling)
    return _measured(fleet.replay_trace(trace, policy, always=filling != "none"), policy, filling)


def _measured(outcomes: Outcomes, policy: BackgroundPolicy, filling: Filling) -> Filled:
    first = np.array([each.first_token_at for each in outcomes.requests])
    finished = np.array([each.finished_at for each in outcomes.requests])
    gaps = np.array([max(1, each.output_tokens - 1) for each in outcomes.requests])
    ttft, itl = first - np.array(outcomes.arrived), (finished - first) / gaps
    until = max(outcomes.arrived)
    return Filled(
        filling=filling,
        ttft_mean=float(ttft.mean()),
        ttft_p99=float(np.quantile(ttft, 0.99)),
        itl_mean=float(itl.mean()),
        itl_p99=float(np.quantile(itl, 0.99)),
        background_per_s=sum(at <= until for at in policy.ended) / max(1.0, until) * 1000.0,
        used=policy.used_ms / policy.room_ms if policy.room_ms else 0.0,
        stops=policy.stops,
    )
