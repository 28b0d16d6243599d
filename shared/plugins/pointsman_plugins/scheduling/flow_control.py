"""The extension points of flow control, and a request as it sees it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass

from pointsman_plugins.plugin import ParamsT_co, Plugin
from pointsman_plugins.scheduling.fleet import Fleet


@dataclass(slots=True, eq=False)
class Demand:
    """The demand of a request. Times are seconds of one monotonic clock."""

    request: Hashable
    """Its identity: equal for a request that is offered again, and for no other."""
    offered_at: float
    flow: str = ""
    """Shares its band's turns with other flows."""
    priority: int = 0
    """Higher goes first."""
    size: int = 0
    """Bytes of the body."""
    prefill_tokens: int = 0
    """Prompt tokens that an engine will have to compute."""
    output_tokens: int = 0
    """Expected output; 0 when unknown."""
    deadline: float = math.inf
    """The time after which the caller no longer waits for the answer."""
    slo_ttft_s: float | None = None
    """Seconds to the first token that the client hopes for."""
    program: str = ""
    """The session that it belongs to, or the one that began that session; empty without one."""
    weight: float = 1.0
    """The relative cost of its waiting; above 0."""


class Turns(ABC):
    """The turns of the flows of one band. `next` and `served` alternate; every call is O(log flows)."""

    @abstractmethod
    def enter(self, flow: str, now: float) -> None:
        """A flow that had nothing waiting has now."""

    @abstractmethod
    def leave(self, flow: str) -> None:
        """Nothing of this flow waits any more."""

    @abstractmethod
    def next(self, now: float) -> str:
        """The flow whose turn it is. Some flow waits."""

    @abstractmethod
    def served(self, demand: Demand, flow: str, now: float) -> None:
        """A request of this flow goes to an engine. Called before `leave`, if it was the flow's last."""


class FairnessPolicy(Plugin[ParamsT_co]):
    """Shares a band's capacity among its flows."""

    group = "pointsman.scheduler.fairness"

    def flow_of(self, demand: Demand) -> str:
        """The flow that the request waits in."""
        return demand.flow

    @abstractmethod
    def turns(self) -> Turns:
        """The state of one band, with no flow waiting."""


class OrderingPolicy(Plugin[ParamsT_co]):
    """Which request of a flow goes first."""

    group = "pointsman.scheduler.orderings"

    @abstractmethod
    def key(self, demand: Demand, ttl: float) -> float:
        """The least goes first; among equals the one that came first. `ttl`: seconds that a request may wait."""


class SaturationDetector(Plugin[ParamsT_co]):
    """Measures how full a pool is."""

    group = "pointsman.scheduler.detectors"

    @abstractmethod
    def saturation(self, fleet: Fleet, now: float) -> float:
        """0 is idle, 1 and above is saturated. `fleet` has been refreshed and has at least one worker.

        Old signals say nothing about saturation: a worker that isn't heard of doesn't count.
        """
