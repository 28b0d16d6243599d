"""`Reservations`, encoded directly from the books: a message each turn, which every peer reads.

Fields with their default values are left out: readers of every version fill them in.
"""

import base64
from collections.abc import Sequence
from typing import Final

import orjson

from pointsman_contracts.scheduling import ReservationChange
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.domain.late_binding import Binder, Unbound

_FIELDS: Final = ReservationChange.model_fields
_ATTEMPT: Final[object] = _FIELDS["attempt"].default
_BLOCK_TOKENS: Final[object] = _FIELDS["block_tokens"].default

Written = dict[str, object]
Change = tuple[str, Sequence[Hold]]
"""An operation as in `ReservationChange.op`, with its holds."""


def written(
    pool: str, scheduler: str, sequence: int, at_ms: int, changes: Sequence[Change], unbound: list[Written] | None
) -> bytes:
    """The message. `unbound`: None when nothing about the waiting requests has changed."""
    message: Written = {
        "pool": pool,
        "scheduler": scheduler,
        "sequence": sequence,
        "at_ms": at_ms,
        "changes": [_change(op, hold) for op, holds in changes for hold in holds],
    }
    if unbound is not None:
        message["unbound"] = unbound
    return orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY)


def _change(op: str, hold: Hold) -> Written:
    worker = hold.worker
    fields: Written = {
        "op": op,
        "request_id": hold.request_id,
        "worker": worker.name,
        "boot_id": worker.registration.boot_id,
        "edge": hold.edge,
        "prompt_tokens": hold.prompt_tokens,
        "uncached_tokens": hold.uncached_tokens,
        "output_tokens": hold.output_tokens,
    }
    if hold.leg:
        fields["leg"] = hold.leg
    if hold.attempt != _ATTEMPT:
        fields["attempt"] = hold.attempt
    if hold.lora is not None:
        fields["lora"] = hold.lora
    if hold.session is not None:
        fields["session"] = hold.session
    if hold.rank is not None:
        fields["rank"] = hold.rank
    if hold.block_tokens != _BLOCK_TOKENS:
        fields["block_tokens"] = hold.block_tokens
    if hold.blocks:
        fields["blocks"] = _text(hold.blocks)
    if hold.blocks_precise:
        fields["blocks_precise"] = True
    if not hold.streamed:
        fields["streamed"] = False
    return fields


def unbound_fields(binder: Binder, each: Unbound, now_ms: float, *, known: bool) -> Written:
    """An `UnboundRequest`. `known`: the peers have its blocks."""
    request = each.request
    fields: Written = {
        "worker": binder.worker_of(each),
        "uncached_tokens": round(each.uncached),
        "prompt_tokens": each.prompt,
        "priority": request.priority,
        "left_ms": round(each.latest - now_ms),
        "request_id": request.request_id,
        "edge": request.edge,
        "waited_ms": round(now_ms - each.since),
        "block_tokens": request.block_tokens,
    }
    if request.max_output_tokens is not None:
        fields["max_output_tokens"] = request.max_output_tokens
    if not known:
        fields["blocks"] = _text(request.blocks.tobytes())
    return fields


def _text(blocks: bytes) -> str:
    return base64.urlsafe_b64encode(blocks).decode()
