"""`global-strict`: one order for the whole band, whoever sent the request."""

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
