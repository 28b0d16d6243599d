"""`pointsman config apply`, `diff`, `history`, `rollback` and `status`."""

import asyncio
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from pointsman_cli import bus
from pointsman_cli.config import configuration, revisions, stored_configuration
from pointsman_cli.config.configuration import Document
from pointsman_cli.config.needed_services import missing_services
from pointsman_cli.config.stored_configuration import ConfigurationStore
from pointsman_cli.tables import borderless
from pointsman_cli.words import CommandError
from pointsman_core.config import Config, ConfigError
from pointsman_core.config.changes import ConfigChange, changes
from pointsman_runtime.configuring.config_text import parse
from pointsman_runtime.jetstream.stored_configuration import StoredRevision

PATIENCE_S: Final = 10.0
"""Seconds that replicas may take to run a new revision; after that the command reports a failure. A replica whose
server lost the update reads it again within five."""

LONG_PATIENCE_S: Final = 60.0
"""The same for a command that waits: replicas may be starting beside it."""
RETRY_S: Final = 1.0

_STYLES: Final = {"+": "green", "-": "red", "~": "yellow"}


async def apply(url: str | None, file: Path, console: Console, wait_s: float = 0.0) -> bool:
    """Store a file that every service accepts; False when a replica doesn't run it in the end.

    For `wait_s` seconds it looks for a server that can store it. The file itself is refused at once.
    """
    document = configuration.checked(configuration.read(file), str(file))
    bus.settings(url)
    end = time.monotonic() + wait_s
    told = ""
    while True:
        try:
            async with stored_configuration.opened(url) as store:
                return await put(store, document, str(file), console, LONG_PATIENCE_S if wait_s else PATIENCE_S)
        except CommandError as error:
            if time.monotonic() + RETRY_S > end:
                raise
            if str(error) != told:
                told = str(error)
                console.print(f"Waiting: {told}", soft_wrap=True)
        await asyncio.sleep(RETRY_S)


async def rollback(url: str | None, revision: int | None, console: Console) -> bool:
    """Store an older revision's text again, in the way of `apply`."""
    async with stored_configuration.opened(url) as store:
        kept = await store.list_existing()
        wanted = stored_configuration.previous(kept) if revision is None else stored_configuration.find(kept, revision)
        name = f"revision {wanted.revision}"
        document = configuration.checked(wanted.text, name, by_hand=False)
        return await put(store, document, name, console)


async def diff(url: str | None, file: Path, revision: int | None, console: Console) -> None:
    """Print what applying the file would change."""
    document = configuration.checked(configuration.read(file), str(file))
    async with stored_configuration.opened(url) as store:
        kept = await store.list_existing()
    base = kept[-1] if revision is None else stored_configuration.find(kept, revision)
    found = changes(_readable(base), document.config)
    for change in found:
        console.print(_line(change), soft_wrap=True)
    count = len(found)
    console.print(
        f"{count} key{'' if count == 1 else 's'} of revision {base.revision} would change."
        if found
        else f"{file} means the same as revision {base.revision}."
    )


async def history(url: str | None, console: Console) -> None:
    """Print every stored revision, newest first, with its changes."""
    async with stored_configuration.opened(url) as store:
        kept = await store.list_existing()
    table = borderless("revision", "applied", "policy", "changed")
    for position in range(len(kept) - 1, -1, -1):
        stored = kept[position]
        mark = " (current)" if position == len(kept) - 1 else ""
        changed = _changed(kept[position - 1], stored) if position else ""
        table.add_row(f"{stored.revision}{mark}", f"{stored.at:%Y-%m-%d %H:%M:%S}", _policy(stored), changed)
    console.print(table)


async def status(url: str | None, console: Console) -> bool:
    """Print which replica runs which revision; False when one that takes work isn't at the current one."""
    async with stored_configuration.opened(url) as store:
        current = await store.read_current()
        async with revisions.listening(store.client) as replicas:
            living = replicas.living_replicas()
    table = borderless("service", "instance", "runs", "")
    for presence in living:
        state = "" if presence.ready else "not ready"
        if presence.revision < current.revision:
            state = state or "behind: its log says config_refused if it refused it"
        table.add_row(presence.service, presence.instance, str(presence.revision), state)
    console.print(table)
    late = revisions.behind(living, current.revision)
    console.print(
        f"Revision {current.revision} is stored; {len(living) - len(late)} of {len(living)} replicas run it.",
        soft_wrap=True,
    )
    return not late


async def put(
    store: ConfigurationStore, document: Document, source: str, console: Console, patience_s: float = PATIENCE_S
) -> bool:
    """Store a document, named `source`, and wait until every replica runs it; False when one doesn't. Services that it
    needs and that aren't heard are named: they may be started after it."""
    async with revisions.listening(store.client) as replicas:
        revision = await store.store_text(document.text)
        console.print(f"{source} is revision {revision}; policy {document.config.policy_hash()}", soft_wrap=True)
        took_s = await revisions.everybody_runs(replicas, revision, patience_s)
        living = replicas.living_replicas()
    if not living:
        console.print("No service is running; those that start will run it.")
    elif took_s is not None:
        console.print(f"{len(living)} of {len(living)} replicas run it.")
    else:
        for presence in revisions.behind(living, revision):
            console.print(
                f"{presence.service} {presence.instance} stays at revision {presence.revision}; "
                f"if it refused revision {revision}, its log says why (config_refused).",
                soft_wrap=True,
            )
    if living:
        for problem, advice in missing_services(document.config, {presence.service for presence in living}):
            console.print(f"But {problem}. {advice}", style="yellow", soft_wrap=True)
    return not living or took_s is not None


def _readable(stored: StoredRevision) -> Config:
    """The configuration of a revision; an empty one when this version can't read it."""
    try:
        return parse(stored.text)
    except ConfigError:
        return Config()


def _policy(stored: StoredRevision) -> str:
    try:
        return parse(stored.text).policy_hash()
    except ConfigError:
        return "not readable by this version"


def _changed(before: StoredRevision, after: StoredRevision) -> str:
    found = [change.path for change in changes(_readable(before), _readable(after))]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more if found else "nothing"


def _line(change: ConfigChange) -> Text:
    words = str(change)
    return Text(words, _STYLES[words[0]])
