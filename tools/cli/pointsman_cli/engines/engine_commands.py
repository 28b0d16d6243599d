"""`pointsman engines add`, `remove` and `list`."""

import asyncio
import time
from typing import Final

import aiohttp
from rich.console import Console

from pointsman_cli import bus
from pointsman_cli.config import config_commands, configuration, stored_configuration
from pointsman_cli.engines import engines, listed_engines
from pointsman_cli.engines.following import following
from pointsman_cli.engines.listed_engines import Change
from pointsman_cli.tables import borderless, folding, numbers
from pointsman_cli.words import CommandError, counted
from pointsman_contracts.pool import WorkerView
from pointsman_core.config import Config
from pointsman_core.worker_name import worker_name
from pointsman_runtime.configuring.config_text import parse
from pointsman_runtime.jetstream.stored_configuration import StoredRevision

PATIENCE_S: Final = 10.0
"""Seconds that an engine may take to serve once it is listed, and to leave once it isn't."""
_LOOK_S: Final = 0.02


async def add(url: str | None, engine: str, pool: str | None, key: str | None, console: Console) -> bool:
    """List an engine in the stored configuration, and wait until it serves. False when it doesn't in time."""
    async with aiohttp.ClientSession() as http:
        [served] = await engines.ask([engine], http, key)
    worker = worker_name(served.url)
    async with stored_configuration.opened(url) as store, following(store.client) as workers:
        current, config = await _current(store)
        if any(
            view.url.rstrip("/") == served.url
            for name in workers.list_pools()
            for view in workers.workers_of(name).values()
        ):
            raise CommandError(f"{served.url} is served already.", "`pointsman engines list` shows its pool.")
        change = listed_engines.added(current.text, config, served, pool)
        if not await _put(store, change, current, console):
            return False
        where = f"the pool {change.pool}{', which is new' if change.new else ''}"
        began = time.monotonic()
        while (view := workers.workers_of(change.pool).get(worker)) is None or view.state != "serving":
            if time.monotonic() - began >= PATIENCE_S:
                why = (
                    workers.find_unreached(change.pool).get(worker)
                    or (view.reason if view else "")
                    or "it isn't read yet"
                )
                console.print(f"{served.url} is listed in {where}, but doesn't serve: {why}.", soft_wrap=True)
                return False
            await asyncio.sleep(_LOOK_S)
        models = ", ".join((*served.models, *served.loras))
        took = f"{time.monotonic() - began:.1f} s"
        console.print(f"{served.url} serves {models} in {where}, after {took}.", soft_wrap=True)
    return True


async def remove(url: str | None, engine: str, console: Console) -> bool:
    """Take an engine out of the stored configuration, and wait until no new request goes to it. False when it still
    gets some."""
    async with stored_configuration.opened(url) as store, following(store.client) as workers:
        current, config = await _current(store)
        change = listed_engines.removed(current.text, config, engine.rstrip("/").removesuffix("/v1"))
        gone = {entry.worker_name for entry in config.pools[change.pool].engines}
        after = parse(change.text).pools.get(change.pool)
        [worker] = gone - {entry.worker_name for entry in (after.engines if after is not None else ())}
        if not await _put(store, change, current, console):
            return False
        if change.new:
            console.print(f"The pool {change.pool} is removed with its last engine.", soft_wrap=True)
            return True
        began = time.monotonic()
        while worker in workers.workers_of(change.pool):
            if time.monotonic() - began >= PATIENCE_S:
                console.print(f"{engine} is still in the pool {change.pool}.", soft_wrap=True)
                return False
            await asyncio.sleep(_LOOK_S)
        console.print(f"{engine} gets no new requests. Those that it has end in their own time.", soft_wrap=True)
    return True


async def table(url: str | None, console: Console) -> None:
    """Print every engine with its pool, state and load."""
    async with bus.connected(bus.settings(url), "pointsman engines") as client, following(client) as workers:
        columns = borderless(*folding("pool", "engine", "state", "models"), *numbers("running", "waiting"))
        number = 0
        for pool in workers.list_pools():
            for view in workers.workers_of(pool).values():
                number += 1
                state = _state_of(view)
                load = ("-", "-") if view.opaque else (str(view.running), str(view.waiting))
                columns.add_row(pool, view.url, state, ", ".join((*view.models, *view.loras)), *load)
            for worker, why in workers.find_unreached(pool).items():
                number += 1
                columns.add_row(pool, worker, f"unreachable: {why}", "", "-", "-")
        if number:
            console.print(columns)
        console.print(f"{counted(number, 'engine')} in {counted(len(workers.list_pools()), 'pool')}.")


def _state_of(view: WorkerView) -> str:
    notice = view.draining
    if notice is None:
        return f"{view.state}: {view.reason}" if view.reason else view.state
    left = "" if notice.left_ms is None else f", {notice.left_ms / 1000:.0f} s left"
    return f"{view.state}{left}: {notice.why}"


async def _current(store: stored_configuration.ConfigurationStore) -> tuple[StoredRevision, Config]:
    current = await store.read_current()
    return current, parse(current.text)


async def _put(
    store: stored_configuration.ConfigurationStore, change: Change, current: StoredRevision, console: Console
) -> bool:
    document = configuration.checked(change.text, f"revision {current.revision} with this change", by_hand=False)
    return await config_commands.put(store, document, f"The pool {change.pool}, changed,", console)
