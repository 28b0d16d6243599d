"""Messages on NATS, as one service sends and receives them: signals, events, questions."""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeVar

from pointsman_contracts.headers import MESSAGE_ID, TRACEPARENT
from pointsman_contracts.journey import JOURNEY_LIMIT
from pointsman_contracts.message import Message
from pointsman_contracts.subjects import subject
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.addresses import KEPT, Addresses
from pointsman_runtime.bus.edge_clocks import EdgeClocks
from pointsman_runtime.bus.errors import MessageTooLarge, NoListener, NoReply
from pointsman_runtime.bus.fan_out import FanOut, Listener
from pointsman_runtime.bus.hub import Hub
from pointsman_runtime.bus.link import Link
from pointsman_runtime.bus.mailbox import Fifo, Handle, LatestWins, Mailbox
from pointsman_runtime.bus.replies import FutureWaiter, ReplyTable
from pointsman_runtime.telling.process import Process
from pointsman_runtime.telling.tallies import Tallies, Tally

M = TypeVar("M", bound=Message)


class _Channel:
    """A subject that messages of one type are published to, and the text that their headers share."""

    __slots__ = ("event_head", "head", "id_head", "is_event", "subject", "type_id")

    def __init__(self, message: type[Message], route: tuple[str, ...]) -> None:
        self.subject = subject(message, *route)
        self.is_event = message.address.kind == "evt"
        self.type_id = message.address.type_id
        self.head = message_headers.build(self.type_id).decode().removesuffix("\r\n")
        self.id_head = f"{MESSAGE_ID}: {self.subject}:"
        """The beginning of an event's id; source and sequence follow."""
        self.event_head = self.head + self.id_head
        """The head of an event without a trace."""

    def headers(self, traceparent: str | None) -> bytes:
        """Those of a message without an id."""
        trace = f"{TRACEPARENT}: {traceparent}\r\n" if traceparent else ""
        return f"{self.head}{trace}\r\n".encode()


