"""`pointsman replay`: the options."""

from pathlib import Path
from typing import Annotated

import typer


def _share(value: str) -> float:
    number = value.removesuffix("%")
    try:
        share = float(number) / (100.0 if number != value else 1.0)
    except ValueError as error:
        raise typer.BadParameter(f"{value!r} is not a share; write e.g. 0.5%.") from error
    if not 0.0 <= share <= 1.0:
        raise typer.BadParameter(f"{value} isn't between 0% and 100%.")
    return share


def replay(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG...", help="Segments, or folders of them.")],
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Decide by this scheduling policy: YAML, as below `scheduling.<name>`."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Decide by the policy that this configuration gives the pool.")
    ] = None,
    allow: Annotated[
        str, typer.Option(metavar="SHARE", help="Share of decisions that may differ with status 0, e.g. 0.5%.")
    ] = "0%",
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result as JUnit XML, for CI.")] = None,
    show: Annotated[int, typer.Option(metavar="N", min=0, help="Differing decisions that are explained.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Make every decision of a flight log again. Status 1 when more of them differ than --allow says.

    Without --policy and --config: from the recorded inputs alone, bit for bit; the first input after which the states
    differ is named. With one of them: how many decisions another policy changes, and why."""
    from pointsman_cli.command_line import console
    from pointsman_cli.flight.replay import ReplayArguments
    from pointsman_cli.flight.replay import replay as run
    from pointsman_cli.words import CommandError

    if policy is not None and config is not None:
        raise CommandError("--policy and --config exclude each other.", "Write one of them.")
    wanted = ReplayArguments(
        logs=tuple(logs), policy=policy, config=config, allow=_share(allow), junit=junit, show=show, as_json=as_json
    )
    if not run(wanted, console()):
        raise typer.Exit(1)
