"""The headers that Pointsman reads and writes, as raw blocks.

A receiver looks for the two or three names that it uses and leaves the rest unparsed; a whole parse into a
dictionary costs more than decoding a small message.
"""

from typing import Final

from pointsman_contracts.headers import CLOCK, DEADLINE, MESSAGE_ID, TRACEPARENT, TYPE
from pointsman_runtime.bus.edge_clocks import Reading

LONGEST_TIME: Final = 18
"""Digits of a time in milliseconds; of a number with thousands of them Python makes none."""

_VERSION = b"NATS/1.0"
_CRLF = b"\r\n"

CLOCK_NAME: Final = f"\r\n{CLOCK}:".encode()
DEADLINE_NAME: Final = f"\r\n{DEADLINE}:".encode()
TRACEPARENT_NAME: Final = f"\r\n{TRACEPARENT}:".encode()


def find(block: bytes, name: bytes) -> str | None:
    """The value of one header; `name` is written as the constants of this module. None when it isn't there."""
    start = block.find(name)
    if start < 0:
        return None
    start += len(name)
    return block[start : block.find(_CRLF, start)].strip().decode("utf-8", "replace")


def deadline_ms(block: bytes) -> int | None:
    """The deadline in unix milliseconds; None when there is none or it isn't a number."""
    start = block.find(DEADLINE_NAME)
    if start < 0:
        return None
    start += len(DEADLINE_NAME)
    text = block[start : block.find(_CRLF, start)].strip()
    return int(text) if text.isdigit() and len(text) <= LONGEST_TIME else None


def find_clock(block: bytes) -> Reading | None:
    """The time of the edge's clock when the message was sent; None when the message doesn't have it, or not in the form
    that `build` writes."""
    words = (find(block, CLOCK_NAME) or "").split(" ")
    if len(words) != 3:
        return None
    edge, setting, at_ms = words
    if not (edge and _is_number(setting) and _is_number(at_ms)):
        return None
    return Reading(edge, int(setting), int(at_ms))


def status(block: bytes) -> str | None:
    """The status that the server put into the first line, e.g. `503` for "no responders"."""
    line = block[: block.find(_CRLF)]
    return line[len(_VERSION) :].strip()[:3].decode("ascii", "replace") or None


def build(
    type_id: str,
    *,
    deadline_ms: int | None = None,
    traceparent: str | None = None,
    message_id: str | None = None,
    clock: Reading | None = None,
) -> bytes:
    """A header block. No value has a line break: `traceparent` is checked where it enters, or was a header before;
    the others are made of subjects, instance names and numbers."""
    text = f"NATS/1.0\r\n{TYPE}: {type_id}\r\n"
    if deadline_ms is not None:
        text += f"{DEADLINE}: {deadline_ms}\r\n"
    if clock is not None:
        text += f"{CLOCK}: {clock.edge} {clock.setting} {clock.at_ms}\r\n"
    if traceparent:
        text += f"{TRACEPARENT}: {traceparent}\r\n"
    if message_id is not None:
        text += f"{MESSAGE_ID}: {message_id}\r\n"
    return (text + "\r\n").encode()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= LONGEST_TIME
