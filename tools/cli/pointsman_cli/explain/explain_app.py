"""`pointsman explain`: the options."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from pointsman_cli.command_line import NatsOption, console
from pointsman_cli.command_line import run as execute
from pointsman_cli.words import CommandError


def explain(
    request_id: Annotated[str | None, typer.Argument(help="The x-request-id of an answer.")] = None,
    dry_run: Annotated[
        Path | None,
        typer.Option(
            "--dry-run",
            metavar="FILE",
            help='Instead of a past request: where this one would go. {"path", "headers", "body"}, or the body alone, '
            "as JSON. Nothing is sent to an engine or counted.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME: VALUE", help="With --dry-run: a header of it; repeatable."),
    ] = None,
    nats: NatsOption = None,
    since_minutes: Annotated[
        float,
        typer.Option("--since", metavar="MINUTES", min=0, max=10**7, help="Minutes to look back."),
    ] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print the stored events.")] = False,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="Write a picture of the decision to this file instead.")
    ] = None,
    dark: Annotated[bool, typer.Option("--dark", help="With --png: on a dark background.")] = False,
) -> None:
    """Explain one request from the stored events: why its endpoint was chosen, and why no other.

    With --dry-run FILE: where a request would go now, and why. Status 1 when it would be refused."""
    from pointsman_cli.explain.explain import Picture
    from pointsman_cli.explain.explain import explain as run

    if dry_run is not None and request_id is None and png is None:
        from pointsman_cli.explain.dry_run import explain_dry_run
        from pointsman_cli.sample_request import read_sample
        from pointsman_contracts.message import Blob
        from pointsman_contracts.story import DryRunQuery

        asked = read_sample(dry_run, header or [])
        headers = tuple((name.decode(), value.decode()) for name, value in asked.headers)
        query = DryRunQuery(path=asked.path, headers=headers, body=Blob(asked.body))
        execute(explain_dry_run(nats, query, console(), as_json=as_json))
        return
    if request_id is None or dry_run is not None:
        raise CommandError("which request?", "Give an id, or --dry-run FILE (without --png), and not both.")
    picture = None if png is None else Picture(png, dark)
    execute(run(nats, request_id, timedelta(minutes=since_minutes), console(), as_json=as_json, picture=picture))
