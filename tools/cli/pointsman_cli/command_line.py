"""Shared by all commands: the event loop, the console, and the option that names the server."""

import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

NatsOption = Annotated[
    str | None, typer.Option("--nats", metavar="URL", help="NATS server; default: POINTSMAN_NATS_URL, else this host.")
]


def run(work: Coroutine[object, object, None]) -> None:
    import asyncio

    asyncio.run(work)


def succeed(work: Coroutine[object, object, bool]) -> None:
    import asyncio

    if not asyncio.run(work):
        raise typer.Exit(1)


def console() -> "Console":
    from rich.console import Console

    # Programs and log files get unwrapped lines.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)
