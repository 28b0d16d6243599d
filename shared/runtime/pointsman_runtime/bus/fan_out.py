"""One link shared by the services of a process.

A message from one of them reaches the others directly: the link doesn't echo. Of equal subscriptions the server sees
one. A message to a queue group, or a question, that a service of this process takes doesn't leave it.

A `Listener` decodes the messages of one subscription and hands them to a function.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from pointsman_contracts.message import MalformedMessage, Message
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.bus.link import Link, PubSub
from pointsman_runtime.bus.mailbox import Delivery, Fifo
from pointsman_runtime.bus.wire import Receiver
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.tallies import Tallies, Tally

M = TypeVar("M", bound=Message)
Take = Callable[[Delivery], None]
Tell = Callable[[str, Any], None]
"""Takes the subject and a message of this process."""
INBOXES: Final = "_INBOX."
KEPT: Final = 8192
"""Subjects whose subscriptions are kept; with more in use, all are forgotten and looked for again."""

_log = Log("bus")


class _Interest:
    """The subscriptions of this process to one pattern."""

    __slots__ = ("arrive", "arriving", "exclusive", "group", "remote", "takers", "told")

    def __init__(self, *, group: bool) -> None:
        self.takers: dict[int, Take] = {}
        self.told: dict[int, Tell] = {}
        """The same subscriptions, for a message of this process."""
        self.arrive: dict[int, Take] = {}
        """The same, for a message from the wire."""
        self.arriving: tuple[Take, ...] = ()
        """Those, as they are while a message arrives."""
        self.group = group
        self.exclusive = False
        """Whether no other process subscribes to it."""
        self.remote = 0
        """Id of its subscription at the link."""


class _Reach:
    """The subscriptions of this process that match one subject."""

    __slots__ = ("inside_only", "takers", "told")

    def __init__(self, interests: Iterable[_Interest]) -> None:
        self.takers: tuple[Take, ...] = ()
        self.told: tuple[Tell, ...] = ()
        self.inside_only = False
        for interest in interests:
            self.takers += tuple(interest.takers.values())
            self.told += tuple(interest.told.values())
            self.inside_only |= interest.group or interest.exclusive


_NO_INSTANCE: Final = _Reach(())


class FanOut:
    """Publishes and subscribes for every service of a process."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._interests: dict[tuple[str, str], _Interest] = {}
        self._of: dict[int, tuple[str, str]] = {}
        self._ids = itertools.count(1)
        self._reach: dict[str, _Reach] = {}
        self._inbox = "\0"
        self._inboxes = 0
        """Subscriptions to inboxes besides this process's own."""
        self._answers: Take = _drop
        self.soon = link.soon
        """Call `work` once the messages that arrived together are all received, before anything is written."""

    @property
    def connected(self) -> bool:
        """Whether publishing can work now."""
        return self._link.connected

    @property
    def reason(self) -> str:
        """Why it isn't connected, in words for an operator."""
        return self._link.reason

    @property
    def max_payload(self) -> int:
        """The largest message the server takes, headers included, in bytes."""
        return self._link.max_payload

    def answers(self, prefix: str, take: Take) -> None:
        """Take every message whose subject is `prefix` and one token: answers to this process."""
        self._inbox, self._answers = prefix, take
        self.attach(f"{prefix}*", take, exclusive=True)

    def subscribe(self, subject: str, receiver: Receiver, queue: str = "") -> int:
        """Implements `Link.subscribe`."""

        def take(delivery: Delivery) -> None:
            payload = delivery.payload
            if not payload and isinstance(delivery.message, Message):
                payload = delivery.message.encode()
            receiver(delivery.subject, delivery.reply, delivery.headers, payload)

        return self.attach(subject, take, queue)

    def attach(
        self,
        subject: str,
        take: Take,
        queue: str = "",
        *,
        exclusive: bool = False,
        told: Tell | None = None,
        arrive: Take | None = None,
    ) -> int:
        """Subscribe now and after every reconnection; returns the id to detach with. `exclusive`: no other process
        subscribes to this subject, so that messages of this one needn't leave it. `told` gets the messages of this
        process that are objects, `arrive` those from the wire; without them `take` does."""
        self._reach.clear()
        sid = next(self._ids)
        key = subject, queue
        interest = self._interests.get(key)
        if interest is None:
            interest = self._interests[key] = _Interest(group=bool(queue))
            interest.remote = self._link.subscribe(subject, self._receiver(interest), queue)
            self._inboxes += subject.startswith(INBOXES) and not subject.startswith(self._inbox)
        interest.takers[sid] = take
        interest.arrive[sid] = arrive or take
        interest.arriving = (*interest.arrive.values(),)
        interest.told[sid] = told or (lambda to, message: take(Delivery(to, "", b"", b"", message)))
        interest.exclusive |= exclusive
        self._of[sid] = key
        return sid

    def stop_delivery(self, sid: int) -> None:
        """Like `Link.stop_delivery`: messages on their way from the server still arrive."""
        self._leave(sid, self._link.stop_delivery)

    def unsubscribe(self, sid: int) -> None:
        """Implements `Link.unsubscribe`."""
        self._leave(sid, self._link.unsubscribe)

    def publish(self, subject: str, payload: bytes, reply: str = "", headers: bytes = b"") -> None:
        """Like `Link.publish`, and to the subscriptions of this process."""
        if subject.startswith(self._inbox):
            self._answers(Delivery(subject, reply, headers, payload))
            return
        reach = self._reach.get(subject) or self._reach_of(subject)
        if reach.takers:
            delivery = Delivery(subject, reply, headers, payload)
            for take in reach.takers:
                take(delivery)
            if reply or reach.inside_only:
                return
        self._link.publish(subject, payload, reply, headers)

    def tell(self, subject: str, message: Message) -> bool:
        """Hand a message to the subscriptions of this process alone. True when no other process needs it."""
        reach = self._reach.get(subject) or self._reach_of(subject)
        for told in reach.told:
            told(subject, message)
        return reach.inside_only

    async def flush(self, timeout: float) -> None:  # noqa: ASYNC109 - as in Link
        """Wait until the server has taken everything sent so far."""
        await self._link.flush(timeout)

    def _leave(self, sid: int, end: Callable[[int], None]) -> None:
        key = self._of.pop(sid, None)
        if key is None:
            return
        self._reach.clear()
        interest = self._interests[key]
        if len(interest.takers) > 1:
            del interest.takers[sid], interest.told[sid], interest.arrive[sid]
            interest.arriving = (*interest.arrive.values(),)
            return
        del self._interests[key]
        end(interest.remote)

    def _receiver(self, interest: _Interest) -> Receiver:
        def receive(subject: str, reply: str, headers: bytes, payload: bytes) -> None:
            delivery = Delivery(subject, reply, headers, payload)
            for take in interest.arriving:
                take(delivery)

        return receive

    def _reach_of(self, subject: str) -> _Reach:
        if subject.startswith(INBOXES):
            # Each is used once. Those of other processes are subscribed to here in tests alone.
            return _NO_INSTANCE if self._inboxes == 0 else self._find(subject)
        reach = self._find(subject)
        if len(self._reach) >= KEPT:
            self._reach.clear()
        self._reach[subject] = reach
        return reach

    def _find(self, subject: str) -> _Reach:
        found = [interest for (pattern, _), interest in self._interests.items() if matches(pattern, subject)]
        return _Reach(found) if found else _NO_INSTANCE


