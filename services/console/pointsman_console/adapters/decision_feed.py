"""Follows decisions and the ends of requests while a page shows them."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from pydantic import JsonValue

from pointsman_console.adapters.stream import event
from pointsman_console.adapters.window import Window
from pointsman_console.domain.decision_rows import row_of, wants
from pointsman_console.domain.sampling import DecisionFilter, Sampler
from pointsman_contracts.response import RequestAnswered, RequestRejected, ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import ANY, subject
from pointsman_core.request_events import read
from pointsman_runtime.bus.wire import Receiver

TICK_S: Final = 0.25
ROWS_PER_TICK: Final = 10
"""A person can't read more lines than that, and a browser needn't draw more."""

_SCHEDULED: Final = RequestScheduled.address.type_id
_COMPLETED: Final = ResponseCompleted.address.type_id


async def decision_events(window: Window, wanted: DecisionFilter) -> AsyncGenerator[bytes]:
    """Lines of the page, four times a second at most, each time with how many of how many it shows."""
    sampler = Sampler(wanted, ROWS_PER_TICK)
    types: dict[bytes, str] = {}

    def beginnings(type_id: str) -> Receiver:
        def receive(to: str, reply: str, headers: bytes, payload: bytes) -> None:
            del to, reply, headers
            if type_id != _SCHEDULED:
                types[payload] = type_id
            sampler.sample_decision(payload)

        return receive

    def ends(to: str, reply: str, headers: bytes, payload: bytes) -> None:
        del to, reply, headers
        sampler.sample_end(payload)

    pool = wanted.pool or ANY
    async with window.hold_bus() as bus:
        receivers = {
            subject(RequestScheduled, pool): beginnings(_SCHEDULED),
            subject(ResponseCompleted, pool): ends,
        }
        if not wanted.pool:
            receivers |= {
                subject(each, ANY): beginnings(each.address.type_id) for each in (RequestRejected, RequestAnswered)
            }
        sids = [bus.link.subscribe(to, receiver) for to, receiver in receivers.items()]
        try:
            while True:
                await asyncio.sleep(TICK_S)
                sample, finished, seen = sampler.take_sample()
                begun = _COMPLETED if wanted.from_ends else _SCHEDULED
                rows = [_row(types.get(payload, begun), payload, wanted) for payload in sample]
                rows = [row for row in rows if row is not None]
                shown: JsonValue = len(rows)
                rows += [_row(_COMPLETED, payload, None) for payload in finished]
                types.clear()
                counts: dict[str, JsonValue] = dict(seen._asdict())
                lines: list[JsonValue] = [row for row in rows if row is not None]
                yield event("decisions", {"rows": lines, "shown": shown, "missing": bus.missing, **counts})
        finally:
            for sid in sids:
                bus.link.unsubscribe(sid)


def _row(type_id: str, payload: bytes, wanted: DecisionFilter | None) -> dict[str, JsonValue] | None:
    """The line of an event; None for one that can't be read, or that the filter doesn't want after all."""
    found = read(type_id, payload)
    row = None if found is None else row_of(found)
    return row if row is not None and (wanted is None or wants(wanted, row)) else None
