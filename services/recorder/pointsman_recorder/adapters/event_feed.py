"""The stream of events, read by a durable consumer: what wasn't acknowledged comes again, also to the next process.

The recorder's own place counts where the consumer's isn't known, because it was deleted and not made again."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Self

from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from pointsman_contracts.subjects import EVENT_SUBJECTS
from pointsman_recorder.adapters.event_headers import read_headers
from pointsman_recorder.adapters.event_table import ReadPlace
from pointsman_recorder.adapters.pull import BATCH, Place, Pull, place_of
from pointsman_recorder.domain.entry import RecordedEvent, entry
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.wire import Raw
from pointsman_runtime.jetstream.events import Events
from pointsman_runtime.jetstream.stores import EVENT_STREAM

_ACK_WAIT_S: Final = 30.0
"""Seconds that a batch may take; then it is delivered again."""
_PIECE: Final = 32
"""Events that are read before other work of the process has its turn."""
_DAY_S: Final = 86400.0
_FOR_EVER_DAYS: Final = 36500.0


class Unreadable(NamedTuple):
    """The facts about an unreadable event that an operator may see."""

    subject: str
    size: int
    """Bytes."""
    sequence: int
    """Its place in the stream."""


class Batch:
    """Some events as received, and their decoded form."""

    def __init__(self, last: Raw) -> None:
        self.entries: list[RecordedEvent] = []
        self.unreadable: list[Unreadable] = []
        self.acknowledge = last[1].decode()
        """Subject of the acknowledgement."""
        self.sequence, _, _, self.behind = place_of(last)

    @classmethod
    async def from_messages(cls, messages: list[Raw]) -> Self:
        """Read one or more messages, piece by piece; the event loop runs other tasks between the pieces."""
        batch = cls(messages[-1])
        for start in range(0, len(messages), _PIECE):
            batch._read(messages[start : start + _PIECE])
            await asyncio.sleep(0)
        return batch

    def _read(self, messages: Sequence[Raw]) -> None:
        message = messages[0]

        def place() -> Place:
            return place_of(message)

        def stored_ms() -> int:
            return place().stored_ns // 1_000_000

        keep = self.entries.append
        for message in messages:
            subject, _, headers, payload = message
            kind, name, trace = read_headers(headers)
            read = entry(kind, name or f"{EVENT_STREAM}:{place().sequence}", payload, stored_ms, trace)
            if read is not None:
                keep(read)
            else:
                self.unreadable.append(Unreadable(subject.decode("utf-8", "replace"), len(payload), place().sequence))


class EventFeed:
    """One durable consumer, by its name."""

    def __init__(self, events: Events, bus: Bus, durable: str) -> None:
        self._events = events
        self._link = bus.outside
        self._durable = durable
        self._pull = Pull(bus.outside, f"{bus.process.inbox}.feed")
        self._stream = ""
        """See `ReadPlace.stream`."""
        events.on_connected(self._pull.renew_request)

    async def open_feed(self, kept: ReadPlace, *, from_the_beginning: bool) -> float:
        """Begin to read where the last process stopped; returns how many days the stream keeps an event.

        `kept`: the place up to which the store has everything. `from_the_beginning`: read the whole stream, including
        events that were read before.
        """
        # The stream may be deleted by others; the loss of a server's store is noticed at the next connection.
        stream = await self._events.make_event_stream()
        js = await self._events.jetstream()
        after = delivered = 0
        self._stream = stream.created.isoformat() if stream.created is not None else ""
        # A server that lost its store may number events anew in a stream of the same age.
        if kept.stream == self._stream and kept.sequence <= stream.state.last_seq and not from_the_beginning:
            after = kept.sequence
        found = False
        with suppress(NotFoundError):  # nothing has read it yet
            left = await js.consumer_info(EVENT_STREAM, self._durable)
            found = True
            if left.ack_floor is not None and not from_the_beginning:
                after = max(after, left.ack_floor.stream_seq)
            # Messages in flight when a process died are delivered again only after `ack_wait`; with a new consumer they
            # come at once. Earlier versions acknowledged each event by itself.
            if from_the_beginning or left.num_ack_pending or left.config.ack_policy != AckPolicy.ALL:
                await js.delete_consumer(EVENT_STREAM, self._durable)
                found = False
            elif left.delivered is not None:
                delivered = left.delivered.consumer_seq
        if not found:
            wanted = ConsumerConfig(
                durable_name=self._durable,
                filter_subject=EVENT_SUBJECTS,
                ack_policy=AckPolicy.ALL,
                ack_wait=_ACK_WAIT_S,
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=after + 1,
                max_ack_pending=4 * BATCH,
            )
            await js.add_consumer(EVENT_STREAM, wanted)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        self._pull.open(EVENT_STREAM, self._durable, delivered)
        return stream.config.max_age / _DAY_S if stream.config.max_age else _FOR_EVER_DAYS

    async def next_batch(self) -> Batch | None:
        """The next events; None when none came for some seconds. Raises Missed: open it again."""
        messages = await self._pull.next_messages()
        return await Batch.from_messages(messages) if messages else None

    def place_after(self, batch: Batch) -> ReadPlace:
        """The place up to which everything is kept once the batch is."""
        return ReadPlace(self._stream, batch.sequence)

    def acknowledge_batch(self, batch: Batch) -> None:
        """It is kept, and so is everything before it: it needn't come again."""
        self._link.publish(batch.acknowledge, b"")

    def close(self) -> None:
        """Stop reading; another process continues from this place."""
        self._pull.close()
