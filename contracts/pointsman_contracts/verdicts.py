"""The experience of requests at engines, as schedulers judge it: the verdicts, and requests that leave an engine."""

from typing import ClassVar

from pointsman_contracts.events import Numbered, WorkerEvent
from pointsman_contracts.message import Address, Message, Part, always


class WorkerVerdict(Part, frozen=True, kw_only=True):
    """Why a scheduler sends a worker fewer requests than its load allows, or in vain."""

    worker: str
    boot_id: str = always("")
    verdict: str
    """`ejected` (its answers are worse than its peers': trial requests only), `suspect` (requests wait there far longer
    than predicted: trial requests only), `failing` (it fails many requests, but its peers are no better: it keeps its
    share), `lacking` (it answers 404 for a model or adapter that its peers serve: no requests for that), or `unheeded`
    (it is a rank of an engine that ignores which rank a request names; it keeps its share)."""
    reason: str = always("")
    """In words for an operator, with figures."""


class WorkerVerdicts(Numbered, frozen=True, kw_only=True):
    """Every worker of a pool that this scheduler finds unwell. Published by each scheduler on change, and once a second
    while there is one. Read by the metrics-collector, which forgets verdicts that aren't renewed for 3 s."""

    address: ClassVar[Address] = Address("sig", "worker", "verdicts", route=("pool",))

    pool: str
    verdicts: tuple[WorkerVerdict, ...] = always(())
    """Empty once all are well."""


class WorkerJudged(WorkerEvent, frozen=True, kw_only=True):
    """The verdict on a worker changed. Published by the metrics-collector that answers for this worker; for any
    reader."""

    address: ClassVar[Address] = Address("evt", "worker", "judged", route=("pool",))

    verdict: str
    """The verdict (`WorkerVerdict.verdict`); empty: it gets its share of requests again."""
    reason: str = always("")
    """The reason of the verdict."""


class MoveRequests(Message, frozen=True, kw_only=True):
    """Asks an edge to end these requests' attempts at a worker and to send them elsewhere, each at most once. A request
    stays where the first byte of its answer has come, and where the edge knows no other endpoint.

    Sent by the scheduler that made the reservation, when the worker hasn't answered for far longer than predicted, or
    when the requests give way to others; answered with `MovedRequests`. It may come twice.
    """

    address: ClassVar[Address] = Address("ctl", "edge", "move-requests", route=("edge",))

    pool: str
    worker: str
    boot_id: str = always("")
    request_ids: tuple[str, ...]
    avoid: tuple[str, ...] = always(())
    """Workers to go to only where there is no other: schedulers find them unwell."""
    reason: str = always("")
    gives_way: bool = always(False)
    """The requests are background work: each is decided again, unless a part of its answer has left for the client. Its
    answer may have come in part, and the worker is well."""


class MovedRequests(Message, frozen=True, kw_only=True):
    """The answer to `MoveRequests`: those that left the worker, now or before."""

    address: ClassVar[Address] = Address("ctl", "edge", "move-requests-answer", route=("inbox",))

    request_ids: tuple[str, ...]
