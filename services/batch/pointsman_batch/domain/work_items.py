"""Items of work queues: read, checked, and turned into requests. Time is an argument."""

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from pointsman_batch.domain.lines import ENDPOINTS, LONGEST_ID, LineRefused, LineRequest, model_of_body
from pointsman_contracts.batch import WORK_PREFIX, make_batch_id
from pointsman_contracts.identity import Identity
from pointsman_contracts.message import JsonValue, MalformedMessage
from pointsman_contracts.work import NO_REPLY, WorkItem
from pointsman_core.config.work_queue import WorkQueue

INVALID: Final = "invalid_item"
ITEM_EXPIRED: Final = "item_expired"
TOO_LONG: Final = "answer_too_long"
LONGEST_WINDOW_MS: Final = 7 * 86_400_000
_LONGEST_REPLY: Final = 64
_DAY_MS: Final = 86_400_000


class StoredItem(NamedTuple):
    """A message of the stream of items, as it came."""

    queue: str
    data: bytes
    message_id: str
    """Its header `Nats-Msg-Id`; empty without one."""
    sequence: int
    stored_ms: int
    """When the stream got it, by the server's clock, which is the same for all replicas."""


class ItemKey(NamedTuple):
    """Names an item; each key has one result."""

    queue: str
    reply: str
    item: str


class WorkRequest(NamedTuple):
    """An item that can run."""

    key: ItemKey
    line: LineRequest
    callback: str
    expires_ms: int


class ItemRefused(ValueError):
    """An item that can't run; its producer is told by a result."""

    def __init__(self, key: ItemKey, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.param = param


def read_item(stored: StoredItem, queues: Mapping[str, WorkQueue]) -> WorkRequest:
    """Check an item. Raises ItemRefused."""
    key = ItemKey(stored.queue, NO_REPLY, stored.message_id[:LONGEST_ID] or f"sequence-{stored.sequence}")
    queue = queues.get(stored.queue)
    try:
        item = WorkItem.decode(stored.data)
    except MalformedMessage as error:
        raise ItemRefused(key, f"The item isn't a WorkItem: {error.problem}.", error.where or None) from None
    if not 0 < len(item.id) <= LONGEST_ID:
        raise ItemRefused(key, f"id must have 1 to {LONGEST_ID} characters.", "id")
    if not 0 < len(item.reply) <= _LONGEST_REPLY:
        raise ItemRefused(key, f"reply must have 1 to {_LONGEST_REPLY} characters.", "reply")
    key = ItemKey(stored.queue, item.reply, item.id)
    if queue is None:
        raise ItemRefused(key, f"The configuration has no queue {stored.queue!r}.")
    if item.endpoint not in ENDPOINTS:
        raise ItemRefused(key, f"endpoint must be one of {', '.join(ENDPOINTS)}.", "endpoint")
    if item.callback and not queue.allows_callback(item.callback):
        raise ItemRefused(key, "The queue's configuration doesn't allow this callback.", "callback")
    try:
        body = msgspec.json.encode(item.body)
        model = model_of_body(body)
    except LineRefused as refused:
        raise ItemRefused(key, str(refused), refused.param) from None
    except (ValueError, OverflowError) as error:
        raise ItemRefused(key, f"body can't be written as JSON: {type(error).__name__}.", "body") from None
    latest_ms = stored.stored_ms + LONGEST_WINDOW_MS
    asked_ms = stored.stored_ms + round(queue.window * 1000) if item.expires_ms is None else item.expires_ms
    batch = make_batch_id(WORK_PREFIX, max(0, stored.stored_ms) // _DAY_MS * _DAY_MS, f"-{stored.queue}")
    # An item that is published twice is one item.
    own = hashlib.sha256(f"{item.reply}\n{item.id}".encode("utf-8", "surrogatepass")).hexdigest()[:24]
    line = LineRequest(item.endpoint, model, body, batch, own)
    return WorkRequest(key, line, item.callback, min(asked_ms, latest_ms))


def identity_of(name: str, queue: WorkQueue) -> dict[str, JsonValue]:
    """The attribute `identity` of a queue's requests."""
    identity = Identity(tenant=queue.tenant, subject=queue.subject or f"queue/{name}")
    found: dict[str, JsonValue] = {"tenant": identity.tenant, "subject": identity.subject, "source": "queue"}
    if queue.models is not None:
        found["models"] = list(queue.models)
    return found
