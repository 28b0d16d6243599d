"""`pointsman watch`: follow decisions and their outcomes on the bus."""

import asyncio
import sys

from nats.aio.msg import Msg
from rich.console import Console

from pointsman_cli import bus
from pointsman_cli.explain import events
from pointsman_cli.explain.events import EventSelection

PENDING = 10_000
"""Events that may wait for a slow terminal; more are counted and left out."""


async def watch(url: str | None, selection: EventSelection, console: Console, *, as_json: bool) -> None:
    """Print events until a signal."""
    login = bus.settings(url)
    queue: asyncio.Queue[Msg] = asyncio.Queue(PENDING)
    left_out = 0

    async def receive(message: Msg) -> None:
        nonlocal left_out
        try:
            queue.put_nowait(message)
        except asyncio.QueueFull:
            left_out += 1

    async with bus.connected(login, "pointsman watch") as client:
        await client.subscribe(events.ALL_EVENTS, cb=receive)  # pyright: ignore[reportUnknownMemberType] - nats-py
        if not as_json:
            console.print(f"[dim]Following {bus.shown(login)}. Ctrl-C ends.[/]")
        while True:
            event = events.decode(await queue.get())
            if event is not None and selection.matches_event(event):
                if as_json:
                    sys.stdout.write(events.as_json(event) + "\n")
                    sys.stdout.flush()
                else:
                    console.print(events.as_line(event), soft_wrap=True)
            if left_out:
                Console(stderr=True).print(f"{left_out} events left out: this terminal is slower than the traffic")
                left_out = 0
