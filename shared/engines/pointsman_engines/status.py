"""The knowledge about one engine. Pure."""

from dataclasses import dataclass, field
from typing import Final

from pointsman_contracts.worker import WorkerFinding
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
    """The knowledge about an engine at one moment. Three facts stand apart: whether it can be reached, whether it is
    ready, and whether its load is known."""

    reachable: bool = False
    """Whether something accepts its connections."""
    reason: str = NOT_ASKED
    """Why it isn't reachable; empty when it is."""
    unready: str = ""
    """Why it shouldn't get new requests, in words; empty when it may, or when that is unknown."""
    asleep: bool = False
    """It answers nothing until it is woken."""
    load_unknown: str = ""
    """Why `reading` says nothing of its load now, in words; empty when it does."""
    boot_id: str = ""
    """Empty until it answered for the first time."""
    reading: Reading | None = None
    """The last one that could be read."""
    read_at_ms: int = 0
    """When that one was asked for."""
    facts: EngineFacts | None = None
    """None at the beginning of a life."""
    findings: tuple[WorkerFinding, ...] = ()
    """Faults that an operator must mend."""

    @property
    def known_load(self) -> Reading | None:
        """Its load now; None while that is unknown."""
        return None if self.load_unknown else self.reading

    @property
    def resting(self) -> bool:
        """It answers, and has nothing to do."""
        load = self.known_load
        return self.reachable and load is not None and not load.busy

    @property
    def asked(self) -> bool:
        """Whether it answered, or failed to answer."""
        return self.reason != NOT_ASKED


ASLEEP: Final = "it sleeps: a request would wait until it is woken"


def state_of(status: EngineStatus, *, draining: bool = False) -> str:
    """See `WorkerLoad.state`; for an engine that has answered before."""
    if not status.reachable:
        return "unreachable"
    if draining:
        return "draining"
    return "asleep" if status.asleep else "not_ready" if status.unready else "serving"


def reason_of(status: EngineStatus) -> str:
    """Why it doesn't serve, in words; empty when it does."""
    if not status.reachable:
        return status.reason
    return ASLEEP if status.asleep else status.unready


def differs(before: EngineStatus, after: EngineStatus) -> bool:
    """Whether the difference is worth a report."""
    if state_of(before) != state_of(after) or before.boot_id != after.boot_id:
        return True
    if before.load_unknown != after.load_unknown:
        return True
    one, two = before.known_load, after.known_load
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
