"""`Reservations` as a scheduler reads its peers': msgspec takes a third of the time of the message's own reader.

Fields have the names, types and defaults of the message.
"""

import base64
from typing import Final

import msgspec

from pointsman_contracts.part_reader import part_reader
from pointsman_contracts.scheduling import ReservationChange, Reservations, UnboundRequest


class _WithBlocks(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    written_blocks: str = msgspec.field(default="", name="blocks")

    def __post_init__(self) -> None:
        if self.written_blocks:
            _bytes_of(self.written_blocks)

    @property
    def blocks(self) -> bytes:
        """As in the message."""
        return _bytes_of(self.written_blocks)


class PeerChange(_WithBlocks, frozen=True, gc=False):
    """A `ReservationChange`."""

    op: str
    request_id: str
    worker: str
    boot_id: str = ""
    edge: str = ""
    leg: str = ""
    attempt: int = 1
    lora: str | None = None
    session: str | None = None
    rank: int | None = None
    prompt_tokens: int = 0
    uncached_tokens: int = 0
    output_tokens: int = 0
    block_tokens: int = 64
    blocks_precise: bool = False
    streamed: bool = True


class PeerUnbound(_WithBlocks, frozen=True, gc=False):
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


class PeerReservations(msgspec.Struct, frozen=True, gc=False):
    """A peer's `Reservations`."""

    pool: str
    scheduler: str
    sequence: int
    at_ms: int
    changes: tuple[PeerChange, ...]
    unbound: tuple[PeerUnbound, ...] | None = None


def _bytes_of(text: str) -> bytes:
    """ValueError when the text isn't base64 in the alphabet of URLs."""
    return base64.b64decode(text, altchars=b"-_", validate=True)


AnyChange = ReservationChange | PeerChange
AnyUnbound = UnboundRequest | PeerUnbound
AnyReservations = Reservations | PeerReservations

read_reservations: Final = part_reader(PeerReservations, Reservations)
"""Reservations as they arrived. Raises `pydantic.ValidationError`."""
