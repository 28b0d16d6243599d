"""`pointsman levels`: the options."""

from datetime import timedelta
from typing import Annotated

import typer

from pointsman_cli.command_line import NatsOption, console, run


def levels(
    by: Annotated[str, typer.Option(help="Group rows by class, tenant or model.")] = "class,tenant,model",
    since_minutes: Annotated[
        int, typer.Option("--since", metavar="MINUTES", min=1, max=2880, help="Minutes to look back.")
    ] = 60,
    nats: NatsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row, for programs.")] = False,
) -> None:
    """Show how many answers kept their service level, and the tokens of those, by class, tenant and model."""
    from pointsman_cli.explain.levels import levels as show

    run(show(nats, by, timedelta(minutes=since_minutes), console(), as_json=as_json))
