"""The usage ledger: the stream `PM_USAGE`, with one message for each request."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import NotFoundError
from pydantic import ValidationError

from pointsman_contracts import headers
from pointsman_contracts.subjects import REST, ROOT, subject
from pointsman_contracts.usage import NO_TENANT, UsageRecord
from pointsman_recorder.settings import RecorderSettings
from pointsman_runtime.events import Events
from pointsman_runtime.logs import Log

STREAM: Final = "PM_USAGE"
SUBJECTS: Final = f"{ROOT}.{UsageRecord.address.kind}.{REST}"
_BATCH: Final = 256
_WAIT_S: Final = 1.0
_PUBLISH_S: Final = 5.0
_TWICE_WITHIN_S: Final = 600.0
"""How long the server itself recognises a record that is written again. Later, readers recognise it by its key."""

_log = Log("ledger")


class Page(NamedTuple):
    """Some records of the ledger, in its order."""

    ledger: str
    """Which ledger: one that was made anew is another one."""
    records: list[UsageRecord]
    last: int
    """Sequence of the last one."""
    complete: bool
    """Nothing followed it when it was read."""
    unreadable: list[int]
    """Sequences of those among them that can't be read."""


class Ledger:
    """Makes the stream where it isn't there, writes, and reads."""

    def __init__(self, events: Events, settings: RecorderSettings) -> None:
        self._events = events
        self._settings = settings

    async def write(self, records: Sequence[tuple[str, str, bytes]]) -> None:
        """Add records (key, tenant, message); returns once the server has all of them. Raises nats-py's errors, and
        then any of them may be written."""
        js = await self._events.jetstream()

        async def one(key: str, tenant: str, record: bytes) -> None:
            given = {headers.MESSAGE_ID: key, headers.TYPE: UsageRecord.address.type_id}
            await js.publish(subject(UsageRecord, tenant or NO_TENANT), record, timeout=_PUBLISH_S, headers=given)

        async with asyncio.TaskGroup() as group:
            for record in records:
                group.create_task(one(*record))

    async def read(self, ledger: str, after: int) -> AsyncIterator[Page]:
        """Every record after this sequence of this ledger, for ever; from the first one when it is another ledger.

        Raises nats-py's errors, and Missed when the server's messages didn't all arrive: read again from there on.
        """
        js = await self._events.jetstream()
        info = await self._made()
        found = info.created.isoformat() if info.created is not None else ""
        last = after if found == ledger else 0
        # What it had may all be gone by age.
        yield Page(found, [], last, info.state.last_seq <= last or not info.state.messages, [])
        subscription = await js.pull_subscribe(
            SUBJECTS,
            stream=STREAM,
            config=ConsumerConfig(
                ack_policy=AckPolicy.NONE,
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=last + 1,
                inactive_threshold=60.0,
                mem_storage=True,
            ),
        )
        begun = False
        try:
            while True:
                try:
                    messages = await subscription.fetch(_BATCH, timeout=_WAIT_S)
                except TimeoutError:
                    continue
                if not messages:
                    continue
                records: list[UsageRecord] = []
                unreadable: list[int] = []
                for message in messages:
                    sequence = message.metadata.sequence.stream
                    # The oldest may be gone, but nothing from the middle.
                    if begun and sequence != last + 1:
                        raise Missed(last)
                    begun, last = True, sequence
                    try:
                        records.append(UsageRecord.decode(message.data))
                    except ValidationError:
                        unreadable.append(sequence)
                yield Page(found, records, last, messages[-1].metadata.num_pending == 0, unreadable)
        finally:
            await subscription.unsubscribe()

    async def _made(self) -> StreamInfo:
        """The stream, made unless there is one: its owner may have set other limits."""
        js = await self._events.jetstream()
        settings = self._settings
        try:
            return await js.stream_info(STREAM)
        except NotFoundError:
            _log.info("usage_stream_created", stream=STREAM)
            return await js.add_stream(  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
                StreamConfig(
                    name=STREAM,
                    description="What each request used",
                    subjects=[SUBJECTS],
                    storage=StorageType.FILE,
                    retention=RetentionPolicy.LIMITS,
                    discard=DiscardPolicy.OLD,
                    max_age=settings.usage_max_age_s,
                    max_bytes=settings.usage_max_bytes,
                    num_replicas=settings.events_replicas,
                    duplicate_window=min(_TWICE_WITHIN_S, settings.usage_max_age_s),
                    allow_direct=True,
                )
            )


class Missed(Exception):
    """Records after this sequence didn't arrive."""

    def __init__(self, last: int) -> None:
        super().__init__(f"records after {last} didn't arrive")
