"""Work queues: requests that programs give to the gateway as messages, and their results."""

from typing import ClassVar, Final

from pointsman_contracts.message import Address, JsonValue, Message, always

WORK_STREAM: Final = "PM_WORK"
WORK_RESULTS_STREAM: Final = "PM_WORK_RESULTS"
NO_REPLY: Final = "-"
"""The `reply` of an item that names none."""


class WorkItem(Message, frozen=True, kw_only=True):
    """A request that a program gives to the gateway without HTTP. Kept in the stream `PM_WORK` until its result is
    kept. Published by producers; read by the service `batch`."""

    address: ClassVar[Address] = Address("work", "queue", "item", route=("queue",))

    id: str
    """Chosen by the producer. An item has one result: a second item with the same `id` and `reply` isn't run."""
    endpoint: str = always("/v1/chat/completions")
    """Path of the request."""
    body: dict[str, JsonValue]
    """The request, as the path takes it; without `stream`."""
    reply: str = always(NO_REPLY)
    """A token of the result's subject, by which several producers of a queue tell their results apart."""
    callback: str = always("")
    """A URL that gets the result, too; it must begin with one of the queue's `callbacks`."""
    expires_ms: int | None = None
    """When the item is given up, in unix milliseconds; None: after the queue's `window`."""


class WorkResult(Message, frozen=True, kw_only=True):
    """The result of an item: the answer, or the reason why there is none. Written once into the stream
    `PM_WORK_RESULTS`. Published by the service `batch`; read by producers."""

    address: ClassVar[Address] = Address("work", "queue", "result", route=("queue", "reply", "item"))

    id: str
    """The id of the item (`WorkItem.id`); of an item that couldn't be read, its header `Nats-Msg-Id`, or
    `sequence-<sequence>`."""
    sequence: int
    """The item's number in the stream `PM_WORK`, as the server's acknowledgement told the producer."""
    request_id: str = always("")
    """The id of the request that was answered; empty when none was."""
    status: int | None = None
    """HTTP status of the answer; None when there is none."""
    body: JsonValue = None
    """The answer: its JSON document, or else its text."""
    error: str = always("")
    """Code of the reason why there is no answer: `invalid_item`, `item_expired`, `answer_too_long`, `no_answer`."""
    message: str = always("")
    """The reason in words."""
    param: str | None = None
    """The field of the item that is wrong."""
    attempts: int = always(0)
    at_ms: int
    """When the result was written, in unix milliseconds."""