class Listener(Generic[M]):
    """A message that can't be decoded or handled is counted and logged; the subscription goes on."""

    def __init__(
        self,
        link: PubSub,
        tallies: Tallies,
        tally: Tally,
        kind: type[M],
        handler: Callable[[M], bytes | None],
    ) -> None:
        """The bytes that `handler` returns are sent to the message's reply subject."""
        self._link = link
        self._tallies = tallies
        self._tally = tally
        self._kind = kind
        self._handler = handler
        self.mailbox: Fifo | None = None
        """Has the messages that wait for their turn."""

    def told(self, subject: str, message: M) -> None:
        """Handle a message of this process in this very call, unless others wait."""
        mailbox = self.mailbox
        if mailbox is not None and mailbox.busy:
            mailbox.take(Delivery(subject, "", b"", b"", message))
            return
        try:
            self._handler(message)
        except Exception as error:  # noqa: BLE001 - one bad message must not end the subscription
            self._failed(error)
        else:
            self._tally.handled += 1

    def handle(self, delivery: Delivery) -> None:
        """Handle one message of the mailbox."""
        decoded = delivery.message
        if not isinstance(decoded, self._kind):
            try:
                delivery.message = decoded = self._kind.decode(delivery.payload)
            except MalformedMessage as error:
                self._tallies.count_malformed(self._tally, delivery.subject, delivery.payload, error)
                return
        try:
            answer = self._handler(decoded)
            if answer is not None and delivery.reply:
                self._link.publish(delivery.reply, answer)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)
        else:
            self._tally.handled += 1

    def _failed(self, error: Exception) -> None:
        self._tally.failed += 1
        event = "unsent" if isinstance(error, BusError) else "handler_failed"
        _log.error(event, error, subscription=self._tally.name)


def matches(pattern: str, subject: str) -> bool:
    """Whether a subscription to `pattern` (with `*` and `>`) sees `subject`."""
    wanted, given = pattern.split("."), subject.split(".")
    for position, word in enumerate(wanted):
        if word == ">":
            return len(given) > position
        if position >= len(given) or word not in ("*", given[position]):
            return False
    return len(wanted) == len(given)


def _drop(delivery: Delivery) -> None:
    del delivery
