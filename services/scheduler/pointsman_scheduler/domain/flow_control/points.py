"""The extension points of flow control."""

from abc import ABC, abstractmethod

from pointsman_core.plugins import Plugin
from pointsman_scheduler.domain.fleet import Fleet
from pointsman_scheduler.domain.flow_control.item import Demand


class Turns(ABC):
    """Whose turn it is among the flows of one band. `next` and `served` alternate; every call is O(log flows)."""

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


class FairnessPolicy(Plugin):
    """How the flows of a band share its capacity."""

    def flow_of(self, demand: Demand) -> str:
        """The flow that the request waits in."""
        return demand.flow

    @abstractmethod
    def turns(self) -> Turns:
        """The state of one band, with no flow waiting."""


class OrderingPolicy(Plugin):
    """Which request of a flow goes first."""

    @abstractmethod
    def key(self, demand: Demand, ttl: float) -> float:
        """The least goes first; among equals the one that came first. `ttl`: seconds that a request may wait."""


class SaturationDetector(Plugin):
    """How full a pool is."""

    @abstractmethod
    def saturation(self, fleet: Fleet, now: float) -> float:
        """0 is idle, 1 and above is saturated. `fleet` has been refreshed and has at least one worker.

        Old signals say nothing about saturation: a worker that isn't heard of doesn't count.
        """
