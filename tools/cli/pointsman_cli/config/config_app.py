"""`pointsman config`: the commands and their options."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pointsman_cli.command_line import NatsOption, console, print_wrapped, run, succeed
from pointsman_cli.words import CommandError, counted

config_app = typer.Typer(no_args_is_help=True, help="Check and apply configuration files.")


def _revision(text: str) -> int:
    if not text.isdecimal():
        raise CommandError(
            f"{text!r} isn't the number of a revision.",
            "Write a number, e.g. 3; `pointsman config history` lists the revisions.",
        )
    return int(text)


@config_app.command("check")
def config_check(
    file: Annotated[Path, typer.Argument(help="E.g. pointsman.yaml.")],
) -> None:
    """List the problems of a configuration with their places: those of the document, or, when it has none, those that
    the services find. Of a policy, only the first faulty list of plugins is reported. Status 1 when there is a
    problem."""
    from rich.text import Text

    from pointsman_cli.config import configuration

    document, problems = configuration.check(configuration.read(file))
    for problem in problems:
        print_wrapped(console(), Text.assemble((f"{file}: ", "dim"), configuration.shown(problem)))
    if document is None:
        raise typer.Exit(1)
    config = document.config
    parts = ((config.pools, "pool"), (config.model_names(), "model"), (config.profiles, "profile"))
    size = ", ".join(counted(len(part), noun) for part, noun in parts)
    console().print(f"{file} is valid: {size}; policy {config.policy_hash()}", soft_wrap=True)


@config_app.command("apply")
def config_apply(
    file: Annotated[Path, typer.Argument(help="E.g. pointsman.yaml.")],
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.0, help="Look for a NATS server that can store it for so long."),
    ] = 0.0,
    nats: NatsOption = None,
) -> None:
    """Check a configuration and make it the current one of every service on the bus. Status 1 when one stays behind."""
    from pointsman_cli.config import config_commands

    succeed(config_commands.apply(nats, file, console(), wait))


@config_app.command("diff")
def config_diff(
    file: Annotated[Path, typer.Argument(help="E.g. pointsman.yaml.")],
    revision: Annotated[
        int | None,
        typer.Option(parser=_revision, metavar="NUMBER", help="Compare with this one; default: the current one."),
    ] = None,
    nats: NatsOption = None,
) -> None:
    """List the keys that a configuration would change."""
    from pointsman_cli.config import config_commands

    run(config_commands.diff(nats, file, revision, console()))


@config_app.command("history")
def config_history(nats: NatsOption = None) -> None:
    """List the revisions that were applied, and what each changed."""
    from pointsman_cli.config import config_commands

    run(config_commands.history(nats, console()))


@config_app.command("rollback")
def config_rollback(
    revision: Annotated[
        int | None,
        typer.Argument(parser=_revision, metavar="REVISION", help="Default: the one before the current one."),
    ] = None,
    nats: NatsOption = None,
) -> None:
    """Check an older revision and make it the current one again, under a new number."""
    from pointsman_cli.config import config_commands

    succeed(config_commands.rollback(nats, revision, console()))


@config_app.command("status")
def config_status(nats: NatsOption = None) -> None:
    """Show which replica runs which revision. Status 1 when one that takes work is behind."""
    from pointsman_cli.config import config_commands

    succeed(config_commands.status(nats, console()))


@config_app.command("reference")
def config_reference() -> None:
    """Print every key and every built-in plugin of this version, as Markdown."""
    from pointsman_cli.config.reference import reference

    sys.stdout.write(reference())
