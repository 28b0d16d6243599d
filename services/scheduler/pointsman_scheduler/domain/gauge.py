"""Measures how full a pool is, as rarely as accuracy allows."""

from typing import Final

from pointsman_scheduler.domain.flow_control import Capacity, FlowPolicy
from pointsman_scheduler.domain.pool import PoolScheduler

FRESH_S: Final = 0.01
ROOMY: Final = 0.5
"""Up to this saturation, one more request for each endpoint doesn't fill the pool, so one measurement serves as
many."""


class Gauge:
    """The capacity of one pool. A measurement costs a fifth of a decision."""

    def __init__(self, pool: PoolScheduler) -> None:
        self._pool: Final = pool
        self._capacity = Capacity(0, 0.0)
        self._measured_at = float("-inf")
        self._spent = 0

    def roughly(self, policy: FlowPolicy, now: float) -> Capacity:
        """For a request that comes while none waits: the last measurement, while the pool has room."""
        fresh = now - self._measured_at <= FRESH_S and self._capacity.saturation <= ROOMY
        if not fresh or self._spent >= self._capacity.endpoints:
            return self.exactly(policy, now)
        self._spent += 1
        return self._capacity

    def exactly(self, policy: FlowPolicy, now: float) -> Capacity:
        """A new measurement."""
        fleet = self._pool.fleet
        fleet.refresh(now)
        endpoints = len(fleet.workers)
        self._capacity = Capacity(endpoints, policy.detector.saturation(fleet, now) if endpoints else 0.0)
        self._measured_at = now
        self._spent = 1
        return self._capacity
