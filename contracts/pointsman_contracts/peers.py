"""`Reservations` as schedulers write and read them: msgspec takes a third of the time of the message's own reader.

Fields have the types and defaults of the message, and their own order, for they are made by position: by name it takes
msgspec six times as long. Those with their default values are left out; readers of every version fill them in.
"""

import operator
from typing import Final, SupportsIndex

import msgspec

from pointsman_contracts.packed_bytes import pack, unpack
from pointsman_contracts.part_reader import part_reader
from pointsman_contracts.scheduling import ReservationChange, Reservations, UnboundRequest


class Blocks(bytes):
    """Prefix blocks; written as base64 in the alphabet of URLs."""


NO_BLOCKS: Final = Blocks()


class PeerChange(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A `ReservationChange`."""

    op: str
    request_id: str
    worker: str
    boot_id: str = ""
    edge: str = ""
    leg: str = ""
    attempt: int = 1
    prompt_tokens: int = 0
    uncached_tokens: int = 0
    output_tokens: int = 0
    block_tokens: int = 64
    blocks: Blocks = NO_BLOCKS
    blocks_precise: bool = False
    lora: str | None = None
    session: str | None = None
    rank: int | None = None
    streamed: bool = True
    media: bool = False


class PeerUnbound(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An `UnboundRequest`."""

    worker: str
    uncached_tokens: int = 0
    prompt_tokens: int = 0
    priority: int = 0
    left_ms: int = 0
    request_id: str = ""
    edge: str = ""
    waited_ms: int = 0
    max_output_tokens: int | None = None
    block_tokens: int = 64
    blocks: Blocks = NO_BLOCKS


class PeerReservations(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """`Reservations`."""

    pool: str
    scheduler: str
    sequence: int
    at_ms: int
    changes: tuple[PeerChange, ...]
    unbound: tuple[PeerUnbound, ...] | None = None


AnyChange = ReservationChange | PeerChange
AnyUnbound = UnboundRequest | PeerUnbound
AnyReservations = Reservations | PeerReservations


def _plain(value: Blocks | SupportsIndex) -> str | int:
    """Blocks as text, and an integer of numpy, e.g. a rank that a plugin chose, as one of Python."""
    return pack(value) if isinstance(value, Blocks) else operator.index(value)


def _blocks(kind: type, text: str) -> object:
    """ValueError when the text isn't base64."""
    return kind(unpack(text))


write_reservations: Final = msgspec.json.Encoder(enc_hook=_plain).encode
"""The message that peers read."""
read_reservations: Final = part_reader(PeerReservations, Reservations.decode, _blocks)
"""Reservations as they arrived. Raises `pydantic.ValidationError`."""
