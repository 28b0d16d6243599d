"""The usage ledger: the stream `PM_USAGE`, with one message for each request."""

from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
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

from pointsman_contracts.headers import MESSAGE_ID
from pointsman_contracts.subjects import REST, ROOT, subject
from pointsman_contracts.usage import NO_TENANT, UsageRecord
from pointsman_recorder.adapters.confirmations import Confirmations
from pointsman_recorder.adapters.pull import Pull, place_of
from pointsman_recorder.domain.usage_record import Owed, checked
from pointsman_recorder.settings import RecorderSettings
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.jetstream.events import Events
from pointsman_runtime.telling.logs import Log

STREAM: Final = "PM_USAGE"
SUBJECTS: Final = f"{ROOT}.{UsageRecord.address.kind}.{REST}"
_PUBLISH_S: Final = 5.0
_TWICE_WITHIN_S: Final = 20.0
"""Seconds within which the server recognizes a record that is written again, for as long as it keeps its key in memory.
Later, readers recognize it by its key."""

_TYPE: Final = UsageRecord.address.type_id
_HEAD: Final = message_headers.build(_TYPE).decode().removesuffix("\r\n") + f"{MESSAGE_ID}: "
"""The beginning of a record's headers, up to its key."""
_MOST_WRITTEN: Final = 16384
"""Records that are kept until they are read back; of more, the messages are decoded."""

_log = Log("ledger")


class LedgerPage(NamedTuple):
    """Some records of the ledger, in its order."""

    ledger: str
    """The ledger's identity; it changes when the stream is made anew."""
    records: list[UsageRecord]
    last: int
    """Sequence of the last one."""
    complete: bool
    """Nothing followed it when it was read."""
    unreadable: list[int]
    """Sequences of those among them that can't be read."""


@lru_cache(maxsize=4096)
def _subject(tenant: str) -> str:
    return subject(UsageRecord, tenant)


class UsageLedger:
    """Makes the stream where it isn't there, writes, and reads."""

    def __init__(self, events: Events, bus: Bus, settings: RecorderSettings) -> None:
        self._events = events
        self._bus = bus
        self._settings = settings
        self._pull = Pull(bus.outside, f"{bus.process.inbox}.ledger")
        self._confirmations = Confirmations(bus.outside, f"{bus.process.inbox}.written", _PUBLISH_S)
        self._written: Final[dict[bytes, UsageRecord]] = {}
        """Records that this process wrote and hasn't read back, by their messages."""
        events.on_connected(self._pull.renew_request)

    def send_records(self, records: Sequence[Owed]) -> None:
        """Add one or more records. Nothing confirms them: they are in the ledger once they are read there.

        Raises what `Link.publish` raises: then any of them may be written.
        """
        self._bus.outside.publish_all(
            [(_subject(each.tenant or NO_TENANT), f"{_HEAD}{each.key}\r\n\r\n", each.message) for each in records]
        )
        self._remember(records)
        self._pull.expect_messages(len(records))

    async def write_confirmed(self, records: Sequence[Owed]) -> None:
        """Add one or more records; returns once the server has confirmed all of them.

        Raises NotWritten, and what `Link.publish` raises: then any of them may be written.
        """
        reply_to = self._confirmations.begin_batch(len(records))
        for each in records:
            given = message_headers.build(_TYPE, message_id=each.key)
            self._bus.outside.publish(_subject(each.tenant or NO_TENANT), each.message, reply_to, given)
        self._remember(records)
        await self._confirmations.wait_for_all()

    def _remember(self, records: Sequence[Owed]) -> None:
        self._written.update({each.message: each.record for each in records if each.record is not None})
        while len(self._written) > _MOST_WRITTEN:
            del self._written[next(iter(self._written))]

    async def read_last_sequence(self) -> int:
        """Sequence of the last record. Raises nats-py's errors."""
        js = await self._events.jetstream()
        return (await js.stream_info(STREAM)).state.last_seq

    async def read(self, ledger: str, after: int) -> AsyncIterator[LedgerPage]:
        """Every record after this sequence of this ledger, for ever; from the first one when it is another ledger.

        Raises nats-py's errors, and Missed when the server's messages didn't all arrive: read again from there on.
        """
        js = await self._events.jetstream()
        info = await self._made()
        found = info.created.isoformat() if info.created is not None else ""
        last = after if found == ledger else 0
        # All its records may have expired.
        yield LedgerPage(found, [], last, info.state.last_seq <= last or not info.state.messages, [])
        consumer = await js.add_consumer(  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
            STREAM,
            ConsumerConfig(
                filter_subject=SUBJECTS,
                ack_policy=AckPolicy.NONE,
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=last + 1,
                inactive_threshold=60.0,
                mem_storage=True,
            ),
        )
        self._pull.open(STREAM, consumer.name, 0)
        try:
            while True:
                messages = await self._pull.next_messages()
                if not messages:
                    continue
                records: list[UsageRecord] = []
                unreadable: list[int] = []
                take = self._written.pop
                for message in messages:
                    payload = message[3]
                    written = take(payload, None)
                    try:
                        records.append(checked(UsageRecord.decode(payload)) if written is None else written)
                    except ValueError:  # pydantic's is one
                        unreadable.append(place_of(message).sequence)
                end = place_of(messages[-1])
                yield LedgerPage(found, records, end.sequence, end.following == 0, unreadable)
        finally:
            self._pull.close()

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
