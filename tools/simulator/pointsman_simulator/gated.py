"""The scheduler's flow control in front of a policy: requests wait while the pool is saturated, as in the service."""

import math
from typing import Final

from pointsman_contracts.service_level import REFUSE, SERVE
from pointsman_core.config import SchedulingPolicy
from pointsman_scheduler.domain.flow_control import Capacity, Dispatch, Dropped, FlowController, Item
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.policy import REFUSED, Arrival, Load, Observation
from pointsman_simulator.scheduler_policy import SchedulerPolicy


class GatedPolicy:
    """One scheduler with its flow control. A request that flow control drops is refused.

    `late`: as of `SchedulerPolicy`; a request that is refused rather than served late doesn't wait in flow control, as
    in the service. `expires`: a request that waits there for longer than its level's time to the first token is
    dropped.
    """

    def __init__(
        self,
        workers: int,
        settings: SchedulingPolicy,
        engine: EngineConfig,
        seed: int,
        *,
        late: str | None = SERVE,
        expires: bool = False,
    ) -> None:
        self._inner: Final = SchedulerPolicy(workers, settings, engine, seed, late=late)
        self._pool: Final = self._inner.schedulers[0].pool
        self._policy: Final = self._inner.schedulers[0].policy.flow_control
        self._flow: Final = FlowController[Arrival](self._policy)
        self._expires: Final = expires
        self._bypasses: Final = late == REFUSE
        self._now = 0.0

    def observe(self, observation: Observation, now: float) -> None:
        """Pass an observation on."""
        self._inner.observe(observation, now)

    def choose(self, arrival: Arrival) -> int | None:
        """Decide, or let the request wait."""
        now = self._now = arrival.at
        self._inner.schedulers[0].hear(arrival.load, now)
        if self._bypasses and arrival.promise is not None:
            return self._inner.choose(arrival)
        capacity = self._measure(now)
        if self._flow.lets_pass(0, now / 1000.0, capacity) or self._inner.is_foreseen_in_time(arrival):
            return self._inner.choose(arrival)
        ttft_ms = None if arrival.promise is None else arrival.promise.ttft_ms
        item = Item(
            request=arrival.request,
            offered_at=now / 1000.0,
            prefill_tokens=arrival.prompt_tokens,
            deadline=(now + ttft_ms) / 1000.0 if self._expires and ttft_ms is not None else math.inf,
            slo_ttft_s=None if ttft_ms is None else ttft_ms / 1000.0,
            payload=arrival,
        )
        outcome = self._flow.offer_request(item, now / 1000.0, capacity)
        if isinstance(outcome, Dispatch):
            return self._inner.choose(arrival)
        return REFUSED if isinstance(outcome, Dropped) else None

    def bind(self, now: float, load: Load) -> list[tuple[int, int]]:
        """The requests whose wait is over."""
        self._now = now
        self._inner.schedulers[0].hear(load, now)
        leaving = self._inner.bind(now, load)
        if self._flow.waiting:
            for outcome in self._flow.wake_requests(now / 1000.0, lambda: self._measure(now)):
                arrival = outcome.item.payload
                row = None if isinstance(outcome, Dropped) else self._inner.choose(_as_of(arrival, now, load))
                if isinstance(outcome, Dropped):
                    leaving.append((arrival.request, REFUSED))
                elif row is not None:
                    leaving.append((arrival.request, row))
        return leaving

    def look_at(self) -> float:
        """When something that waits may have to go."""
        at = self._flow.next_wake_at(self._now / 1000.0)
        # A look that finds nothing comes again no sooner than that.
        return min(self._inner.look_at(), math.inf if at is None else max(at * 1000.0, self._now + 1.0))

    def _measure(self, now: float) -> Capacity:
        fleet = self._pool.fleet
        fleet.refresh(now / 1000.0)
        full = math.inf if self._pool.binder.is_overfull else self._policy.detector.saturation(fleet, now / 1000.0)
        return Capacity(len(fleet.workers), full)


def _as_of(arrival: Arrival, now: float, load: Load) -> Arrival:
    return Arrival(
        request=arrival.request, at=now, prompt_tokens=arrival.prompt_tokens, blocks=arrival.blocks, load=load,
        lora=arrival.lora, max_tokens=arrival.max_tokens, streamed=arrival.streamed, session=arrival.session,
        promise=arrival.promise, queued_ms=now - arrival.at,
    )  # fmt: skip
