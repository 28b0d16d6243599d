"""The scheduler itself as a routing policy: the object that decides in the service decides here, in virtual time."""

import math
from collections.abc import Iterable

import numpy as np

from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_core.config import SchedulingPolicy
from pointsman_plugins.scheduling.arrays import Blocks
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.outcome import Postponed, Refused, Scheduled
from pointsman_scheduler.domain.policy import compile_policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.plugins import registries
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.policy import Arrival, KvChanged, Load, Observation, Started

_POOL = "simulated"
_SWEEP_MS = 1000.0
_NAMES = 1 << 64


class SchedulerPolicy:
    """One scheduler of one pool of equal engines that publish KV events. `settings` is a section `scheduling.x` of the
    configuration; equal seeds give equal decisions. `loras` are the adapters that every engine can serve."""

    def __init__(
        self,
        workers: int,
        settings: SchedulingPolicy,
        engine: EngineConfig | None = None,
        seed: int = 0,
        loras: Iterable[str] = (),
    ) -> None:
        engine = engine or EngineConfig()
        self._block_tokens = engine.block_size
        self._policy = compile_policy(_POOL, settings, registries())
        self._pool = PoolScheduler(_POOL, "simulator", PrefixIndex(max_bytes=2**31))
        self._pool.use([self._policy])
        self._pool.measure(engine.block_size)
        self._names = [f"worker-{index}" for index in range(workers)]
        self._row = {name: index for index, name in enumerate(self._names)}
        self._seed = seed
        self._max_loras = engine.max_loras
        self._load: Load | None = None
        self._reports = 0
        self._sent: dict[int, float] = {}
        self._swept = self._now = 0.0
        for name in self._names:
            self._pool.register(
                WorkerRegistration(
                    worker=name,
                    pool=_POOL,
                    url=f"http://{name}",
                    models=("model",),
                    loras=tuple(loras),
                    block_tokens=engine.block_size,
                    kv_blocks=engine.num_blocks,
                    boot_id="1",
                    agent="simulator",
                    version="0",
                    registered_ms=0,
                ),
                0.0,
            )
        fleet = [worker for name in self._names if (worker := self._pool.fleet.find(name)) is not None]
        self._lives = [worker.life for worker in fleet]
        for worker in fleet:
            self._pool.index.describe(worker.life, None)
            worker.kv_told = worker.registration.boot_id

    def observe(self, observation: Observation) -> None:
        """Pass the scheduler an observation, as the bus would."""
        now = observation.at / 1000.0
        match observation:
            case Started():
                ttft_ms = observation.at - self._sent[observation.request]
                self._pool.books.started(("", str(observation.request)), self._names[observation.worker], ttft_ms, now)
            case KvChanged():
                life = self._lives[observation.worker]
                if observation.removed:
                    self._pool.index.removed(life, _hashes(observation.removed), now)
                if observation.stored:
                    self._pool.index.stored(life, _hashes(observation.stored), now)
            case _:
                took = observation.at - self._sent.pop(observation.request)
                self._pool.books.completed(
                    ("", str(observation.request)),
                    now,
                    ok=True,
                    output_tokens=observation.output_tokens,
                    duration_ms=took,
                )

    def choose(self, arrival: Arrival) -> int | None:
        """Decide as the service would. Raises Refusal when no engine may serve the request."""
        now = arrival.at / 1000.0
        if arrival.load is not self._load:
            self._hear(arrival.load, now)
        if arrival.at - self._swept >= _SWEEP_MS:
            self._swept = arrival.at
            self._pool.sweep(now)
        request = ScheduleRequest(
            request_id=str(arrival.request),
            model="model",
            lora=arrival.lora,
            prompt_tokens=arrival.prompt_tokens,
            tokens_exact=True,
            blocks=_hashes(arrival.blocks),
            block_tokens=self._block_tokens,
            blocks_precise=True,
        )
        outcome = self._decide(request, arrival.at)
        return None if isinstance(outcome, Postponed) else self._sent_to(outcome, arrival.request, arrival.at)

    def bind(self, now: float, load: Load) -> list[tuple[int, int]]:
        """The requests whose wait is over."""
        self._now = now
        if load is not self._load:
            self._hear(load, now / 1000.0)
        leaving: list[tuple[int, int]] = []
        for bound in self._pool.bind(now / 1000.0):
            outcome = self._decide(bound.request, now)
            if isinstance(outcome, Postponed):
                raise AssertionError(f"request {bound.request.request_id} waits twice")  # noqa: TRY004 - it can't be
            request = int(bound.request.request_id)
            leaving.append((request, self._sent_to(outcome, request, now)))
        return leaving

    def look_at(self) -> float:
        """When something that waits may have to go."""
        at = self._pool.look_at(self._now / 1000.0)
        return math.inf if at is None else at * 1000.0

    def _decide(self, request: ScheduleRequest, now: float) -> Scheduled | Postponed:
        self._now = now
        seed = self._seed * 1_000_003 + int(request.request_id)
        outcome = self._pool.decide(request, now / 1000.0, seed, self._policy)
        if isinstance(outcome, Refused):
            raise outcome.refusal
        return outcome

    def _sent_to(self, outcome: Scheduled, request: int, now: float) -> int:
        self._sent[request] = now
        return self._row[outcome.endpoints[0].name]

    def _hear(self, load: Load, now: float) -> None:
        self._load = load
        self._reports += 1
        for index, name in enumerate(self._names):
            self._pool.hear(
                WorkerLoad.model_construct(
                    worker=name, pool=_POOL, boot_id="1", sequence=self._reports, at_ms=int(now * 1000),
                    state="serving", running=load.running[index], waiting=load.waiting[index],
                    kv_usage=load.kv_usage[index],
                    running_loras=load.running_loras[index], waiting_loras=(), max_loras=self._max_loras,
                ),
                now,
            )  # fmt: skip


def _hashes(blocks: list[int]) -> Blocks:
    # Blocks of answers have names beyond 64 bits, which no prompt has.
    return np.array([block for block in blocks if block < _NAMES], dtype=np.uint64)
