"""Copies of requests that other models answer, and how their answers compare. Nothing of a prompt or an answer."""

from typing import ClassVar

from pointsman_contracts.events import RequestEvent
from pointsman_contracts.message import Address, Part, always
from pointsman_contracts.response import Usage


class MirroredAnswer(Part, frozen=True, kw_only=True):
    """One of the two answers."""

    model: str
    """Name that the configuration knows the model by."""
    status: int | None = None
    """HTTP status; None without a whole answer."""
    ttft_ms: float | None = None
    """As in `ResponseCompleted` of each request, and so are the following: an edge measured both. None where the report
    of the copy's end didn't come."""
    duration_ms: float | None = None
    usage: Usage | None = None
    cost_nanos: int | None = None


class Likeness(Part, frozen=True, kw_only=True):
    """How alike two answers are."""

    same_text: bool
    words: float
    """Share of the words that both have in common, in [0,1]."""
    same_calls: bool | None = None
    """Whether both call tools with the same arguments; None where neither calls one."""


class MirrorCompared(RequestEvent, frozen=True, kw_only=True):
    """A copy of a request ended. `request_id` is that of the request which a client sent. Published by the mirror; for
    any reader."""

    address: ClassVar[Address] = Address("evt", "mirror", "compared", route=("mirror",))

    edge: str
    """Instance of the edge that had the request."""
    mirror: str
    """Name of the policy."""
    copy_id: str
    """Id of the copy: it is a request of its own, with its own events."""
    api: str
    stream: bool = always(False)
    outcome: str
    """Of the copy: `answered`, `refused` (an error with a status), `failed` (no answer, one that broke off, or one
    that ended with an error), `late` (no whole answer in time), `oversized` (an answer too large to compare)."""
    reason: str = always("")
    """Why it wasn't answered, in words without content of request or answer."""
    original: MirroredAnswer
    copy: MirroredAnswer
    likeness: Likeness | None = None
    """None where one of the answers can't be read."""
