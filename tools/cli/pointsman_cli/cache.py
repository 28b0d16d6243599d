"""`pointsman cache purge`: have every semantic-cache forget answers."""

from typing import Final

from rich.console import Console

from pointsman_cli import bus
from pointsman_cli.words import CommandError
from pointsman_contracts.cache import CachePurge, CachePurged

PATIENCE_S: Final = 3.0
"""Seconds until the first answer."""
QUIET_S: Final = 0.5
"""Seconds without a further answer after which every service counts as having answered."""


async def purge(url: str | None, question: CachePurge, console: Console) -> None:
    """Send the request, and print the number that each replica forgot. Raises CommandError when none answers, or one
    fails."""
    async with bus.connected(bus.settings(url), "pointsman cache") as client:
        told = await bus.gather_answers(client, question, CachePurged, first_s=PATIENCE_S, quiet_s=QUIET_S)
    if not told:
        raise CommandError(
            "no replica of the semantic-cache answers.",
            "`pointsman up` starts one when a profile has `semantic-cache`; `pointsman doctor` lists the live "
            "services.",
        )
    for answer in sorted(told, key=lambda one: one.instance):
        console.print(f"{answer.instance}: {answer.entries} cached answers deleted", soft_wrap=True, markup=False)
    failed = [answer for answer in told if answer.problem is not None]
    if failed:
        raise CommandError(
            f"{failed[0].instance} couldn't delete every cached answer: {failed[0].problem}.", "Try again."
        )
