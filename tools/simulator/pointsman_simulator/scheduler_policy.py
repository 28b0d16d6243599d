"""The schedulers of a pool as a routing policy: what decides in the service decides here, in virtual time."""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pointsman_contracts.journey import FactsChanges, RequestFacts
from pointsman_contracts.message import Blob
from pointsman_contracts.priority import BATCH_PRIORITY
from pointsman_contracts.service_level import SERVE, ServicePromise
from pointsman_core.config import SchedulingPolicy
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.late_binding import REFUSING
from pointsman_scheduler.domain.outcome import Postponed, Scheduled
from pointsman_scheduler.foreseen_times import is_foreseen_in_time, plans_by_slack
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.one_scheduler import OneScheduler, hashes
from pointsman_simulator.policy import (
    REFUSED,
    Arrival,
    BackgroundLoad,
    Completed,
    KvChanged,
    Load,
    Observation,
    Reported,
)

PEER_LAG_MS: Final = 1.0
"""Until a scheduler knows of another one's decision."""


class SchedulerPolicy:
    """One scheduler of a pool, or several that share its requests evenly and hear of each other `peer_lag_ms` later.

    `settings` is a section `scheduling.x` of the configuration; equal seeds give equal decisions. `loras` are the
    adapters that every engine can serve, `kv_blocks` the size of each engine's KV cache where they differ. Without
    `kv_events`, engines publish none. `ties` are the seeds of the requests' decisions, in order of arrival, where they
    are known: `seed` is for the others. `roles`: of each engine, as `WorkerRegistration.role`; `both` without them.
    `tiers`: whether events about host memory are heard, too. `ranks`: data-parallel ranks of an engine; each of
    `workers` is one then. `late`: the treatment of requests that would miss their service levels;
    None: it doesn't know the levels.
    """

    def __init__(
        self,
        workers: int,
        settings: SchedulingPolicy,
        engine: EngineConfig | None = None,
        seed: int = 0,
        loras: Iterable[str] = (),
        kv_blocks: Sequence[int] | None = None,
        *,
        kv_events: bool = True,
        schedulers: int = 1,
        peer_lag_ms: float = PEER_LAG_MS,
        ties: Sequence[int] = (),
        roles: Sequence[str] = (),
        tiers: bool = True,
        ranks: int = 1,
        late: str | None = SERVE,
    ) -> None:
        engine = engine or EngineConfig()
        adapters, blocks = tuple(loras), kv_blocks or [engine.num_blocks] * workers
        self._block_tokens = engine.block_size
        self.schedulers: Final = [
            OneScheduler(
                name=f"scheduler-{number}",
                kv_blocks=blocks,
                settings=settings,
                engine=engine,
                loras=adapters,
                kv_events=kv_events,
                roles=roles,
                tiers=tiers,
                ranks=ranks,
            )
            for number in range(schedulers)
        ]
        self._seed = seed
        self._late = late
        self._ties = ties
        self._kv_events = kv_events
        self._peer_lag = peer_lag_ms
        self._sent: dict[int, float] = {}
        self._sent_again: set[int] = set()
        """Requests whose engine was lost."""
        self._prefillers: dict[int, int] = {}
        """The engine that computes the prompt of a request that was just chosen for."""
        self._on_the_way: list[tuple[float, int, Callable[[float], None]]] = []
        """Messages between schedulers: when each arrives, its number, and what it does."""
        self._numbers = itertools.count()
        self._now = 0.0

    def observe(self, observation: Observation, now: float) -> None:
        """Pass the schedulers an observation, as the bus would."""
        self._deliver(now)
        key, sent = ("", ""), 0.0
        if not isinstance(observation, KvChanged | Reported):
            key, sent = _key(observation.request), self._sent[observation.request]
        if isinstance(observation, Completed):
            del self._sent[observation.request]
        for scheduler in self.schedulers:
            scheduler.receive_observation(observation, key, sent, now)

    def change_fleet(self, worker: int, present: bool, now: float) -> None:
        """Each scheduler learns that an engine came, or is gone with its requests."""
        self._deliver(now)
        for scheduler in self.schedulers:
            self._sent_again.update(scheduler.change_fleet(worker, present, now))

    def choose(self, arrival: Arrival) -> int | None:
        """Decide as the service would. Raises Refusal when no engine may serve the request."""
        self._deliver(arrival.at)
        request = ScheduleRequest(
            request_id=str(arrival.request),
            facts=self._facts_of(arrival),
            model="model",
            lora=arrival.lora,
            blocks=hashes(arrival.blocks),
            attempt=2 if arrival.request in self._sent_again else 1,
            queued_s=arrival.queued_ms / 1000.0,
        )
        scheduler = self.schedulers[arrival.request % len(self.schedulers)]
        scheduler.hear(arrival.load, arrival.at)
        outcome = scheduler.decide(request, arrival.at, self._tie(arrival.request))
        chosen = None if isinstance(outcome, Postponed) else self._sent_to(scheduler, outcome, arrival.request)
        self._tell_waiting(scheduler)
        return chosen

    def is_foreseen_in_time(self, arrival: Arrival) -> bool:
        """Whether the first scheduler plans the request by its service level, and predicts it in time."""
        facts, scheduler = self._facts_of(arrival), self.schedulers[0]
        if not facts.is_promised or not plans_by_slack(scheduler.policy, facts):
            return False
        facts = facts.changed(blocks=Blob(hashes(arrival.blocks).tobytes()))
        return is_foreseen_in_time(scheduler.pool, scheduler.policy, facts, "model", arrival.at / 1000.0)

    def offer_background(self, request: int, load: BackgroundLoad, attempt: int, worker: int | None = None) -> bool:
        """Offer the first scheduler a request of a batch now. `worker`: the engine that it goes to; None: the request
        waits until the policy finds one. Returns whether it is on its way."""
        scheduler = self.schedulers[0]
        asked = ScheduleRequest(
            request_id=str(request),
            facts=RequestFacts(
                api="",
                prompt_tokens=load.prompt_tokens,
                tokens_exact=True,
                block_tokens=self._block_tokens,
                max_output_tokens=load.output_tokens,
                stream=False,
                priority=BATCH_PRIORITY,
                workers=None if worker is None else (scheduler.name_of(worker),),
            ),
            model="model",
            attempt=attempt,
        )
        outcome = scheduler.decide(asked, self._now, self._seed * 1_000_003 + request)
        if isinstance(outcome, Postponed):
            return False
        self._sent_to(scheduler, outcome, request)
        return True

    def find_stopped(self) -> list[tuple[int, int]]:
        """The requests of batches that leave their engines now, and the engines; they are off the books."""
        scheduler, now = self.schedulers[0], self._now / 1000.0
        found = scheduler.pool.find_stopped(now)
        for hold in found:
            scheduler.pool.books.take_off(hold, now)
            del self._sent[int(hold.change.request_id)]
        return [(int(hold.change.request_id), scheduler.row_of(hold.worker.name)) for hold in found]

    def prefiller(self, request: int) -> int | None:
        """See `LegPolicy`; each request is asked about once."""
        return self._prefillers.pop(request, None)

    def bind(self, now: float, load: Load) -> list[tuple[int, int]]:
        """The requests whose wait is over."""
        self._deliver(now)
        leaving: list[tuple[int, int]] = []
        for scheduler in self.schedulers:
            scheduler.hear(load, now)
            for bound in scheduler.pool.bind(now / 1000.0):
                request = int(bound.request.request_id)
                if bound.because in REFUSING:
                    leaving.append((request, REFUSED))
                    continue
                outcome = scheduler.decide(bound.request, now, self._tie(request))
                if isinstance(outcome, Postponed):
                    raise AssertionError(f"request {request} waits twice")  # noqa: TRY004 - it can't be
                leaving.append((request, self._sent_to(scheduler, outcome, request)))
            self._tell_waiting(scheduler)
        return leaving

    def look_at(self) -> float:
        """When something that waits may have to go."""
        looks = [scheduler.pool.look_at(self._now / 1000.0) for scheduler in self.schedulers]
        soonest = min([at * 1000.0 for at in looks if at is not None], default=math.inf)
        return min(soonest, self._on_the_way[0][0]) if self._on_the_way else soonest

    def _facts_of(self, arrival: Arrival) -> RequestFacts:
        return RequestFacts(
            api="",
            prompt_tokens=arrival.prompt_tokens,
            tokens_exact=True,
            block_tokens=self._block_tokens,
            blocks_precise=self._kv_events,
            max_output_tokens=arrival.max_tokens,
            stream=arrival.streamed,
        ).changed(**self._level_of(arrival.promise, arrival.queued_ms))

    def _level_of(self, promise: ServicePromise | None, queued_ms: float) -> FactsChanges:
        """The request's service level, as facts: its time in flow control counts."""
        if promise is None or self._late is None:
            return {}
        return {
            "slo_class": promise.service_class,
            "slo_ttft_ms": None if promise.ttft_ms is None else max(1.0, promise.ttft_ms - queued_ms),
            "slo_itl_ms": promise.itl_ms,
            "slo_late": self._late,
        }

    def _tie(self, request: int) -> int:
        return self._ties[request] if self._ties else self._seed * 1_000_003 + request

    def _sent_to(self, scheduler: OneScheduler, outcome: Scheduled, request: int) -> int:
        self._sent[request] = self._now
        prefiller = scheduler.prefiller(outcome)
        if prefiller is not None:
            self._prefillers[request] = prefiller
        if len(self.schedulers) > 1:
            changes = [hold.change for hold in outcome.holds]
            self._tell_peers(scheduler, lambda peer, at: peer.apply_changes(changes, scheduler.name, at))
        return scheduler.chosen_row(outcome)

    def _tell_waiting(self, scheduler: OneScheduler) -> None:
        if len(self.schedulers) > 1 and (waiting := scheduler.waiting(self._now)) is not None:
            self._tell_peers(scheduler, lambda peer, at: peer.take_peer_report(scheduler.name, waiting, at))

    def _tell_peers(self, sender: OneScheduler, message: Callable[[OneScheduler, float], None]) -> None:
        for peer in self.schedulers:
            if peer is not sender:
                self._send(lambda at, peer=peer: message(peer, at))

    def _send(self, message: Callable[[float], None]) -> None:
        heapq.heappush(self._on_the_way, (self._now + self._peer_lag, next(self._numbers), message))

    def _deliver(self, now: float) -> None:
        while self._on_the_way and self._on_the_way[0][0] <= now:
            at, _, message = heapq.heappop(self._on_the_way)
            message(at)
        self._now = now


def _key(request: int) -> tuple[str, str]:
    return "", str(request)
