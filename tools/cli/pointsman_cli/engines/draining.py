"""`pointsman engines drain` and `undrain`."""

import asyncio
import time
from typing import Final

from nats.aio.client import Client
from rich.console import Console

from pointsman_cli import bus
from pointsman_cli.engines.following import Workers, following
from pointsman_cli.words import CommandError, counted
from pointsman_contracts.draining import LONGEST_DRAIN_MS, DrainAnswer, DrainQuery, OrderedDrain
from pointsman_contracts.pool import WorkerView
from pointsman_core.units import seconds

ANSWER_S: Final = 3.0
"""Seconds until the first answer."""
QUIET_S: Final = 0.3
"""Seconds without a further answer after which every metrics-collector has answered."""
REPORTED_S: Final = 10.0
"""Seconds until the engine must be seen to drain, or to serve again."""
AFTER_S: Final = 15.0
"""Seconds after the deadline in which what can move must have moved."""
IDLE_S: Final = 1.0
"""Seconds without a request after which nothing is on its way to the engine any more."""
_LOOK_S: Final = 0.05


def read_within(text: str) -> int:
    """Milliseconds of a duration such as `30s`. CommandError for anything else."""
    try:
        given = seconds(text)
    except ValueError as error:
        raise CommandError(f"--within {text}: {error}", "Write it as 30s, 2m or 1h.") from error
    if not isinstance(given, int | float) or not 0 <= given * 1000 <= LONGEST_DRAIN_MS:
        raise CommandError(f"--within {text}: no duration from 0 s to 24 h", "Write it as 30s, 2m or 1h.")
    return round(given * 1000)


async def drain(url: str | None, query: DrainQuery, console: Console, *, wait: bool) -> bool:
    """Order an engine to drain, and wait until it has no requests left. False when it still has some."""
    async with bus.connected(bus.settings(url), "pointsman engines") as client, following(client) as workers:
        began = time.monotonic()
        ordered = await _order(client, query)
        for each in ordered:
            console.print(_told(each, query), soft_wrap=True, markup=False)
        return not wait or all(
            await asyncio.gather(*(_drained(workers, each, query, began, console) for each in ordered))
        )


async def undrain(url: str | None, query: DrainQuery, console: Console) -> bool:
    """Have an engine take requests again. False when it doesn't in time."""
    async with bus.connected(bus.settings(url), "pointsman engines") as client, following(client) as workers:
        ordered = await _order(client, query)
        return all(await asyncio.gather(*(_serving(workers, each, console) for each in ordered)))


async def _order(client: Client, query: DrainQuery) -> tuple[OrderedDrain, ...]:
    """The engines that the order is about. CommandError where it isn't carried out."""
    told = await bus.gather_answers(client, query, DrainAnswer, first_s=ANSWER_S, quiet_s=QUIET_S)
    if not told:
        raise CommandError(
            "no metrics-collector answers, and orders to drain engines go through one.",
            "`pointsman doctor` lists the live services.",
        )
    done = next((answer for answer in told if answer.engines), None)
    if done is not None:
        return done.engines
    refused = told[0]
    if refused.known:
        raise CommandError(f"{refused.refusal}.", f"Known are {', '.join(refused.known)}.")
    raise CommandError(
        f"{refused.refusal}.",
        "Requests for them would get 503. Add another engine first, or drain it all the same with --force."
        if "last engine" in refused.refusal
        else "`pointsman engines list` shows every engine.",
    )


def _told(each: OrderedDrain, query: DrainQuery) -> str:
    before = f" It drained already: {each.before}." if each.before else ""
    warning = f" WARNING: nothing else serves {each.warning}; requests for it get 503." if each.warning else ""
    when = "Its open requests move to other engines now."
    if query.within_ms:
        left_s = f"{query.within_ms / 1000:g} s"
        when = f"Its open requests have {left_s} to end; those that are left then move to other engines."
    return f"{each.url} takes no new requests. {when}{before}{warning}"


async def _drained(workers: Workers, each: OrderedDrain, query: DrainQuery, began: float, console: Console) -> bool:
    def say(words: str) -> None:
        console.print(f"{each.url} {words}", soft_wrap=True, markup=False)

    reported, idle_since = False, None
    ends = began + query.within_ms / 1000 + AFTER_S
    first = workers.workers_of(each.pool).get(each.worker)
    while True:
        now = time.monotonic()
        view = workers.workers_of(each.pool).get(each.worker)
        after = f"after {now - began:.1f} s"
        if view is None or (first is not None and view.boot_id != first.boot_id):
            say(f"has left the pool {each.pool}, or has restarted, {after}.")
            return True
        reported = reported or view.draining is not None
        if not reported and now - began >= REPORTED_S:
            say("isn't reported as draining: its agent is of an earlier version, or is gone.")
            return False
        if view.opaque and reported and now >= ends:
            say(f"doesn't tell its load. What could move has moved, {after}.")
            return True
        if not _is_idle(view):
            idle_since = None
        elif idle_since is None:
            idle_since = now
        elif reported and now - idle_since >= IDLE_S:
            say(f"has no requests left, {after}: it can be stopped. After a restart it takes requests again.")
            return True
        if now >= ends and not view.opaque and not _is_idle(view):
            left = counted(view.running + view.waiting, "request")
            say(f"still has {left} that no other engine can continue. They run until they end or it is stopped.")
            return False
        await asyncio.sleep(_LOOK_S)


def _is_idle(view: WorkerView) -> bool:
    return not view.opaque and not view.running and not view.waiting


async def _serving(workers: Workers, each: OrderedDrain, console: Console) -> bool:
    began = time.monotonic()
    while time.monotonic() - began < REPORTED_S:
        view = workers.workers_of(each.pool).get(each.worker)
        if view is not None and view.draining is None:
            before = "" if each.before else " It didn't drain."
            console.print(f"{each.url} takes requests again.{before}", soft_wrap=True, markup=False)
            return True
        await asyncio.sleep(_LOOK_S)
    view = workers.workers_of(each.pool).get(each.worker)
    why = view.draining.why if view is not None and view.draining is not None else "it has left"
    console.print(f"{each.url} still takes no requests: {why}.", soft_wrap=True, markup=False)
    return False
