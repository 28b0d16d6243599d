"""`pointsman mirrors`: the options."""

from datetime import timedelta
from typing import Annotated

import typer

from pointsman_cli.command_line import NatsOption, console, run


def mirrors(
    mirror: Annotated[str, typer.Argument(help="Only this mirror.")] = "",
    since_minutes: Annotated[
        float, typer.Option("--since", metavar="MINUTES", min=0, max=10**7, help="Minutes to look back.")
    ] = 60,
    nats: NatsOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each pair of models, for programs.")
    ] = False,
) -> None:
    """Compare models that answered the same requests, by the events of mirrored requests: failures, times, tokens,
    cost, and how alike the answers are."""
    from pointsman_cli.explain.mirrors import mirrors as show

    run(show(nats, mirror, timedelta(minutes=since_minutes), console(), as_json=as_json))
