"""Shared by all commands: the event loop, the console, and the option that names the server."""

import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated

import typer

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
