"""`pointsman batch`: the options of its commands."""

from pathlib import Path
from typing import Annotated

import typer

from pointsman_cli.command_line import console, run, secret, succeed

batch_app = typer.Typer(no_args_is_help=True, help="Run files of requests as batches, and show batches.")

GatewayOption = Annotated[
    str,
    typer.Option("--gateway", metavar="URL", envvar="POINTSMAN_GATEWAY_URL", help="The gateway's address."),
]
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="env:NAME", help="Variable with the key that the gateway asks for.")
]


@batch_app.command("run")
def run_file(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A request on each line.")],
    gateway: GatewayOption = "http://127.0.0.1:8080",
    key: KeyOption = None,
    window: Annotated[str, typer.Option(help="Time in which the lines run, e.g. 90m, 24h, 2d.")] = "24h",
    output: Annotated[
        Path | None, typer.Option(help="File for the answers; default: beside the requests. Errors go beside it.")
    ] = None,
) -> None:
    """Upload a file, run it as a batch, follow its progress, and write the answers. Status 1 when a line has none.

    Ctrl-C leaves the batch running; `pointsman batch status` shows it."""
    from pointsman_cli.batch import batch_commands

    succeed(
        batch_commands.run_file(
            gateway=gateway, key=secret(key), file=file, window=window, output=output, console=console()
        )
    )


@batch_app.command("status")
def status(
    batch: Annotated[str | None, typer.Argument(help="Its id; default: the newest batches.")] = None,
    gateway: GatewayOption = "http://127.0.0.1:8080",
    key: KeyOption = None,
) -> None:
    """Show batches with their progress, and when they will have ended at the pace so far."""
    from pointsman_cli.batch import batch_commands

    run(batch_commands.show_status(gateway, secret(key), batch, console()))
