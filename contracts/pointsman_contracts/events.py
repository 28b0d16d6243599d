"""The fields that messages which their publisher numbers have in common."""

from pointsman_contracts.message import Message


class Numbered(Message, frozen=True, kw_only=True):
    """A message that its publisher numbers: readers see which ones they missed."""

    source: str
    """Instance that published it."""
    sequence: int
    """Counts this source's messages of this type and route from 1, without gaps."""
    at_ms: int
    """When it was published, unless the message says otherwise: unix milliseconds."""


class RequestEvent(Numbered, frozen=True, kw_only=True):
    """An event in the course of a request."""

    request_id: str


class WorkerEvent(Numbered, frozen=True, kw_only=True):
    """An event of one worker."""

    pool: str
    worker: str
    boot_id: str
    """The worker's life."""
