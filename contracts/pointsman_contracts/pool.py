"""The state of a pool in one message, for everybody who doesn't need each worker's every move."""

from typing import ClassVar

from pointsman_contracts.message import Address, Message, Part


class WorkerView(Part):
    """One worker as the metrics-collector sees it."""

    worker: str
    url: str
    boot_id: str = ""
    state: str = "serving"
    """`serving`, `draining`, `unreachable` or `silent` (no load report for 1.2 s)."""
    models: tuple[str, ...] = ()
    loras: tuple[str, ...] = ()
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    age_ms: float = -1.0
    """Age of the last load report at `at_ms`; -1 when there was none."""


class PoolSnapshot(Message):
    """A pool at one moment. Published by the metrics-collector on change and at least once a second.

    Read by the profile-picker and the model-selector (saturation), and by edges (models, and endpoints to
    fall back on when the bus is gone). Latest wins.
    """

    address: ClassVar[Address] = Address("sig", "pool", "snapshot", route=("pool",))

    pool: str
    source: str
    """Metrics-collector instance."""
    sequence: int
    at_ms: int
    workers: tuple[WorkerView, ...] = ()
    saturation: float = 0.0
    """Mean over serving workers of max(waiting/5, kv_usage/0.8); 1.0 or more is saturated; 1.0 with no worker
    (endpoint-picker.md §1.7, utilization detector)."""
    models: tuple[str, ...] = ()
    """Models and adapters that at least one serving worker serves."""
