"""Everything that the runs of batches share."""

from pointsman_batch.adapters.batches import Batches
from pointsman_batch.adapters.files import Files
from pointsman_batch.adapters.results import LineResults
from pointsman_batch.metrics import BatchMetrics
from pointsman_batch.slots import Slots
from pointsman_hosting.lending import Lending
from pointsman_hosting.own_door import OwnDoor


class RunTools:
    """The stores, the gateway, the slots, and the limits of one replica."""

    def __init__(
        self,
        *,
        instance: str,
        batches: Batches,
        files: Files,
        results: LineResults,
        lending: Lending,
        gateway: OwnDoor,
        slots: Slots,
        metrics: BatchMetrics,
        line_max_bytes: int,
        most_lines: int,
        keep_days: float,
    ) -> None:
        self.instance = instance
        self.batches = batches
        self.files = files
        self.results = results
        self.lending = lending
        self.gateway = gateway
        self.slots = slots
        self.metrics = metrics
        self.line_max_bytes = line_max_bytes
        self.most_lines = most_lines
        self.keep_days = keep_days
