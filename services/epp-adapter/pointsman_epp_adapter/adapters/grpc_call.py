"""One call of a gRPC client's, with messages both ways.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, Protocol

MESSAGE_LIMIT: Final = 64 * 2**20
"""Bytes. A buffered body comes in one message; `edge.max_body` limits it further."""
_PREFIX: Final = 5
"""Bytes before each message: whether it is compressed, and how long it is."""


class Status(IntEnum):
    """How a call ends: https://github.com/grpc/grpc/blob/master/doc/statuscodes.md."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12


class CallFailed(Exception):
    """A call ends with this status, and these words for the client."""

    def __init__(self, status: Status, words: str) -> None:
        super().__init__(words)
        self.status = status


class Peer(Protocol):
    """The connection, as far as a call needs it."""

    def send(self, call: "Call", data: bytes) -> bool:
        """Send bytes of a call's body, after its headers. Whether the client takes what it is sent."""
        ...

    def return_credit(self, stream_id: int, size: int) -> None:
        """So many of the received bytes are done with: the client may send as many more."""
        ...

    def backed_up(self, stream_id: int) -> bool:
        """Whether the client doesn't take what it is sent."""
        ...

    async def wait_for_progress(self) -> None:
        """Wait until the client has read some bytes, or is gone."""
        ...


class Call:
    """The method reads and writes messages; the connection feeds it. One reader at a time."""

    __slots__ = (
        "_failure",
        "_held",
        "_needed",
        "_peer",
        "_pieces",
        "_reader",
        "_untaken",
        "closed",
        "ended",
        "headers_sent",
        "heard",
        "metadata",
        "stream_id",
        "task",
        "unread",
    )

    def __init__(self, stream_id: int, peer: Peer, metadata: Mapping[bytes, bytes]) -> None:
        """`metadata`: the headers with which the client began the call."""
        self.stream_id: Final = stream_id
        self.metadata: Final = metadata
        self.task: asyncio.Task[None] | None = None
        """The task that runs the call's method."""
        self.headers_sent = False
        self.closed = False
        """The client gets nothing that is written from now on."""
        self.ended = False
        """The client has closed its side."""
        self.heard: Callable[[], None] | None = None
        """Called when a message has come, or the end."""
        self.unread: Final[deque[bytes]] = deque()
        """Messages that have come and weren't read."""
        self._peer = peer
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = _PREFIX
        self._untaken = 0
        self._reader: asyncio.Future[None] | None = None
        self._failure: CallFailed | None = None

    async def read(self) -> bytes | None:
        """The next message; None after the last one. Raises CallFailed for a message that can't be read."""
        unread = self.unread
        while not unread:
            if self._failure is not None:
                raise self._failure
            if self.ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        message = unread.popleft()
        if not unread and self._untaken:
            self._peer.return_credit(self.stream_id, self._untaken)
            self._untaken = 0
        return message

    async def write(self, *messages: bytes) -> None:
        """Send messages; waits while the client takes none."""
        if self.closed:
            return
        pieces: list[bytes] = []
        for message in messages:
            # The prefix of a message that isn't compressed is its length, in five bytes.
            pieces += (len(message).to_bytes(_PREFIX, "big"), message)
        if not self._peer.send(self, b"".join(pieces)):
            while not self.closed and self._peer.backed_up(self.stream_id):
                await self._peer.wait_for_progress()

    def send_if_taken(self, *messages: bytes) -> bool:
        """Send messages unless the client is gone, or takes none at the moment. Whether they were sent."""
        if self.closed or self._peer.backed_up(self.stream_id):
            return False
        pieces = [part for message in messages for part in (len(message).to_bytes(_PREFIX, "big"), message)]
        self._peer.send(self, b"".join(pieces))
        return True

    def receive_body(self, data: bytes, *, end: bool) -> None:
        """Bytes of the call's body have come."""
        if data:
            size = len(data)
            self._untaken += size
            # As most come: one message, whole and not compressed. No frame is as long as the limit.
            if size == _PREFIX + int.from_bytes(data[:_PREFIX], "big") and not self._held and self._failure is None:
                self.unread.append(data[_PREFIX:])
            else:
                self._pieces.append(data)
                self._held += size
                if self._held >= self._needed:
                    self._cut()
                if not self.unread:
                    self._take()  # of a message that isn't whole: the rest must have room to come
        if end:
            self.ended = True
        elif not self.unread:
            return
        reader = self._reader
        if reader is not None:
            self._reader = None
            if not reader.done():
                reader.set_result(None)
        if self.heard is not None:
            self.heard()

    def lose_client(self) -> None:
        """The client is gone, or has reset the call: its method is cancelled."""
        self.closed = True
        self.stop_reading()
        if self.task is not None:
            self.task.cancel()

    def stop_reading(self) -> None:
        """Nothing more is read."""
        self.unread.clear()
        self._take()

    def _cut(self) -> None:
        """Make messages of what is whole."""
        data = b"".join(self._pieces)
        start, self._needed = 0, _PREFIX
        while len(data) - start >= _PREFIX and self._failure is None:
            size = _PREFIX + int.from_bytes(data[start + 1 : start + _PREFIX], "big")
            if data[start]:
                self._fail(Status.UNIMPLEMENTED, "Compressed messages aren't supported; send messages uncompressed.")
            elif size > MESSAGE_LIMIT:
                self._fail(
                    Status.RESOURCE_EXHAUSTED, f"A message has {size} bytes; at most {MESSAGE_LIMIT} are accepted."
                )
            elif len(data) - start < size:
                self._needed = size
                break
            else:
                self.unread.append(data[start + _PREFIX : start + size])
                start += size
        rest = b"" if self._failure is not None else data[start:]
        self._pieces = [rest] if rest else []
        self._held = len(rest)

    def _fail(self, status: Status, words: str) -> None:
        self._failure = CallFailed(status, words)
        self.ended = True

    def _take(self) -> None:
        if self._untaken:
            self._peer.return_credit(self.stream_id, self._untaken)
            self._untaken = 0
