"""Shared by all commands: the event loop, the console, and the option that names the server."""

import os
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated

import typer

from pointsman_cli.words import CommandError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

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


def print_wrapped(to: "Console", text: "Text", indent: int = 0) -> None:
    """Print a text: broken at words on a terminal, in one line for a program or a log."""
    from rich.padding import Padding
    from rich.text import Text

    if to.is_terminal:
        to.print(Padding(text, (0, 0, 0, indent), expand=False))
    else:
        to.print(Text(" " * indent) + text, soft_wrap=True)


def print_error(problem: str, advice: str) -> None:
    """Print to stderr what was wrong, and below it what would be right."""
    from rich.console import Console
    from rich.text import Text

    stderr = Console(stderr=True, highlight=False)
    print_wrapped(stderr, Text.assemble(("pointsman: ", "bold red"), problem))
    if advice:
        print_wrapped(stderr, Text(advice), indent=2)


def secret(reference: str | None) -> str | None:
    """The value of the variable in an `env:NAME` reference. A secret on the command line would show in process
    lists."""
    if reference is None:
        return None
    kind, _, name = reference.partition(":")
    if kind != "env" or not name:
        raise CommandError("write a key as env:NAME, the variable that holds it, and never the key itself.")
    if (value := os.environ.get(name)) is None:
        raise CommandError(f"the variable {name} isn't set.")
    return value
