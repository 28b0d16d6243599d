"""`fcfs`: first come, first served."""

from typing import ClassVar

from pointsman_plugins.scheduling.flow_control import Demand, OrderingPolicy


class FirstCome(OrderingPolicy):
    """First come, first served."""

    type_name: ClassVar[str] = "fcfs"

    def key(self, demand: Demand, ttl: float) -> float:
        return demand.offered_at
