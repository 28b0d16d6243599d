"""The server-to-client half of the NATS protocol, parsed without a coroutine per message.

nats-py matches up to seven regular expressions and awaits twice per message; this parser splits the control
line. Protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

Receiver = Callable[[str, str, bytes, bytes], None]
"""Called with subject, reply subject (may be empty), header block (may be empty) and payload."""

Raw = tuple[bytes, bytes, bytes, bytes]
"""A message as it came: subject, reply subject, header block and payload."""

CONTROL_LINE_LIMIT: Final = 1 << 20
"""Longest control line in bytes. INFO of a large cluster is the longest there is."""

_CRLF = b"\r\n"


class ProtocolViolation(Exception):
    """The server sent something that isn't the NATS protocol."""


class Intake(NamedTuple):
    """Takes the messages of a subscription that gets many, at half the cost of a receiver, which is called for each."""

    messages: list[Raw]
    """Gets those with a reply subject."""
    arrived: Callable[[], None]
    """Called with those that arrived together, and as long as earlier ones are still in `messages`."""
    other: Receiver
    """Called for each message without a reply subject."""


class Operations(Protocol):
    """Handles everything from the server that isn't a message."""

    def on_ping(self) -> None: ...
    def on_pong(self) -> None: ...
    def on_info(self, document: bytes) -> None: ...
    def on_error(self, text: str) -> None: ...


class Parser:
    """Turns bytes into calls of receivers, by subscription id. Messages for unknown ids are dropped."""

    def __init__(self, receivers: dict[bytes, Receiver], operations: Operations, intakes: dict[bytes, Intake]) -> None:
        """Receivers and intakes by the ids of their subscriptions, in digits."""
        self._receivers = receivers
        self._operations = operations
        self._intakes = intakes
        # Chunks of a message that isn't whole yet are joined once, when `_needed` bytes are here: a body of
        # 8 MiB arrives in a hundred chunks.
        self._chunks: list[bytes] = []
        self._held = 0
        self._needed = 0

    def parse_bytes(self, data: bytes) -> None:
        """Parse what arrived. Raises ProtocolViolation; the parser is unusable afterwards."""
        if self._chunks:
            self._chunks.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        self._parse(data)
        for intake in self._intakes.values():
            if intake.messages:
                intake.arrived()

    def _parse(self, data: bytes) -> None:
        end = len(data)
        position = 0
        receivers, intakes = self._receivers, self._intakes
        while position < end:
            line_end = data.find(_CRLF, position)
            if line_end < 0:
                if end - position > CONTROL_LINE_LIMIT:
                    raise ProtocolViolation("control line without an end")
                self._keep(data, position, end - position + 1)
                return
            body = line_end + 2
            # A server passes on subjects with other blanks in them, and with bytes that aren't text.
            words = data[position:line_end].split(b" ")
            word = words[0]
            reply = b""
            try:
                if word == b"HMSG":  # <subject> <sid> [reply] <header size> <size>
                    if len(words) == 6:
                        _, subject, number, reply, headers_size, size = words
                    else:
                        _, subject, number, headers_size, size = words
                    headers_end = body + int(headers_size)
                elif word == b"MSG":  # <subject> <sid> [reply] <size>
                    if len(words) == 5:
                        _, subject, number, reply, size = words
                    else:
                        _, subject, number, size = words
                    headers_end = body
                else:
                    self._operation(data[position:line_end])
                    position = body
                    continue
                message_end = body + int(size)
            except ValueError as error:
                raise ProtocolViolation("malformed control line") from error
            if message_end + 2 > end:
                self._keep(data, position, message_end + 2 - position)
                return
            if (receiver := receivers.get(number)) is not None:
                receiver(
                    subject.decode("utf-8", "replace"),
                    reply.decode("utf-8", "replace") if reply else "",
                    data[body:headers_end],
                    data[headers_end:message_end],
                )
            elif (intake := intakes.get(number)) is not None:
                if reply:
                    intake.messages.append((subject, reply, data[body:headers_end], data[headers_end:message_end]))
                else:
                    headers, payload = data[body:headers_end], data[headers_end:message_end]
                    intake.other(subject.decode("utf-8", "replace"), "", headers, payload)
            elif not number.isdigit():
                raise ProtocolViolation("malformed control line")
            position = message_end + 2

    def _keep(self, data: bytes, position: int, needed: int) -> None:
        rest = data[position:]
        self._chunks.append(rest)
        self._held = len(rest)
        self._needed = needed

    def _operation(self, line: bytes) -> None:
        word = line[:4].upper()
        if word == b"PING":
            self._operations.on_ping()
        elif word == b"PONG":
            self._operations.on_pong()
        elif word == b"INFO":
            self._operations.on_info(line[5:])
        elif word == b"-ERR":
            self._operations.on_error(line[5:].decode("utf-8", "replace").strip(" '"))
        elif word[:3] != b"+OK":
            raise ProtocolViolation("unknown operation")
