"""Encodes parts of a scheduler's state for a peer that joins or missed messages, and takes over a peer's parts.

No scheduler pauses for it. A part holds the state when it was made; later changes reach the other
one by the usual messages, before or after, and the books take them in any order.
"""

from typing import Final

import numpy as np
from msgspec.structs import replace

from pointsman_contracts.message import Blob
from pointsman_contracts.scheduling import OpenReservation, SchedulerState, SchedulerStateQuery
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index import Dump

PART_BYTES: Final = 256 * 1024
"""Size of one part: far below the bus's limit, and made within milliseconds."""
RESERVATION_BYTES: Final = 512
"""Size of a reservation without its blocks."""
ENTRY_BYTES: Final = 8 + 4 + 1
PREFIXES_TOLD: Final = 65536
"""Most prefix entries that are sent of one worker: the most recently used."""


def part_of(pool: PoolScheduler, query: SchedulerStateQuery, now: float) -> SchedulerState:
    """The part that `query` asks for."""
    if query.worker is None:
        return _reservations(pool, query)
    return _prefixes(pool, query.worker, query.offset, now)


def take_reservations(pool: PoolScheduler, state: SchedulerState, now: float) -> int:
    """Reserve the requests that aren't on the books and haven't ended since. Returns how many counted."""
    taken = 0
    for reservation in state.reservations:
        taken += pool.books.apply(reservation.change, reservation.scheduler, now)
        if reservation.confirmed:
            pool.books.apply(replace(reservation.change, op="confirm"), reservation.scheduler, now)
    return taken


def take_prefixes(pool: PoolScheduler, worker: str, state: SchedulerState, now: float) -> int:
    """Take over prefix entries. Returns their number; 0 when they belong to another life."""
    found = pool.fleet.find(worker)
    if found is None or found.registration.boot_id != state.boot_id:
        return 0
    blocks = np.frombuffer(state.blocks, dtype="<u8")
    ages = np.frombuffer(state.ages, dtype="<f4").astype(np.float64)
    stored = np.frombuffer(state.stored, dtype=np.uint8).astype(np.bool_)
    # An index takes entries in the order of their use.
    pool.index.load(found.life, Dump(blocks[::-1], ages[::-1], stored[::-1]), now)
    return len(blocks)


def _reservations(pool: PoolScheduler, query: SchedulerStateQuery) -> SchedulerState:
    holds = [
        hold
        for hold in pool.books
        if hold.change.request_id > query.after and (not query.own or hold.scheduler == pool.scheduler)
    ]
    holds.sort(key=lambda hold: hold.change.request_id)
    told: list[OpenReservation] = []
    size = 0
    for hold in holds:
        # All reservations of a request id, of every leg and edge, are in one part: the next one begins after it.
        if size > PART_BYTES and hold.change.request_id != told[-1].change.request_id:
            return SchedulerState(reservations=tuple(told), more=True)
        told.append(OpenReservation(change=hold.change, scheduler=hold.scheduler, confirmed=hold.confirmed))
        size += RESERVATION_BYTES + len(hold.change.blocks)
    return SchedulerState(reservations=tuple(told))


def _prefixes(pool: PoolScheduler, worker: str, offset: int, now: float) -> SchedulerState:
    found = pool.fleet.find(worker)
    if found is None:
        return SchedulerState()
    dump = pool.index.dump(found.life, now)
    most = min(PREFIXES_TOLD, offset + PART_BYTES // ENTRY_BYTES)
    part = slice(offset, most)
    return SchedulerState(
        boot_id=found.registration.boot_id,
        blocks=Blob(dump.hashes[::-1][part].astype("<u8").tobytes()),
        ages=Blob(dump.ages[::-1][part].astype("<f4").tobytes()),
        stored=Blob(dump.stored[::-1][part].astype(np.uint8).tobytes()),
        more=most < min(PREFIXES_TOLD, len(dump.hashes)),
    )
