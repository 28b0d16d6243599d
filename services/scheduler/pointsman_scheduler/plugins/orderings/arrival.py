"""`fcfs`: first come, first served."""

from typing import ClassVar

from pointsman_scheduler.domain.flow_control.item import Demand
from pointsman_scheduler.domain.flow_control.points import OrderingPolicy


class FirstCome(OrderingPolicy):
    """First come, first served."""

    type_name: ClassVar[str] = "fcfs"

    def key(self, demand: Demand, ttl: float) -> float:
        return demand.offered_at
