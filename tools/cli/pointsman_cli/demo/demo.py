"""`pointsman demo`: start a stack, send mixed traffic, and show decisions, reasons and cost."""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Sequence

import aiohttp
from nats.aio.msg import Msg
from rich.console import Console
from rich.text import Text

from pointsman_cli import bus
from pointsman_cli.demo.client import send
from pointsman_cli.demo.screen import Screen
from pointsman_cli.demo.summary import Measures, summary
from pointsman_cli.demo.workload import User, crowd
from pointsman_cli.explain import events
from pointsman_cli.stack import session
from pointsman_cli.stack.plan import Kind
from pointsman_cli.stack.stack import LocalStack, StackOptions
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled

SETTLE_S = 0.5
"""After the last answer, for the events of it."""


async def demo(options: StackOptions, console: Console, *, clients: int, seconds: float) -> bool:
    """Run the demo; False when a request failed or a signal ended it early."""
    measures = Measures()

    async def work(stack: LocalStack, took_s: float) -> None:
        kinds = [keeper.plan.kind for keeper in stack.keepers]
        words = f"  {len(kinds)} processes, {kinds.count(Kind.ENGINE)} of them simulated engines, after {took_s:.1f} s"
        console.print(Text.assemble(("Pointsman is ready", "bold green"), (words, "dim")), soft_wrap=True)
        console.print()
        began = time.monotonic()
        await _traffic(stack, measures, console, clients, seconds)
        if not console.is_terminal:
            console.print()
        console.print(summary(measures, time.monotonic() - began))
        console.print()
        _what_next(console)

    finished = await session.run(options, console, work)
    return finished and bool(measures.answers) and not measures.failed_answers


async def _traffic(stack: LocalStack, measures: Measures, console: Console, clients: int, seconds: float) -> None:
    users = _crowd(stack, clients)
    workers = [keeper.plan.name for keeper in stack.keepers if keeper.plan.kind is Kind.ENGINE]
    with Screen(console, measures, workers, clients, seconds) as screen:

        async def receive(message: Msg) -> None:
            event = events.decode(message)
            if isinstance(event, RequestScheduled):
                screen.show_decision(event)
            elif isinstance(event, ResponseCompleted):
                measures.add_completion(event)

        async with bus.connected(bus.settings(stack.nats_url), "pointsman demo") as client:
            await client.subscribe(events.ALL_EVENTS, cb=receive)  # pyright: ignore[reportUnknownMemberType] - nats-py
            await client.flush()
            await _drive(stack.base_url, users, seconds, measures)
            await asyncio.sleep(SETTLE_S)


def _crowd(stack: LocalStack, size: int) -> list[User]:
    """Users of the first pool's models, its adapters, and of a selector where a profile has one."""
    pool = next(iter(stack.config.pools.values()))
    profiles = stack.config.profiles.values()
    return crowd(
        [name for name in pool.models if name not in pool.loras],
        pool.loras,
        auto=any(use.service == "model-selector" for profile in profiles for use in profile.request),
        size=size,
    )


async def _drive(door: str, users: Sequence[User], seconds: float, measures: Measures) -> None:
    """Every user sends one request after another until time is up, and reads the last answer to its end."""
    until = time.monotonic() + seconds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def live(user: User) -> None:
            text = ""
            while time.monotonic() < until:
                answer = await send(door, user.make_request(text), http)
                measures.add_answer(answer)
                text = answer.text
                if answer.problem:
                    await asyncio.sleep(0.2)  # a client that hammers a failing server would hide what fails

        await asyncio.gather(*(live(user) for user in users))


def _command() -> str:
    """The command as it was called, or as it is found on the path."""
    called = sys.argv[0]
    return "pointsman" if shutil.which("pointsman") == called else os.path.relpath(called)


def _what_next(console: Console) -> None:
    for line in (
        "Why each request went where it did is an event: docs/auditing.md reads them.",
        f"Next: `{_command()} up`, then a first request as in README.md.",
    ):
        console.print(Text(line, "dim"), soft_wrap=True)
