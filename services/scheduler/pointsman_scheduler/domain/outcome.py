"""The outcome of a decision, with the data that explains it."""

from msgspec import Struct

from pointsman_contracts.journey import HeaderEdit
from pointsman_core.refusal import Refusal
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run, Selection
from pointsman_plugins.scheduling.worker import Hold, Worker


class Sight(Struct, frozen=True, eq=False, gc=False):
    """The workers at the moment of the decision, before its own reservation: the data that candidates were judged
    by."""

    workers: list[Worker]
    names: tuple[str, ...]
    now: float
    """Monotonic time of the decision."""
    figures: Floats
    """[5, workers]: rows `HEARD`, `KV_USAGE`, `RUNNING`, `WAITING` of the fleet, and `MATCHED`."""
    opaque: frozenset[int] = frozenset()
    """Rows of workers that report no load."""


class Scheduled(Struct, eq=False, gc=False):
    """The request goes to `endpoints[0]`; the others are fallbacks in order."""

    endpoints: list[Worker]
    selection: Selection
    runs: list[Run]
    sight: Sight
    headers: list[HeaderEdit]
    holds: list[Hold]
    """Reservations made by this decision: to publish to the other replicas."""
    cached_tokens: int
    """Prompt tokens believed cached on the first endpoint."""
    prefix: str
    """Source of that estimate: `precise`, `approximate`, or empty for a prompt without blocks."""
    held: bool
    """The request already had a reservation: it goes to the same endpoint again."""
    seed: int
    reasons: list[str]
    """Why the decision isn't as good as it could be; empty when no data was missing."""
    trial: str = ""
    """Why the first endpoint is ejected, where the request is its trial; else empty."""
    fetched: dict[str, Floats] | None = None
    """Tokens that each worker would fetch, by tier (`ScheduleRequest.fetched`)."""


class Refused(Struct, eq=False):
    """No endpoint for this request."""

    refusal: Refusal
    runs: list[Run]
    sight: Sight | None = None
    """None when the pool had no worker."""


class Postponed(Struct, eq=False):
    """No endpoint yet: `PoolScheduler.bind` names it later."""

    request: ScheduleRequest
    worker: str
    """The worker that an immediate choice would take."""


Outcome = Scheduled | Refused | Postponed
