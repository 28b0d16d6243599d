"""Flow control: which requests wait while a pool is saturated, and which goes next."""

from pointsman_plugins.scheduling.flow_control import FairnessPolicy, OrderingPolicy, SaturationDetector, Turns
from pointsman_scheduler.domain.flow_control.controller import LOOK_AGAIN_S, Capacity, Figures, FlowController
from pointsman_scheduler.domain.flow_control.item import Item
from pointsman_scheduler.domain.flow_control.outcome import Dispatch, Drop, Dropped, Parked, Unserved
from pointsman_scheduler.domain.flow_control.policy import FlowPolicy, FlowRegistries, compile_flow_control

__all__ = [
    "LOOK_AGAIN_S",
    "Capacity",
    "Dispatch",
    "Drop",
    "Dropped",
    "FairnessPolicy",
    "Figures",
    "FlowController",
    "FlowPolicy",
    "FlowRegistries",
    "Item",
    "OrderingPolicy",
    "Parked",
    "SaturationDetector",
    "Turns",
    "Unserved",
    "compile_flow_control",
]
