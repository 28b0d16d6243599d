"""The page of service levels, from the ends of requests, while it is open."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from pointsman_console.adapters.stream import event
from pointsman_console.adapters.window import Window
from pointsman_console.domain.level_sums import LevelSums
from pointsman_contracts.response import RequestRejected, ResponseCompleted
from pointsman_contracts.service_level import UNATTAINABLE
from pointsman_contracts.subjects import ANY, subject
from pointsman_core.request_events import read
from pointsman_runtime.bus.wire import Receiver

TICK_S: Final = 1.0
_MARKS: Final = {
    ResponseCompleted.address.type_id: b'"promise":{',
    RequestRejected.address.type_id: UNATTAINABLE.encode(),
}
"""Bytes without which an event has nothing to count: most events aren't decoded."""


async def level_events(window: Window) -> AsyncGenerator[bytes]:
    """Rows of the page, once a second."""
    sums = LevelSums()

    def receiver(type_id: str, mark: bytes) -> Receiver:
        def receive(to: str, reply: str, headers: bytes, payload: bytes) -> None:
            del to, reply, headers
            found = read(type_id, payload) if mark in payload else None
            if found is not None:
                sums.count_event(found)

        return receive

    async with window.hold_bus() as bus:
        sids = [
            bus.link.subscribe(subject(kind, ANY), receiver(kind.address.type_id, _MARKS[kind.address.type_id]))
            for kind in (ResponseCompleted, RequestRejected)
        ]
        try:
            while True:
                yield event("levels", {"rows": sums.list_rows(), "missing": bus.missing})
                await asyncio.sleep(TICK_S)
        finally:
            for sid in sids:
                bus.link.unsubscribe(sid)
