"""The stream of events, read by a durable consumer: what wasn't acknowledged comes again, also to the next process."""

from contextlib import suppress
from typing import Final, NamedTuple

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from pointsman_recorder.domain.entry import Entry, entry
from pointsman_runtime.events import Events
from pointsman_runtime.stores import EVENT_STREAM, EVENT_SUBJECTS

BATCH: Final = 256
_WAIT_S: Final = 1.0
_ACK_WAIT_S: Final = 30.0
"""How long a batch may take; then it comes again."""
_DAY_S: Final = 86400.0
_FOR_EVER_DAYS: Final = 36500.0


class Unreadable(NamedTuple):
    """What an operator may know of an event that can't be read."""

    subject: str
    size: int
    """Bytes."""
    sequence: int
    """Its place in the stream."""


class Batch:
    """Some events as they came, and what they are."""

    def __init__(self, messages: list[Msg]) -> None:
        self._messages = messages
        self.entries: list[Entry] = []
        self.unreadable: list[Unreadable] = []
        for message in messages:
            metadata = message.metadata
            position = f"{metadata.stream}:{metadata.sequence.stream}"
            stored_ms = round(metadata.timestamp.timestamp() * 1000)
            read = entry(message.headers or {}, message.data, position, stored_ms)
            if read is None:
                self.unreadable.append(Unreadable(message.subject, len(message.data), metadata.sequence.stream))
            else:
                self.entries.append(read)

    @property
    def behind(self) -> int:
        """Events that follow it."""
        return self._messages[-1].metadata.num_pending

    async def acknowledge(self) -> None:
        """It is kept: it needn't come again."""
        # Each by itself: one for all up to the last would stand for those too that a lost connection swallowed.
        for message in self._messages:
            await message.ack()


class EventFeed:
    """One durable consumer, by its name."""

    def __init__(self, events: Events, durable: str) -> None:
        self._events = events
        self._durable = durable
        self._subscription: JetStreamContext.PullSubscription | None = None

    async def open(self, *, from_the_beginning: bool) -> float:
        """Begin to read where the last process left off; returns how many days the stream keeps an event.

        `from_the_beginning`: read everything that the stream has, wherever somebody left off.
        """
        # Somebody may have deleted it; the loss of a server's store is noticed at the next connection.
        config = (await self._events.make_event_stream()).config
        js = await self._events.jetstream()
        after = 0
        with suppress(NotFoundError):  # nobody has read it
            left = await js.consumer_info(EVENT_STREAM, self._durable)
            if left.ack_floor is not None and not from_the_beginning:
                after = left.ack_floor.stream_seq
            # What a process had in hand when it died would come after `ack_wait`; made anew, it comes at once.
            if from_the_beginning or left.num_ack_pending:
                await js.delete_consumer(EVENT_STREAM, self._durable)
        self._subscription = await js.pull_subscribe(
            EVENT_SUBJECTS,
            durable=self._durable,
            stream=EVENT_STREAM,
            config=ConsumerConfig(
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=_ACK_WAIT_S,
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=after + 1,
                max_ack_pending=4 * BATCH,
            ),
        )
        return config.max_age / _DAY_S if config.max_age else _FOR_EVER_DAYS

    async def next(self) -> Batch | None:
        """The next events; None when none came for a second."""
        if self._subscription is None:
            raise RuntimeError("the feed isn't open")
        try:
            messages = await self._subscription.fetch(BATCH, timeout=_WAIT_S)
        except TimeoutError:
            return None
        return Batch(messages) if messages else None

    async def close(self) -> None:
        """Read no more; another process goes on where this one is."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()
