"""The knowledge about one engine. Pure."""

from dataclasses import dataclass, field
from typing import Final

from pointsman_engines.models import ServedModels
from pointsman_engines.reading import CacheFacts, Reading

OPAQUE: Final = "opaque"
"""The kind of an endpoint that reports no load."""


NOT_ASKED: Final = "not asked yet"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts that rarely change."""

    engine: str
    version: str = ""
    served: ServedModels = field(default_factory=ServedModels)
    cache: CacheFacts = field(default_factory=CacheFacts)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The knowledge about an engine at one moment."""

    reachable: bool = False
    reason: str = NOT_ASKED
    """Why it isn't reachable; empty when it is."""
    boot_id: str = ""
    """Empty until it answered for the first time."""
    reading: Reading | None = None
    """The last one, also while it is unreachable."""
    read_at_ms: int = 0
    facts: EngineFacts | None = None
    """None at the beginning of a life."""

    @property
    def resting(self) -> bool:
        """It answers, and has nothing to do."""
        return self.reachable and self.reading is not None and not self.reading.busy

    @property
    def asked(self) -> bool:
        """Whether it answered, or failed to answer."""
        return self.reason != NOT_ASKED


def differs(before: EngineStatus, after: EngineStatus) -> bool:
    """Whether the difference is worth a report."""
    if before.reachable != after.reachable or before.boot_id != after.boot_id:
        return True
    one, two = before.reading, after.reading
    if one is None or two is None:
        return one is not two
    return (one.running, one.waiting, one.kv_usage, one.running_loras, one.waiting_loras, one.max_loras) != (
        two.running,
        two.waiting,
        two.kv_usage,
        two.running_loras,
        two.waiting_loras,
        two.max_loras,
    )
