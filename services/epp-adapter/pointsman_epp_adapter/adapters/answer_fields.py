"""Writes the fields of the answers to Envoy as bytes.

Protobuf's own objects for an answer cost several times what its bytes do.

https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from pointsman_epp_adapter.domain.envoy_events import BodyMode
from pointsman_epp_adapter.domain.mutation import HeaderChanges

_SHORT: Final = 100
"""A header of so many bytes has lengths of one byte each."""
_SEND: Final = 1
_SKIP: Final = 2
SHORTEST_ID: Final = 16
"""Shorter request ids have no blank."""


def blank_id(size: int) -> bytes:
    """Stands for request ids of this length in a message that is written once. Nothing else in one has as many NULs in
    a row."""
    return b"\0" * size


def field(tag: bytes, data: bytes) -> bytes:
    """A field of bytes, a text's or a message's."""
    return b"".join((tag, number(len(data)), data))


def mutation(changes: HeaderChanges) -> bytes:
    """`HeaderMutation`: what is set overwrites."""
    pieces = [_overwriting(name, value) for name, value in changes.set]
    pieces += [field(b"\x12", name.encode()) for name in changes.remove]
    return b"".join(pieces)


def texts(namespace: str, named: Iterable[tuple[str, str]]) -> bytes:
    """An entry of a `Struct`: a namespace with texts by name."""
    entries = [field(b"\x0a", _entry(name, field(b"\x1a", value.encode()))) for name, value in named]
    return field(b"\x0a", _entry(namespace, field(b"\x2a", b"".join(entries))))


@lru_cache(maxsize=4096)
def repeated_text(namespace: str, name: str, value: str) -> bytes:
    """Like `texts`, of a text that is written again and again."""
    return texts(namespace, ((name, value),))


def override(mode: BodyMode) -> bytes:
    """`mode_override` of an answer's body. A body that has trailers ends with them."""
    return _OVERRIDES[mode]


ALL_DUPLEX: Final = b"\x4a\x0a\x10%c\x18%c\x20%c\x28%c\x30%c" % (
    _SEND, BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED, _SEND, _SEND,
)  # fmt: skip
"""`mode_override` in the answer to a request's headers: its body stays in full duplex, and the answer comes so too."""


def _entry(name: str, value: bytes) -> bytes:
    return field(b"\x0a", name.encode()) + field(b"\x12", value)


def _overwriting(name: bytes, value: bytes) -> bytes:
    """`HeaderValueOption` with `OVERWRITE_IF_EXISTS_OR_ADD`."""
    length, size = len(name), len(value)
    if length + size <= _SHORT:
        whole = length + size + 4
        return b"\x0a%c\x0a%c\x0a%c%b\x1a%c%b\x18\x02" % (whole + 4, whole, length, name, size, value)
    return field(b"\x0a", field(b"\x0a", field(b"\x0a", name) + field(b"\x1a", value)) + b"\x18\x02")


@lru_cache(maxsize=4096)
def number(value: int) -> bytes:
    """A length, seven bits in each byte, the lowest first."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _overridden(mode: BodyMode) -> bytes:
    trailers = _SKIP if mode is BodyMode.NONE else _SEND
    return field(b"\x4a", bytes((0x10, _SEND, 0x20, mode, 0x30, trailers)))


_OVERRIDES: Final = {mode: _overridden(mode) for mode in BodyMode}
