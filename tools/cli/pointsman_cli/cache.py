"""`pointsman cache purge`: have every semantic-cache forget answers."""

import asyncio
from typing import Final

from nats.aio.msg import Msg
from rich.console import Console

from pointsman_cli import bus
from pointsman_cli.words import CommandError
from pointsman_contracts.cache import CachePurge, CachePurged
from pointsman_contracts.subjects import subject

PATIENCE_S: Final = 3.0
"""Seconds until the first answer."""
QUIET_S: Final = 0.5
"""Seconds without a further answer after which every service counts as having answered."""


async def purge(url: str | None, question: CachePurge, console: Console) -> None:
    """Send the request, and print the number that each replica forgot. Raises CommandError when none answers, or one
    fails."""
    answers: asyncio.Queue[CachePurged] = asyncio.Queue()
    told: list[CachePurged] = []
    async with bus.connected(bus.settings(url), "pointsman cache") as client:
        inbox = client.new_inbox()

        async def heard(message: Msg) -> None:
            if message.data:
                answers.put_nowait(CachePurged.decode(message.data))

        await client.subscribe(inbox, cb=heard)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        await client.publish(subject(CachePurge), question.encode(), reply=inbox)
        try:
            while True:
                async with asyncio.timeout(QUIET_S if told else PATIENCE_S):
                    told.append(await answers.get())
        except TimeoutError:
            pass  # no further answer
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
