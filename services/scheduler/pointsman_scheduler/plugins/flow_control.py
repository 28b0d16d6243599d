"""The flow-control plugins of this distribution."""

from typing import Final

from pointsman_plugins.registry import Registry
from pointsman_plugins.scheduling.flow_control import FairnessPolicy, OrderingPolicy, SaturationDetector
from pointsman_scheduler.domain.flow_control.policy import FlowRegistries
from pointsman_scheduler.plugins.detectors.concurrency import Concurrency
from pointsman_scheduler.plugins.detectors.utilization import UtilizationDetector
from pointsman_scheduler.plugins.fairness.in_requests import GlobalStrict, RoundRobinFairness
from pointsman_scheduler.plugins.fairness.least_attained import LeastAttainedService
from pointsman_scheduler.plugins.fairness.program import ProgramFairness
from pointsman_scheduler.plugins.orderings.orders import (
    EarliestDeadline,
    FirstCome,
    SloDeadline,
    WeightedShortestPrefill,
)

FAIRNESS: Final[tuple[type[FairnessPolicy], ...]] = (
    RoundRobinFairness,
    GlobalStrict,
    LeastAttainedService,
    ProgramFairness,
)
ORDERINGS: Final[tuple[type[OrderingPolicy], ...]] = (
    FirstCome,
    EarliestDeadline,
    SloDeadline,
    WeightedShortestPrefill,
)
DETECTORS: Final[tuple[type[SaturationDetector], ...]] = (UtilizationDetector, Concurrency)


def flow_registries() -> FlowRegistries:
    """Built-in plugins and those that installed distributions offer."""
    return FlowRegistries(
        fairness=Registry(FairnessPolicy, FAIRNESS),
        orderings=Registry(OrderingPolicy, ORDERINGS),
        detectors=Registry(SaturationDetector, DETECTORS),
    )