class Bus:
    """One service's view of the connection that requests wait for (`rpc`, `sig`, and the events of a request)."""

    def __init__(self, around: Hub | Link, process: Process) -> None:
        """`around`: the hub that the services of this process share, or a link for this service alone."""
        self._own_hub = not isinstance(around, Hub)
        self.hub = around if isinstance(around, Hub) else Hub(around, process.inbox)
        self.link: FanOut = self.hub.link
        self.outside: Link = self.hub.connection
        """Underneath `link`. The services of this process don't receive messages that are published on it."""
        self.replies: ReplyTable = self.hub.replies
        self.tallies: Tallies = self.hub.tallies
        self.clocks: EdgeClocks = self.hub.clocks
        self.process = process
        self.addresses = Addresses()
        self._channels: dict[tuple[object, ...], _Channel] = {}
        """By message and route: to build one costs more than to publish to it."""
        self.connections = 0
        """How often the connection was made. Messages published while it was lost never arrive here."""
        self._mailboxes: list[Mailbox] = []
        self._sids: list[int] = []
        self._connected = asyncio.Event()
        self.up = False
        """Whether the connection was there when it last changed: what each request asks needn't look itself."""
        self._back_at = -math.inf
        self._was_lost = False
        self._closed = False
        self.hub.on_connected.append(self._on_connected)
        self.hub.on_disconnected.append(self._on_disconnected)

    @property
    def connected(self) -> bool:
        """Whether messages can be sent now."""
        return self.outside.connected

    @property
    def missing(self) -> str | None:
        """Why messages can't be sent now; None when they can."""
        return None if self.outside.connected else f"bus disconnected: {self.outside.reason}"

    @property
    def back_for(self) -> float:
        """Seconds since a lost connection was made again; infinite when none was ever lost. Peers reconnect with
        delays of their own: shortly after a restart of the server, a missing stage may only be late."""
        return asyncio.get_running_loop().time() - self._back_at

    def open(self) -> None:
        """Begin to connect. Returns at once; an unreachable server is tried for ever."""
        self.hub.open()
        if self.connected:
            self.up = True
            self._connected.set()

    async def wait_connected(self) -> None:
        """Wait for the connection, without a bound."""
        await self._connected.wait()

    async def finish(self, timeout: float) -> None:  # noqa: ASYNC109 - a bound on the round trip
        """Wait until the server has taken everything sent so far, and every received message is handled.

        Raises BusDisconnected, and TimeoutError when the server takes longer than `timeout` seconds.
        """
        await self.link.flush(timeout)
        for mailbox in self._mailboxes:
            await mailbox.drain()

    async def close(self) -> None:
        """End every subscription of this service; disconnect, unless other services of this process use the
        connection."""
        if self._closed:
            return
        self._closed = True
        self._connected.clear()
        self.hub.on_connected.remove(self._on_connected)
        self.hub.on_disconnected.remove(self._on_disconnected)
        for sid in self._sids:
            self.link.unsubscribe(sid)
        if self._own_hub:
            await self.hub.close()

    def new_tally(self, name: str) -> Tally:
        """Counters for a subscription, shown in metrics under `name`."""
        return self.tallies.new_tally(name)

    def listen(
        self,
        message: type[M],
        handler: Callable[[M], None],
        *route: str,
        keep: Literal["all", "latest"] = "all",
        pending: int = 16384,
    ) -> None:
        """Call `handler` for every message of this type on this route (`ANY` and `REST` are allowed).

        `keep="latest"` hands over only the newest message of each subject when the handler falls behind;
        `keep="all"` drops the newest over `pending`. Drops are counted by subscription.
        """
        self._listen(message, handler, route, keep, pending)

    def answer(self, message: type[M], handler: Callable[[M], bytes], *route: str) -> None:
        """Call `handler` for every question of this type on this route, and send the bytes that it returns to the
        caller. For questions that a request waits for; `Events.handle` takes the others."""
        self._listen(message, handler, route, pending=4096)

    def _listen(
        self,
        message: type[M],
        handler: Callable[[M], bytes | None],
        route: tuple[str, ...],
        keep: Literal["all", "latest"] = "all",
        pending: int = 16384,
    ) -> None:
        tally = self.new_tally(message.address.type_id)
        listener = Listener(self.link, self.tallies, tally, message, handler)
        to = subject(message, *route)
        # No other process subscribes to a route that names this instance.
        exclusive = self.process.instance in route
        if keep == "latest":
            latest = LatestWins(tally, listener.handle, self.link.soon)
            self._mailboxes.append(latest)
            sid = self.link.attach(to, latest.take, exclusive=exclusive)
        else:
            fifo = listener.mailbox = self.make_mailbox(tally, listener.handle, pending=pending)
            sid = self.link.attach(
                to, fifo.take, exclusive=exclusive, told=listener.told, arrive=fifo.receive_from_wire
            )
        self._sids.append(sid)

    def make_mailbox(self, tally: Tally, handle: Handle, *, pending: int = 4096, concurrency: int = 256) -> Fifo:
        """A queue before `handle` that `finish` waits for. `pending` bounds the messages that wait, `concurrency` the
        coroutines that run."""
        mailbox = Fifo(tally, handle, self.link.soon, messages=pending, concurrency=concurrency)
        self._mailboxes.append(mailbox)
        return mailbox

    def publish(self, message: Message, *route: str, traceparent: str | None = None) -> None:
        """Send a signal, an event or a control message.

        An event gets a `Nats-Msg-Id` made of its subject, source and sequence, by which the stream drops
        duplicates, and is held until the stream has it. Raises PayloadTooLarge, MessageTooLarge for an event over
        64 KiB, and for other messages BusDisconnected and BusCongested; even then the services of this process have
        received it.
        """
        kind = type(message)
        channel = self._channels.get((kind, *route)) or self._channel(kind, route)
        if self.link.tell(channel.subject, message):
            return
        if channel.is_event:
            source, sequence = getattr(message, "source", None), getattr(message, "sequence", None)
            self._publish_event(channel, message.encode(), source, sequence, traceparent)
        else:
            self.outside.publish(channel.subject, message.encode(), headers=channel.headers(traceparent))

    def publish_via_server(self, message: Message, *route: str) -> None:
        """Publish a signal that proves something by coming back: the services of this process receive it once
        the server has taken it, and after everything that the server had for this process before. Never, when the
        connection is lost first."""
        kind = type(message)
        channel = self._channels.get((kind, *route)) or self._channel(kind, route)
        self.outside.publish(channel.subject, message.encode(), headers=channel.headers(None))
        self.outside.when_taken(partial(self.link.tell, channel.subject, message))

    def hasten(self) -> None:
        """Let the events that were just published leave sooner, where a scheduler in another process waits for them."""
        self.outside.hasten()

    def await_event(self, message: Message, *route: str, done: Callable[[], None]) -> None:
        """Write an event that was just published at once, and call `done` once the stream has it."""
        channel = self._channels.get((type(message), *route)) or self._channel(type(message), route)
        source, sequence = getattr(message, "source", None), getattr(message, "sequence", None)
        self.outside.await_event(f"{channel.event_head}{source}:{sequence}\r\n\r\n", done)

    def publish_written(
        self,
        message: type[Message],
        payload: bytes,
        source: str | None,
        sequence: int | None,
        *route: str,
        traceparent: str | None = None,
    ) -> None:
        """Publish an event that is already encoded: `payload` is a `message` with this source and sequence. The
        services of this process don't receive it."""
        channel = self._channels.get((message, *route)) or self._channel(message, route)
        self._publish_event(channel, payload, source, sequence, traceparent)

    def publish_to_peers(self, message: Message, *route: str) -> None:
        """Publish a signal to other processes only: the services of this process don't receive it."""
        kind = type(message)
        channel = self._channels.get((kind, *route)) or self._channel(kind, route)
        self.outside.publish(channel.subject, message.encode(), headers=channel.headers(None))

    async def ask(self, message: Message, *route: str, timeout: float = 1.0) -> bytes:  # noqa: ASYNC109 - no task, no wait_for
        """Send a question and wait for its one answer, which is returned undecoded.

        Raises NoReply after `timeout` seconds, NoListener at once when no process subscribes, and what
        `publish` raises.
        """
        to = self.addresses.message(type(message), route)
        waiter = FutureWaiter(self.replies)
        reply_to = self.replies.enter_waiter(waiter, asyncio.get_running_loop().time() + timeout)
        try:
            self.link.publish(to, message.encode(), reply_to, message_headers.build(message.address.type_id))
            headers, answer = await waiter.future
        except TimeoutError:
            raise NoReply(to, timeout) from None
        finally:
            self.replies.close(waiter)
        if not answer and message_headers.status(headers) == "503":
            raise NoListener(to)
        return answer

    def _publish_event(
        self, channel: _Channel, payload: bytes, source: str | None, sequence: int | None, traceparent: str | None
    ) -> None:
        if len(payload) > JOURNEY_LIMIT:
            raise MessageTooLarge(channel.type_id, JOURNEY_LIMIT, len(payload))
        head = channel.event_head
        if traceparent:
            head = f"{channel.head}{TRACEPARENT}: {traceparent}\r\n{channel.id_head}"
        self.outside.publish_relaxed(channel.subject, f"{head}{source}:{sequence}\r\n\r\n", payload)

    def _channel(self, message: type[Message], route: tuple[str, ...]) -> "_Channel":
        if len(self._channels) >= KEPT:
            self._channels.clear()
        channel = self._channels[message, *route] = _Channel(message, route)
        return channel

    def _on_connected(self) -> None:
        self.up = True
        self._connected.set()
        self.connections += 1
        if self._was_lost:
            self._back_at = asyncio.get_running_loop().time()

    def _on_disconnected(self) -> None:
        self._was_lost = True
        self.up = False
        self._connected.clear()
