"""The outcome of a decision, with all that explains it."""

from dataclasses import dataclass
from typing import NamedTuple

from pointsman_contracts.journey import HeaderEdit
from pointsman_core.refusal import Refusal
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run, Selection
from pointsman_plugins.scheduling.worker import Hold, Worker


class Sight(NamedTuple):
    """The workers at the moment of the decision, before its own reservation: what candidates were judged by."""

    workers: list[Worker]
    names: tuple[str, ...]
    now: float
    """Monotonic time of the decision."""
    figures: Floats
    """[5, workers]: rows `HEARD`, `KV_USAGE`, `RUNNING`, `WAITING` of the fleet, and `MATCHED`."""
    opaque: frozenset[int] = frozenset()
    """Rows of workers that tell no load."""


@dataclass(slots=True, eq=False)
class Scheduled:
    """The request goes to `endpoints[0]`; the others are fallbacks in order."""

    endpoints: list[Worker]
    selection: Selection
    runs: list[Run]
    sight: Sight
    headers: list[HeaderEdit]
    holds: list[Hold]
    """What this decision put on the books: to tell the other replicas."""
    cached_tokens: int
    """Prompt tokens believed cached on the first endpoint."""
    prefix: str
    """How that is known: `precise`, `approximate`, or empty for a prompt without blocks."""
    held: bool
    """The request was on the books already: it goes where it was sent."""
    seed: int
    reasons: list[str]
    """Why the decision isn't as good as it could be; empty when nothing was missing."""


@dataclass(slots=True, eq=False)
class Refused:
    """No endpoint for this request."""

    refusal: Refusal
    runs: list[Run]
    sight: Sight | None = None
    """None when there was no worker to look at."""


@dataclass(slots=True, eq=False)
class Postponed:
    """No endpoint yet: `PoolScheduler.bind` names it when its turn has come."""

    request: ScheduleRequest
    worker: str
    """The one that it would have been sent to."""


Outcome = Scheduled | Refused | Postponed
