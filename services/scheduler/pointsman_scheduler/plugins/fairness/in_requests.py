"""Fairness in requests: `round-robin`, and `global-strict`, which has no flows."""

from collections import deque
from typing import ClassVar

from pointsman_plugins.scheduling.flow_control import Demand, FairnessPolicy, Turns


class GlobalStrict(FairnessPolicy):
    """The band's ordering alone decides."""

    type_name: ClassVar[str] = "global-strict"

    def flow_of(self, demand: Demand) -> str:
        return ""

    def turns(self) -> Turns:
        return _Only()


class _Only(Turns):
    def enter(self, flow: str, now: float) -> None:
        pass

    def leave(self, flow: str) -> None:
        pass

    def next(self, now: float) -> str:
        return ""

    def served(self, demand: Demand, flow: str, now: float) -> None:
        pass


SLACK = 64


class RoundRobinFairness(FairnessPolicy):
    """Equal shares in requests."""

    type_name: ClassVar[str] = "round-robin"

    def turns(self) -> Turns:
        return _Circle()


class _Circle(Turns):
    """A circle of flows. A flow that has left keeps its place until its turn comes or most of the circle has left."""

    def __init__(self) -> None:
        self._circle: deque[str] = deque()
        self._placed: set[str] = set()
        self._waiting: set[str] = set()

    def enter(self, flow: str, now: float) -> None:
        self._waiting.add(flow)
        if flow not in self._placed:
            self._placed.add(flow)
            self._circle.append(flow)

    def leave(self, flow: str) -> None:
        self._waiting.discard(flow)
        if len(self._circle) > SLACK + 2 * len(self._waiting):
            self._circle = deque(flow for flow in self._circle if flow in self._waiting)
            self._placed = set(self._circle)

    def next(self, now: float) -> str:
        while self._circle[0] not in self._waiting:
            self._placed.discard(self._circle.popleft())
        return self._circle[0]

    def served(self, demand: Demand, flow: str, now: float) -> None:
        self._circle.rotate(-1)
