"""One cell: traffic against a pool, engines that misbehave in the middle of it, and the evidence."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from pointsman_testing.unruly.asking import Clients
from pointsman_testing.unruly.behaviour import GOOD
from pointsman_testing.unruly.cells import Cell, Place
from pointsman_testing.unruly.engine import EngineWork
from pointsman_testing.unruly.ground import TrialGround
from pointsman_testing.unruly.laws import BACK_S, LEARNT_S, Evidence

RATES: Final[dict[int, float]] = {1: 8.0, 2: 10.0, 3: 12.0, 8: 20.0}
"""Requests a second by the engines of the pool."""
WARM_S: Final = 1.0
SETTLED_S: Final = 75.0
"""An engine that is good, and isn't used for longer, is lost; a circuit breaker may stay open for a minute."""
_WINDOW_S: Final = 2.5
_PART_OF_SHARE: Final = 0.25
"""An engine that gets this part of an equal share, or more, has its share again."""
_LOOK_S: Final = 0.25


async def trial(ground: TrialGround, cell: Cell) -> Evidence:
    """Try this cell; nothing else may use its pool meanwhile."""
    place = cell.place
    clients = _clients(ground, place)
    clients.tokens = cell.row.tokens
    await ground.fleet.work(place.workers)
    work: dict[str, list[EngineWork]] = {name: [] for name in place.workers}
    clients.start()
    restarting: asyncio.Task[None] | None = None
    try:
        await asyncio.sleep(WARM_S)
        bad_at = time.monotonic()
        await ground.fleet.behave(dict.fromkeys(cell.bad_workers, cell.row.behaviour))
        if cell.row.restart_s is not None:
            restarting = asyncio.create_task(_restart(ground, cell, cell.row.restart_s))
        await asyncio.sleep(min(cell.row.bad_s, LEARNT_S))
        doctor = asyncio.create_task(ground.doctor())
        await asyncio.sleep(bad_at + cell.row.bad_s - time.monotonic())
        if cell.row.told:
            await doctor
        if restarting is not None:
            restarting.cancel()
        good_at = time.monotonic()
        await ground.fleet.behave(dict.fromkeys(cell.bad_workers, GOOD))
        back_s = await _until_back(ground, cell, good_at, work)
    finally:
        if restarting is not None:
            restarting.cancel()
        await ground.fleet.behave(dict.fromkeys(cell.bad_workers, GOOD))
        await clients.stop()
    await _collect(ground, cell, work)
    records = await ground.records([one.request for one in clients.asked])
    return Evidence(cell, bad_at, good_at, clients.asked, work, back_s, await doctor, records)


def _clients(ground: TrialGround, place: Place) -> Clients:
    return Clients(
        ground.http, ground.door(place), place.name,
        stream=place.form == "stream", rate=RATES[place.engines], burst=place.engines,
    )  # fmt: skip


async def _restart(ground: TrialGround, cell: Cell, every_s: float) -> None:
    while True:
        await ground.fleet.restart(cell.bad_workers)
        await asyncio.sleep(every_s)


async def _until_back(
    ground: TrialGround, cell: Cell, good_at: float, work: dict[str, list[EngineWork]]
) -> float | None:
    """Wait until the engines have their share again; returns after how long."""
    due = _PART_OF_SHARE * RATES[cell.place.engines] / cell.place.engines * _WINDOW_S
    while True:
        await _collect(ground, cell, work)
        now = time.monotonic()
        since = max(good_at, now - _WINDOW_S)
        got = [sum(one.began >= since and one.end != "refused" for one in work[name]) for name in cell.bad_workers]
        if min(got) >= due:
            return now - good_at
        if now - good_at > BACK_S:
            return None
        await asyncio.sleep(_LOOK_S)


async def _collect(ground: TrialGround, cell: Cell, work: Mapping[str, list[EngineWork]]) -> None:
    """Add what the engines saw; a request that is still at work is told again later, instead of before."""
    for name, found in (await ground.fleet.work(cell.place.workers)).items():
        work[name][:] = [*(one for one in work[name] if one.end), *found]


async def settled(ground: TrialGround, cell: Cell, within_s: float = SETTLED_S) -> bool:
    """Send a little traffic until every engine of the pool serves again, so that the next cell begins well."""
    place = cell.place
    clients = _clients(ground, place)
    work: dict[str, list[EngineWork]] = {name: [] for name in place.workers}
    clients.start()
    try:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            await asyncio.sleep(_LOOK_S)
            await _collect(ground, cell, work)
            since = time.monotonic() - _WINDOW_S
            if all(any(one.began >= since for one in found) for found in work.values()):
                return True
        return False
    finally:
        await clients.stop()
