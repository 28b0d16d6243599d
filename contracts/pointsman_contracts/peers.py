"""`Reservations` as a scheduler reads its peers': msgspec takes a third of the time of the message's own reader.

Fields have the names, types and defaults of the message.
"""

import base64
from typing import Final

import msgspec

from pointsman_contracts.scheduling import ReservationChange, Reservations, UnboundRequest


class PeerChange(msgspec.Struct, frozen=True, gc=False):
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
    written_blocks: str = msgspec.field(default="", name="blocks")
    blocks_precise: bool = False
    streamed: bool = True

    @property
    def blocks(self) -> bytes:
        """As `ReservationChange.blocks`. ValueError when they aren't base64."""
        return base64.urlsafe_b64decode(self.written_blocks)


class PeerUnbound(msgspec.Struct, frozen=True, gc=False):
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
    written_blocks: str = msgspec.field(default="", name="blocks")

    @property
    def blocks(self) -> bytes:
        """As `UnboundRequest.blocks`. ValueError when they aren't base64."""
        return base64.urlsafe_b64decode(self.written_blocks)


class PeerReservations(msgspec.Struct, frozen=True, gc=False):
    """A peer's `Reservations`."""

    pool: str
    scheduler: str
    sequence: int
    at_ms: int
    changes: tuple[PeerChange, ...]
    unbound: tuple[PeerUnbound, ...] | None = None


AnyChange = ReservationChange | PeerChange
AnyUnbound = UnboundRequest | PeerUnbound
AnyReservations = Reservations | PeerReservations

_READ: Final = msgspec.json.Decoder(PeerReservations).decode


def read_reservations(payload: bytes) -> AnyReservations:
    """Reservations as they arrived. Raises `pydantic.ValidationError`."""
    try:
        read = _READ(payload)
        for one in (*read.changes, *(read.unbound or ())):
            if one.written_blocks:
                one.blocks  # noqa: B018 - ValueError when they aren't base64
    except ValueError:  # every error of msgspec is one
        read = None
    # The message accepts more, such as a number in a string, and names what is wrong.
    return Reservations.decode(payload) if read is None else read
