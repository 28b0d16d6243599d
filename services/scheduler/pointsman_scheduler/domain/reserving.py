"""Puts the choice for a request on the books of its engines."""

from typing import Final

from pointsman_contracts.message import NO_BYTES, Blob
from pointsman_contracts.priority import BATCH_PRIORITY
from pointsman_contracts.scheduling import ReservationChange
from pointsman_plugins.scheduling.fleet import MATCHED
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Selection
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.domain.fetching import with_fetched
from pointsman_scheduler.domain.ledger import Ledger
from pointsman_scheduler.domain.outcome import Sight

_MEDIA: Final = frozenset(("vision", "audio", "video", "file"))
"""Features that parts of a prompt other than text need."""


def reserve(
    books: Ledger,
    request: ScheduleRequest,
    selection: Selection,
    sight: Sight,
    *,
    former: Hold | None,
    scheduler: str,
) -> list[Hold]:
    """Reserve the choice, for this scheduler. `former`: the request's reservation for its answer."""
    holds: list[Hold] = []
    facts, blocks, legs, now = request.facts, request.blocks, selection.legs, sight.now
    tokens, packed = facts.prompt_tokens, Blob(blocks.tobytes()) if len(blocks) else NO_BYTES
    as_matched = True
    for leg, run in (("", selection.primary), *legs.items()) if legs else (("", selection.primary),):
        row = run.chosen[0]
        worker = sight.workers[row]
        if leg:
            former = books.find_reservation(request.key, leg)
        if former is not None:
            if former.worker is worker:
                continue
            books.take_off(former, now)
            as_matched = False
        matched = int(sight.figures.item(MATCHED, row))
        change = ReservationChange(
            op="reserve",
            request_id=request.request_id,
            worker=worker.name,
            boot_id=worker.registration.boot_id,
            edge=request.edge,
            leg=leg,
            attempt=request.attempt,
            decision=facts.decision,
            lora=request.lora,
            session=facts.session,
            rank=selection.rank,
            prompt_tokens=tokens,
            uncached_tokens=max(0, tokens - matched) if leg == selection.prompt_leg else 0,
            output_tokens=facts.max_output_tokens or 0,
            block_tokens=facts.block_tokens,
            blocks=packed,
            blocks_precise=facts.blocks_precise,
            streamed=facts.stream,
            flow=facts.fairness_id or None,
            background=facts.priority <= BATCH_PRIORITY,
            hinted_tokens=facts.hinted_output_tokens,
            itl_ms=facts.slo_itl_ms if facts.slo_class and not leg else None,
            media=bool(facts.features) and not _MEDIA.isdisjoint(facts.features),
        )
        if request.fetched is not None and leg == selection.prompt_leg:
            change = with_fetched(change, request.fetched, row)
        hold = Hold(change, worker, now, scheduler)
        books.put(hold, now, blocks, matched // facts.block_tokens if as_matched else 0)
        as_matched = False  # a reservation may take memory from what other workers hold
        holds.append(hold)
    return holds
