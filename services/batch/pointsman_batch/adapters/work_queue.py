"""The streams of work queues: items are taken from one, results are written once into the other."""

import hashlib
from typing import Final

from nats.aio.msg import Msg
from nats.errors import MaxPayloadError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    Header,
    RawStreamMsg,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError, NotFoundError

from pointsman_batch.domain.work_items import TOO_LONG, ItemKey, StoredItem
from pointsman_contracts.subjects import ANY, REST, plain, subject
from pointsman_contracts.work import WORK_RESULTS_STREAM, WORK_STREAM, WorkItem, WorkResult
from pointsman_core.config.work_queue import QUEUE_NAME
from pointsman_runtime.jetstream.events import Events
from pointsman_runtime.telling.logs import Log

ACK_S: Final = 20.0
"""An item whose replica says nothing for so long is given to another one."""
MOST_ITEMS: Final = 1_000_000
"""Items that a full queue has; the server refuses further ones, and their producers are told."""
MOST_TAKEN: Final = 4096
"""Items of a queue that all replicas have in work."""
_IDLE_S: Final = 3600.0
"""The server deletes a consumer that no replica has asked for so long; its items stay."""
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_NOT_THE_FIRST: Final = (10071, 10164)
"""The server's codes for a write that isn't the first one of its subject."""

_log = Log("work-queue")


class TakenItem:
    """An item that this replica has in work."""

    def __init__(self, message: Msg) -> None:
        self._message: Final = message
        at = message.metadata
        self.stored: Final = StoredItem(
            queue=plain(message.subject.rpartition(".")[2]),
            data=message.data,
            message_id=(message.headers or {}).get(Header.MSG_ID, ""),
            sequence=at.sequence.stream,
            stored_ms=round(at.timestamp.timestamp() * 1000),
        )

    async def extend_lease(self) -> None:
        """Say that it is still in work."""
        await self._message.in_progress()

    async def end_item(self) -> None:
        """Remove it from the queue; returns when the server has done so."""
        await self._message.ack_sync(timeout=5.0)

    async def return_item(self, delay_s: float = 0.0) -> None:
        """Let a replica take it again."""
        await self._message.nak(delay=delay_s or None)


class WorkStreams:
    """Items and results. Methods raise nats errors and TimeoutError when JetStream can't be reached."""

    def __init__(self, events: Events, *, replicas: int, keep_days: float) -> None:
        """`keep_days`: how long results are kept, where this process makes the stream."""
        self._events: Final = events
        self._replicas: Final = replicas
        self._keep_s: Final = keep_days * 86_400
        self._pulls: Final[dict[str, JetStreamContext.PullSubscription]] = {}
        events.on_connected(self._pulls.clear)

    async def list_queues(self) -> set[str]:
        """The queues that have items."""
        js = await self._events.jetstream()
        try:
            info = await js.stream_info(WORK_STREAM, subjects_filter=subject(WorkItem, ANY))
        except NotFoundError:
            return set()
        return {plain(address.rpartition(".")[2]) for address in info.state.subjects or ()}

    async def take_items(self, queue: str, most: int, wait_s: float) -> list[TakenItem]:
        """Up to so many items of a queue; none when none came within this time."""
        try:
            pull = self._pulls.get(queue)
            if pull is None:
                pull = self._pulls[queue] = await self._find_consumer(queue)
            return [TakenItem(message) for message in await pull.fetch(most, timeout=wait_s)]
        except NatsTimeout:
            return []
        # After any failure the consumer may be gone: the next call finds it anew.
        except Exception:
            self._pulls.pop(queue, None)
            raise

    async def find_result(self, key: ItemKey) -> WorkResult | None:
        """The result of an item; None while it has none."""
        js = await self._events.jetstream()
        try:
            found: RawStreamMsg = await js.get_last_msg(WORK_RESULTS_STREAM, subject(WorkResult, *key))
        except NotFoundError:
            return None
        return WorkResult.decode(found.data or b"")

    async def write_once(self, key: ItemKey, result: WorkResult) -> WorkResult:
        """Write the result of an item; returns the one that it has now, which may be another replica's.

        The server compares: the write says that the subject has no message yet.
        """
        js = await self._events.jetstream()
        address = subject(WorkResult, *key)
        headers = {_EXPECTED: "0", "Pm-Type": WorkResult.address.type_id}
        try:
            await js.publish(address, result.encode(), headers=headers)
        except MaxPayloadError:
            short = WorkResult(
                id=result.id,
                sequence=result.sequence,
                request_id=result.request_id,
                error=TOO_LONG,
                message="The answer is longer than a message may be.",
                attempts=result.attempts,
                at_ms=result.at_ms,
            )
            return await self.write_once(key, short)
        except APIError as error:
            if error.err_code not in _NOT_THE_FIRST:
                raise
            found = await self.find_result(key)
            if found is None:  # it was deleted in between
                raise
            return found
        return result

    async def _find_consumer(self, queue: str) -> JetStreamContext.PullSubscription:
        js = await self._events.jetstream()
        await self._make(
            js,
            StreamConfig(
                name=WORK_STREAM,
                description="Items of work queues",
                subjects=[subject(WorkItem, ANY)],
                retention=RetentionPolicy.WORK_QUEUE,
                discard=DiscardPolicy.NEW,
                max_msgs=MOST_ITEMS,
            ),
        )
        await self._make(
            js,
            StreamConfig(
                name=WORK_RESULTS_STREAM,
                description="Results of items of work queues",
                subjects=[subject(WorkResult, REST)],
                retention=RetentionPolicy.LIMITS,
                max_age=self._keep_s,
                allow_direct=True,
            ),
        )
        return await js.pull_subscribe(  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
            subject(WorkItem, queue),
            durable=_durable(queue),
            stream=WORK_STREAM,
            config=ConsumerConfig(
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=ACK_S,
                max_ack_pending=MOST_TAKEN,
                inactive_threshold=_IDLE_S,
            ),
        )

    async def _make(self, js: JetStreamContext, config: StreamConfig) -> None:
        """Make a stream unless there is one: its owner may have set other limits."""
        try:
            await js.stream_info(str(config.name))
        except NotFoundError:
            config.storage = StorageType.FILE
            config.num_replicas = self._replicas
            await js.add_stream(config)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
            _log.info("work_stream_created", stream=config.name)


def _durable(queue: str) -> str:
    """The consumer of a queue. A name that no configuration may have can have characters that no consumer may have."""
    name = queue if QUEUE_NAME.fullmatch(queue) else hashlib.sha256(queue.encode("utf-8", "surrogatepass")).hexdigest()
    return f"batch-{name}"
