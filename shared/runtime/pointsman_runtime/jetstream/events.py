"""JetStream, buckets and occasional questions, on their own connection, so that slow ones don't delay journeys.

Handlers are FastStream's: at that rate its middlewares, test broker and AsyncAPI are worth more than the
microseconds that the journey saves by doing without (docs/adr/0001-two-ways-onto-the-bus.md).
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Literal, TypeVar

from faststream import AckPolicy, BaseMiddleware
from faststream.nats import NatsMessage
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import SlowConsumerError
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig, StreamInfo, SubjectTransform
from nats.js.errors import NotFoundError

from pointsman_contracts.message import MalformedMessage, Message
from pointsman_contracts.subjects import EVENT_SUBJECTS, OWED_SUBJECTS, subject
from pointsman_runtime.bus.backoff import OUTSTANDING_PINGS, PING_INTERVAL_S, full_jitter
from pointsman_runtime.bus.lasting_client import connection_words
from pointsman_runtime.bus.mailbox import Overflow
from pointsman_runtime.jetstream.errors import jetstream_words
from pointsman_runtime.jetstream.lasting_broker import EventServer, LastingBroker, security
from pointsman_runtime.jetstream.stores import EVENT_STREAM
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.process import Process
from pointsman_runtime.telling.tallies import Tallies, Tally

PENDING: Final = 4096
"""Messages that may wait for one handler."""
LOOK_S: Final = 4.0
"""How often, at most, a service looks whether the stream of events is still there."""
_KNOWN_S: Final = 5.0
"""Seconds within which the server recognizes an event that is published again. It keeps the ids of these seconds in
memory. With those of two minutes, its garbage collection takes more CPU time than all its messages at 4,000
requests/s. Readers recognize a later repetition by its id."""
_KNOWN_IN_CLUSTER_S: Final = 60.0
"""The same where the stream has several copies. A new leader may store what the former one left when publishers have
already begun to send it again: after as long as the stream had no leader. Elections take some seconds, restarts of most
servers longer."""

M = TypeVar("M", bound=Message)

_log = Log("events")


class Events:
    """FastStream handlers, JetStream and key-value buckets of one process."""

    def __init__(self, settings: EventServer, process: Process, tallies: Tallies) -> None:
        self._settings = settings
        self._tallies = tallies
        self._client: Client | None = None
        self._attempts = 0
        self._closing = False
        self.on_event_stream: Callable[[bool], None] = _ignored
        """Called whenever the stream of events was looked at, with whether it takes events that are sent again."""
        self._told_unchanged = False
        """Whether it was logged that the stream of events can't be changed."""
        self._reason = "not connected yet"
        self._connected = asyncio.Event()
        self._on_connected: list[Callable[[], None]] = []
        self._connecting: asyncio.Task[None] | None = None
        self._overflows: dict[str, Overflow] = {}
        """By the subject of the subscription."""
        self.broker = LastingBroker(
            settings.nats_servers,
            name=f"{process.service} {process.instance} events",
            security=security(settings),
            max_reconnect_attempts=-1,
            # Between tries of the first connection; later ones take `reconnect_to_server_handler`. nats-py sleeps for
            # it and says `int`.
            reconnect_time_wait=random.uniform(0.2, 1.0),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            reconnect_to_server_handler=self._full_jitter,
            # nats-py sleeps for it and says `int`. No request waits for this connection.
            ping_interval=PING_INTERVAL_S,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            max_outstanding_pings=2 * OUTSTANDING_PINGS,
            pending_size=0,
            # One token deeper than the answers to the journey's connection, which would otherwise get these too.
            inbox_prefix=f"{process.inbox}.events",
            disconnected_cb=self._disconnected,
            reconnected_cb=self._reconnected,
            apply_types=False,
            logger=None,
            ack_policy=AckPolicy.ACK,
            middlewares=(partial(_Guard, tallies=tallies),),
        )
        self.broker.tls = settings.nats_tls()
        self.broker.report_errors_to(self._failed)

    @property
    def reason(self) -> str | None:
        """Why there is no connection; None when there is one."""
        return None if self._connected.is_set() else self._reason

    def handle(
        self,
        message: type[M],
        handler: Callable[[M], Message | Awaitable[Message | None] | None],
        *route: str,
        group: str = "",
    ) -> None:
        """Call `handler` for messages of this type on this route; a message that it returns is the answer. Of the
        processes with the same `group`, one gets each message.

        A message that can't be decoded is counted and dropped with one log line; an exception is counted and
        logged once. An event that arrives while `PENDING` others wait is dropped and counted.
        """
        tally = self._tallies.new_tally(message.address.type_id)

        async def decode(msg: NatsMessage) -> M:
            try:
                return message.decode(msg.body)
            except MalformedMessage as error:
                raise _Unhandled(tally) from error

        async def receive(decoded: M) -> bytes | None:
            try:
                outcome = handler(decoded)
                answer = await outcome if isinstance(outcome, Awaitable) else outcome
            # Any error is counted and logged, and the next message is handled.
            except Exception as error:
                raise _Unhandled(tally) from error
            tally.handled += 1
            return None if answer is None else answer.encode()

        address = subject(message, *route)
        self._overflows[address] = Overflow(tally)
        subscriber = self.broker.subscriber(address, queue=group, decoder=decode, pending_msgs_limit=PENDING)
        subscriber(receive)

    def on_connected(self, action: Callable[[], None]) -> None:
        """Call after every connection and reconnection."""
        self._on_connected.append(action)

    async def jetstream(self) -> JetStreamContext:
        """JetStream on this connection, once there is one."""
        await self._connected.wait()
        if self._client is None:
            raise RuntimeError("connected without a client")
        return self._client.jetstream(timeout=5.0)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py

    def open(self) -> None:
        """Begin to connect. Doesn't wait; a server that isn't there is tried for ever."""
        self._connecting = asyncio.get_running_loop().create_task(self._open())

    async def close(self) -> None:
        """Let handlers finish and disconnect."""
        self._closing = True
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._client is not None:
            try:
                await self.broker.stop()
            except NatsError:
                # Nothing can be drained without a connection.
                await self._client.close()

    async def keep_events(self) -> None:
        """Make the stream of events where it is missing, for ever: a server that comes back may have lost it, and
        it may be deleted at any time."""
        again = asyncio.Event()
        self.on_connected(again.set)
        while True:
            again.clear()
            await try_until_done("event stream", self.make_event_stream)
            try:
                async with asyncio.timeout(random.uniform(0.5, 1.0) * LOOK_S):
                    await again.wait()
            except TimeoutError:
                pass

    async def make_event_stream(self) -> StreamInfo:
        """The stream that keeps every event, made unless there is one: its owner may have set other limits."""
        settings = self._settings
        js = await self.jetstream()
        try:
            info = await js.stream_info(EVENT_STREAM)
        except NotFoundError:
            info = await js.add_stream(  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
                StreamConfig(
                    name=EVENT_STREAM,
                    description="Every decision, rejection and completion",
                    subjects=[EVENT_SUBJECTS, OWED_SUBJECTS],
                    subject_transform=SubjectTransform(src=OWED_SUBJECTS, dest=EVENT_SUBJECTS),
                    storage=StorageType.FILE,
                    retention=RetentionPolicy.LIMITS,
                    discard=DiscardPolicy.OLD,
                    max_age=settings.events_max_age_s,
                    max_bytes=settings.events_max_bytes,
                    num_replicas=settings.events_replicas,
                    duplicate_window=min(_known_s(settings), settings.events_max_age_s),
                    allow_direct=True,
                )
            )
            _log.info("event_stream_created", stream=EVENT_STREAM)
        takes_again = OWED_SUBJECTS in (info.config.subjects or ())
        if not takes_again and not self._told_unchanged:
            takes_again = await self._listen_for_owed_events()
        self.on_event_stream(takes_again)
        return info

    async def _listen_for_owed_events(self) -> bool:
        """Let a stream that an earlier version or its owner made take events that are sent again; whether it does."""
        if self._client is None:
            raise RuntimeError("connected without a client")
        # As the server has it: nats-py leaves out settings that it doesn't know.
        info = json.loads((await self._client.request(f"$JS.API.STREAM.INFO.{EVENT_STREAM}", timeout=5.0)).data)
        wanted = info["config"] | {
            "subjects": [*info["config"]["subjects"], OWED_SUBJECTS],
            "subject_transform": {"src": OWED_SUBJECTS, "dest": EVENT_SUBJECTS},
        }
        try:
            request = json.dumps(wanted).encode()
            answer = json.loads(
                (await self._client.request(f"$JS.API.STREAM.UPDATE.{EVENT_STREAM}", request, 5.0)).data
            )
            problem = answer["error"]["description"] if "error" in answer else ""
        except (TimeoutError, NatsError):
            problem = "no answer; the login may not be allowed to change the stream"
        if not problem:
            _log.info("event_stream_changed", stream=EVENT_STREAM, added=OWED_SUBJECTS)
            return True
        # Where services have logins, only the server's owner may change a stream.
        self._told_unchanged = True
        _log.error(
            "event_stream_not_changed",
            stream=EVENT_STREAM,
            reason=problem,
            hint=f"add the subject {OWED_SUBJECTS}, and a transform of it to {EVENT_SUBJECTS}; until then, events that "
            "the stream misses are lost, and not counted",
        )
        return False

    async def _open(self) -> None:
        self._client = await self.broker.connect()
        await self.broker.start()
        # Subscriptions exist before this service is announced as ready.
        try:
            await self._client.flush()
        except NatsError:
            return  # lost again already; `_reconnected` tells when it is back
        self._note_connected()

    def _full_jitter(self, pool: object, info: object) -> tuple[None, float]:
        del pool, info
        self._attempts += 1
        return None, full_jitter(self._attempts)

    def _note_connected(self) -> None:
        self._attempts = 0
        self._reason = ""
        self._connected.set()
        for action in self._on_connected:
            action()

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            overflow = self._overflows.get(error.sub.subject)
            if overflow is not None:
                overflow.dropped_one(PENDING)
            return
        self._reason = connection_words(error)

    async def _disconnected(self) -> None:
        if self._connected.is_set() and not self._closing:
            _log.warning("events_disconnected", reason=self._reason)
        self._connected.clear()

    async def _reconnected(self) -> None:
        _log.info("events_reconnected")
        self._note_connected()


