"""Bytes that wait for the server: collected within one turn of the event loop, written at once, bounded."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pointsman_runtime.bus.errors import BusCongested, BusDisconnected, PayloadTooLarge
from pointsman_runtime.bus.event_keeper import EventKeeper
from pointsman_runtime.bus.held_events import Message

UNSENT_LIMIT: Final = 32 * 1024 * 1024
"""Bytes that may wait in this process for a server that doesn't read."""
RELAXED_S: Final = 0.01
"""How long a relaxed message waits for others to be written with. An edge publishes two events a request. Written
one by one, they cost the edge and the server as many system calls as the request itself, and each subscriber a
wake-up."""
HASTY_S: Final = 0.002
"""The same once they are hastened."""
MOST_RELAXED: Final = 256
"""So many relaxed messages are written at once."""
MOST_KEPT: Final = 1024
"""So many are that waited for a connection."""


class Outbox:
    """Commands in order, and relaxed ones in an order of their own. Without a transport it accepts none."""

    def __init__(self) -> None:
        self.hasty = False
        """Whether `hasten` does anything."""
        self.held = False
        """While it is, nothing is planned: the holder writes in the end."""
        self.max_payload = 0
        """The largest message the server takes, headers included, in bytes."""
        self.reason = "not connected yet"
        """Why it isn't connected, in words for an operator."""
        self.keeper: EventKeeper | None = None
        """Holds relaxed messages until a stream has them. Without one they are sent once, and only while there is a
        connection."""
        self._transport: asyncio.WriteTransport | None = None
        self._commands: list[bytes] = []
        """In pieces, which are put together when they are written."""
        self._relaxed: list[Message] = []
        self._size = 0
        """Bytes of commands, and those that the transport hadn't sent when it was last asked."""
        self._planned = False
        self._later: asyncio.TimerHandle | None = None
        self._hastened = False

    def attach_transport(self, transport: asyncio.WriteTransport, max_payload: int) -> None:
        """Write to this transport from now on; bytes that waited for another one are dropped."""
        self._commands.clear()
        self._size = 0
        self._transport = transport
        self.max_payload = max_payload
        if self.keeper is None:
            self._relaxed.clear()
            return
        self.keeper.attach_connection(self.publish)
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(RELAXED_S, self.write_all)

    def detach_transport(self, reason: str) -> None:
        """The transport is closed."""
        if self._transport is not None and self.keeper is not None:
            self.keeper.detach_connection()
        self._transport = None
        self.reason = reason

    def put(self, command: bytes) -> None:
        """Write this, in order, before the loop's next turn."""
        if self._transport is None:
            return
        self._commands.append(command)
        self._size += len(command)
        if not self._planned and not self.held:
            self._planned = True
            asyncio.get_running_loop().call_soon(self.write)

    def publish(self, subject: str, payload: bytes, reply: str = "", headers: bytes = b"") -> None:
        """Implements `Link.publish`."""
        if self._transport is None:
            raise BusDisconnected(self.reason)
        size = len(payload) + len(headers)
        if size > self.max_payload:
            raise PayloadTooLarge(self.max_payload, size)
        text = f"HPUB {subject} {reply} {len(headers)} {size}\r\n" if headers else f"PUB {subject} {reply} {size}\r\n"
        verb = text.encode()
        size += len(verb) + 2
        if self._size + size > UNSENT_LIMIT:
            self._make_room(size)
        self._commands += (verb, headers, payload, b"\r\n")
        self._size += size
        if not self._planned and not self.held:
            self._planned = True
            asyncio.get_running_loop().call_soon(self.write)

    def publish_relaxed(self, subject: str, headers: str, payload: bytes) -> None:
        """Implements `Link.publish_relaxed`."""
        size = len(payload) + len(headers)
        if size > self.max_payload or self._transport is None or self._size > UNSENT_LIMIT:
            if self.keeper is None:
                self._check(size, size)
            elif size > self.max_payload > 0:
                raise PayloadTooLarge(self.max_payload, size)
        self._relaxed.append((subject, headers, payload))
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(RELAXED_S, self.write_all)
        elif len(self._relaxed) >= MOST_RELAXED:
            self.write_all()

    def publish_all(self, messages: Sequence[Message]) -> None:
        """Implements `Link.publish_all`."""
        sizes = [len(headers) + len(payload) for _, headers, payload in messages]
        self._check(max(sizes), sum(sizes))
        self.put(b"".join(_commands(messages)))

    def write(self) -> None:
        """Write everything that waits and isn't relaxed."""
        self._planned = False
        commands, transport = self._commands, self._transport
        if not commands or transport is None:
            return
        if transport.is_closing():
            # asyncio reports the loss in a later turn of the loop, and raises until then.
            self.detach_transport("the connection is closed")
            return
        transport.write(b"".join(commands))
        self._commands = []
        self._size = transport.get_write_buffer_size()

    def hasten(self) -> None:
        """Let the relaxed messages that wait leave sooner, where that is allowed."""
        if self.hasty and self._later is not None and not self._hastened:
            self._hastened = True
            self._later.cancel()
            self._later = asyncio.get_running_loop().call_later(HASTY_S, self.write_all)

    def await_event(self, headers: str, done: Callable[[], None]) -> None:
        """Implements `Link.await_event`."""
        if self.keeper is not None:
            self.keeper.await_event(headers, done)
        self.write_all()
        if self.keeper is None:
            done()

    def write_all(self) -> None:
        """Write everything that waits."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
            self._hastened = False
        relaxed, self._relaxed = self._relaxed, []
        if self.keeper is None:
            self._commands += _commands(relaxed)
        else:
            self._commands += self._kept(relaxed, self.keeper)
        self.write()

    def _kept(self, messages: list[Message], keeper: EventKeeper) -> list[bytes]:
        """The commands that publish messages, and those that waited for a connection before them; none while the
        messages themselves have to wait."""
        held, transport = keeper.held, self._transport
        if transport is None or transport.is_closing() or (self._size > UNSENT_LIMIT and not self._has_room()):
            if messages:
                held.keep_unsent(messages, asyncio.get_running_loop().time())
            if transport is not None and held.unsent_count:
                self._later = asyncio.get_running_loop().call_later(RELAXED_S, self.write_all)
            return []
        if held.unsent_count:
            now = asyncio.get_running_loop().time()
            held.keep_unsent(messages, now)
            messages = held.take_unsent(MOST_KEPT, self.max_payload, now)
            if held.unsent_count:
                self._later = asyncio.get_running_loop().call_later(RELAXED_S, self.write_all)
        if not messages:
            return []
        pieces = _commands(messages)
        for position, reply_to in keeper.note_sent(messages):
            pieces[3 * position] = _command(messages[position], f"{reply_to} ")
        return pieces

    def _has_room(self) -> bool:
        try:
            self._make_room(0)
        except BusCongested:
            return False
        return True

    def _check(self, largest: int, size: int) -> None:
        """Raise what `Link.publish` raises for messages of this size together, the largest of this one."""
        if self._transport is None:
            raise BusDisconnected(self.reason)
        if largest > self.max_payload:
            raise PayloadTooLarge(self.max_payload, largest)
        if self._size + size > UNSENT_LIMIT:
            self._make_room(size)

    def _make_room(self, size: int) -> None:
        """Ask the transport how much it has sent since. Raises BusCongested when a command of this size is too much."""
        unsent = self._transport.get_write_buffer_size() if self._transport else 0
        self._size = sum(map(len, self._commands)) + unsent
        if self._size + size > UNSENT_LIMIT:
            raise BusCongested(self._size, UNSENT_LIMIT)


def _commands(messages: Iterable[Message]) -> list[bytes]:
    """The commands that publish messages, in pieces."""
    pieces: list[bytes] = []
    for subject, headers, payload in messages:
        head = len(headers) if headers.isascii() else len(headers.encode())
        pieces += (f"HPUB {subject} {head} {head + len(payload)}\r\n{headers}".encode(), payload, b"\r\n")
    return pieces


def _command(message: Message, reply_to: str) -> bytes:
    """The first piece of such a command, with a reply subject and a blank."""
    subject, headers, payload = message
    head = len(headers.encode())
    return f"HPUB {subject} {reply_to}{head} {head + len(payload)}\r\n{headers}".encode()
