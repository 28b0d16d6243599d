"""`pointsman nats`: the options of its commands."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pointsman_cli.command_line import console as _console
from pointsman_cli.words import CommandError

nats_app = typer.Typer(no_args_is_help=True, help="Make the logins of a NATS server.")

StageOption = Annotated[
    list[str] | None, typer.Option("--stage", metavar="NAME", help="A stage of your own that gets a login; repeatable.")
]


QueueOption = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="NAME", help="A work queue that gets a login for its producers; repeatable."),
]


@nats_app.command("permissions")
def nats_permissions(
    stage: StageOption = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="FILE", help="Print nothing; status 1 when FILE differs.")
    ] = None,
) -> None:
    """Print the subjects that each service may publish and subscribe to, for the server's configuration."""
    from pointsman_cli.config import configuration
    from pointsman_cli.keys import accounts, logins

    logins.refuse(stage or [])
    text = accounts.permissions(stage or [])
    if check is None:
        sys.stdout.write(text)
    elif configuration.read(check) != text:
        raise CommandError(
            f"{check} differs from the permissions that follow from the contracts.",
            f"Run: pointsman nats permissions > {check}",
        )


@nats_app.command("users")
def nats_users(
    folder: Annotated[Path, typer.Argument(help="Folder to write; passwords that it already has are kept.")],
    agent: Annotated[
        list[str] | None, typer.Option("--agent", metavar="POOL/WORKER", help="A worker's agent; repeatable.")
    ] = None,
    stage: StageOption = None,
    queue: QueueOption = None,
    kubernetes: Annotated[bool, typer.Option("--kubernetes", help="Write secrets.yaml, for kubectl apply.")] = False,
) -> None:
    """Make a password for every login, and write the server's users and each service's credentials."""
    from pointsman_cli.keys import logins

    agents = [logins.worker(text) for text in agent or ()]
    written = logins.write(folder, agents, stage or [], queue or [], kubernetes=kubernetes)
    _console().print(f"wrote {len(written)} files to {folder}; keep all of it but permissions.conf to yourself.")
