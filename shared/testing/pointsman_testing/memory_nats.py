"""An in-memory NATS: the same behaviour for one process, without sockets.

It keeps subject matching, queue groups, "no responders", `max_payload` and the connection's coming and going.
It has no JetStream.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence

from pointsman_runtime.bus.errors import BusDisconnected, PayloadTooLarge
from pointsman_runtime.bus.fan_out import matches
from pointsman_runtime.bus.wire import Intake, Receiver

_NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


class MemoryNats:
    """The server: routes messages among its links, each in a later turn of the event loop, in order."""

    def __init__(self, *, max_payload: int = 8 * 1024 * 1024) -> None:
        self.max_payload = max_payload
        self._links: list[MemoryLink] = []
        self._deal = itertools.count()
        self.running = True

    def link(self, *, echo: bool = False) -> "MemoryLink":
        """A new client connection. `echo`: whether its own subscriptions get the messages that it publishes."""
        link = MemoryLink(self, echo)
        self._links.append(link)
        return link

    def stop(self) -> None:
        """Go away; every link notices."""
        self.running = False
        for link in self._links:
            link.lose("the server went away")

    def start(self) -> None:
        """Come back; every open link reconnects."""
        self.running = True
        for link in self._links:
            link.find()

    def route(
        self, subject: str, payload: bytes, reply: str, headers: bytes, sender: "MemoryLink | None" = None
    ) -> None:
        """Deliver one message to every subscription but the sender's own, and to one member of every queue group."""
        plain: list[Receiver] = []
        groups: dict[str, list[Receiver]] = {}
        for link in self._links:
            if link.connected and link is not sender:
                for pattern, queue, receiver in link.interests():
                    if matches(pattern, subject):
                        (groups.setdefault(queue, []) if queue else plain).append(receiver)
        chosen = plain + [members[next(self._deal) % len(members)] for members in groups.values()]
        if chosen:
            for receiver in chosen:
                receiver(subject, reply, headers, payload)
        elif reply:
            self.route(reply, b"", "", _NO_RESPONDERS)


class MemoryLink:
    """One client's connection; implements `pointsman_runtime.bus.link.Link`."""

    def __init__(self, server: MemoryNats, echo: bool) -> None:
        self._server = server
        self._echo = echo
        self._interests: dict[int, tuple[str, str, Receiver]] = {}
        self._sids = itertools.count(1)
        self._open = False
        self._connected = False
        self._kept: list[tuple[str, str, bytes]] = []
        self.hasty = False
        self.reason = "not connected yet"
        self.on_connected: Callable[[], None] = lambda: None
        self.on_disconnected: Callable[[str], None] = lambda _: None
        self.on_refused: Callable[[str], None] = lambda _: None

    @property
    def connected(self) -> bool:
        """See `Link.connected`."""
        return self._connected

    @property
    def max_payload(self) -> int:
        """See `Link.max_payload`."""
        return self._server.max_payload

    def open(self) -> None:
        """See `Link.open`."""
        self._open = True
        self.find()

    def find(self) -> None:
        """Connect when the server runs."""
        if self._open and not self._connected and self._server.running:
            self._connected = True
            self.reason = ""
            kept, self._kept = self._kept, []
            for message in kept:
                self.publish_relaxed(*message)
            self.on_connected()

    def lose(self, reason: str) -> None:
        """Notice that the server is gone."""
        if self._connected:
            self._connected = False
            self.reason = reason
            self.on_disconnected(reason)

    def interests(self) -> list[tuple[str, str, Receiver]]:
        """Pattern, queue group and receiver of each subscription."""
        return list(self._interests.values())

    def subscribe(self, subject: str, receiver: Receiver, queue: str = "") -> int:
        """See `Link.subscribe`."""
        sid = next(self._sids)
        self._interests[sid] = (subject, queue, receiver)
        return sid

    def gather(self, subject: str, intake: Intake) -> int:
        """See `Link.gather`."""

        def take(subject: str, reply: str, headers: bytes, payload: bytes) -> None:
            if reply:
                intake.messages.append((subject.encode(), reply.encode(), headers, payload))
                intake.arrived()
            else:
                intake.other(subject, reply, headers, payload)

        return self.subscribe(subject, take)

    def unsubscribe(self, sid: int) -> None:
        """See `Link.unsubscribe`."""
        self._interests.pop(sid, None)

    def stop_delivery(self, sid: int) -> None:
        """See `Link.stop_delivery`. A message is never in flight for longer than a turn of the loop."""
        self._interests.pop(sid, None)

    def publish_relaxed(self, subject: str, headers: str, payload: bytes) -> None:
        """See `Link.publish_relaxed`. Messages wait for a connection and nothing else."""
        if self._connected:
            self.publish(subject, payload, "", headers.encode())
        else:
            self._kept.append((subject, headers, payload))

    def publish_all(self, messages: Sequence[tuple[str, str, bytes]]) -> None:
        """See `Link.publish_all`."""
        for subject, headers, payload in messages:
            self.publish(subject, payload, "", headers.encode())

    def publish(self, subject: str, payload: bytes, reply: str = "", headers: bytes = b"") -> None:
        """See `Link.publish`."""
        if not self._connected:
            raise BusDisconnected(self.reason)
        size = len(payload) + len(headers)
        if size > self.max_payload:
            raise PayloadTooLarge(self.max_payload, size)
        asyncio.get_running_loop().call_soon(
            self._server.route, subject, payload, reply, headers, None if self._echo else self
        )

    def soon(self, work: Callable[[], None]) -> None:
        """See `Link.soon`."""
        asyncio.get_running_loop().call_soon(work)

    def when_taken(self, work: Callable[[], object]) -> None:
        """See `Link.when_taken`."""
        asyncio.get_running_loop().call_soon(lambda: work() if self._connected else None)

    def allow_haste(self, allowed: bool) -> None:
        """See `Link.allow_haste`."""
        self.hasty = allowed

    def hasten(self) -> None:
        """See `Link.hasten`. Nothing waits."""

    def await_event(self, headers: str, done: Callable[[], None]) -> None:
        """See `Link.await_event`. Nothing waits."""
        del headers
        done()

    async def flush(self, timeout: float) -> None:  # noqa: ASYNC109 - as in Link
        """See `Link.flush`."""
        del timeout
        if not self._connected:
            raise BusDisconnected(self.reason)
        await asyncio.sleep(0)

    async def close(self) -> None:
        """See `Link.close`."""
        await asyncio.sleep(0)
        self._open = False
        self._connected = False
        self.reason = "closed"