def _ignored(takes_again: bool) -> None:
    del takes_again


class _Unhandled(Exception):
    """A message that couldn't be decoded or whose handler raised, as the cause shows."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(tally.name)
        self.tally = tally


class _Guard(BaseMiddleware[Any, Any]):
    """Counts and drops messages that can't be decoded or handled: one bad message must not end a subscription."""

    def __init__(self, msg: Any, /, *, context: Any, tallies: Tallies) -> None:
        super().__init__(msg, context=context)
        self._tallies = tallies

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
        try:
            return await call_next(msg)
        except _Unhandled as unhandled:
            error = unhandled.__cause__
            if isinstance(error, MalformedMessage):
                self._tallies.count_malformed(unhandled.tally, msg.raw_message.subject, msg.body, error)
            else:
                unhandled.tally.failed += 1
                _log.error("handler_failed", error, subscription=unhandled.tally.name)
        return None


async def try_until_done(
    what: str, action: Callable[[], Awaitable[object]], *, again_after_s: float = 1.0
) -> Literal[True]:
    """Repeat an action on JetStream until it works; the first failure of each kind is logged."""
    said = ""
    while True:
        try:
            await action()
        except (NatsError, OSError, TimeoutError) as error:
            reason = jetstream_words(error)
            if reason != said:
                said = reason
                _log.warning("jetstream_unavailable", wanted=what, reason=reason)
            await asyncio.sleep(random.uniform(0.5, 1.0) * again_after_s)
        else:
            return True


def _known_s(settings: EventServer) -> float:
    if settings.events_known_s is not None:
        return settings.events_known_s
    return _KNOWN_IN_CLUSTER_S if settings.events_replicas > 1 else _KNOWN_S
