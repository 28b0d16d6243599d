"""`pointsman weights`: the options."""

from pathlib import Path
from typing import Annotated

import typer

from pointsman_cli.command_line import console


def weights(
    events: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Events as `pointsman watch --json` prints them.")
    ],
    second: Annotated[float, typer.Option(min=0, help="Dollars that a second of waiting costs.")] = 0.001,
    quality: Annotated[float, typer.Option(min=0, help="Dollars that quality 1 is worth more than quality 0.")] = 0.01,
) -> None:
    """Show the regret of joint choices of model and engine, and the weights that would have had less. Changes
    nothing."""
    from pointsman_cli.flight.weights import show_weights

    show_weights(events, second, quality, console())
