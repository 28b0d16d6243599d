"""`pointsman regret`: the options."""

from pathlib import Path
from typing import Annotated

import typer

from pointsman_cli.command_line import NatsOption, console, run
from pointsman_cli.words import CommandError


def regret(
    by: Annotated[str, typer.Option(help="Group rows by pool, hour, profile or reason.")] = ("pool,profile,reason"),
    since: Annotated[
        str | None, typer.Option(metavar="HOUR", help="First hour (UTC), e.g. 2026-03-01T09, or a day.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="HOUR", help="Last hour or day, included.")] = None,
    pool: Annotated[str | None, typer.Option(help="Only this pool.")] = None,
    profile: Annotated[str | None, typer.Option(help="Only this scheduling profile.")] = None,
    logs: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="LOG", help="Judge a flight log: segments, or folders of them; repeatable."),
    ] = None,
    nats: NatsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row, for programs.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
) -> None:
    """Show what decisions cost beyond the best candidate, once their requests had ended: by pool, hour and reason, and
    for shadow profiles too. Reads the recorder's judgements, or with --from a flight log."""
    from pointsman_cli.flight.regret import query
    from pointsman_cli.flight.regret import regret as show

    if as_json and as_csv:
        raise CommandError("--json and --csv exclude each other.", "Write one of them.")
    form = "json" if as_json else "csv" if as_csv else "table"
    asked = query(by, since, until, pool, profile)
    if logs:
        from pointsman_cli.flight.regret_log import regret_of

        regret_of(logs, asked, console(), form)
    else:
        run(show(nats, asked, console(), form))
