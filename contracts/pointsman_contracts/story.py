"""The record of one request, as a recorder keeps it."""

from typing import ClassVar

from pointsman_contracts.message import NO_BYTES, Address, Blob, Message, Part, always


class StoryQuery(Message, frozen=True, kw_only=True):
    """Asks what happened to a request. Sent by tools; answered by a recorder with `Story`."""

    address: ClassVar[Address] = Address("ctl", "request", "story")

    request_id: str
    trace: str | None = None
    """Asked for where `request_id` is empty: the id of a trace (32 hexadecimal digits), of the requests that belong to
    it. Known of sampled requests."""


class DryRunQuery(Message, frozen=True, kw_only=True):
    """Asks where a request would go, without sending it. Sent by tools and the console; answered by an edge with
    `Story`: one event, of the decision, the rejection or the answer of a stage."""

    address: ClassVar[Address] = Address("ctl", "request", "dry-run")

    path: str
    """Of the API, e.g. `/v1/chat/completions`."""
    headers: tuple[tuple[str, str], ...] = always(())
    """They count as those of a trusted proxy."""
    body: Blob = always(NO_BYTES)


class KeptEvent(Part, frozen=True, kw_only=True):
    """One event as it was published."""

    type: str
    """Type id, e.g. `request.scheduled.v1`."""
    body: str
    """The JSON document."""


class Story(Message, frozen=True, kw_only=True):
    """The answer to `StoryQuery` and `DryRunQuery`."""

    address: ClassVar[Address] = Address("ctl", "request", "story-answer", route=("inbox",))

    recorder: str
    """Instance that answers: a recorder, or the edge of a dry run."""
    events: tuple[KeptEvent, ...] = always(())
    """In the order in which they were stored. A client that used the id several times has all of its requests here."""
    more: bool = always(False)
    """The oldest are missing, because there are more than a message takes."""
    behind: int = always(0)
    """Events that the recorder hasn't read yet."""
