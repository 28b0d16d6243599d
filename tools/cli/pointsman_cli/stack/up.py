"""`pointsman up`: a gateway that runs until a signal ends it."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pointsman_cli.stack import session
from pointsman_cli.stack.plan import Kind
from pointsman_cli.stack.stack import LocalStack, StackOptions
from pointsman_cli.words import counted


async def up(options: StackOptions, console: Console) -> None:
    """Run a stack until a signal."""

    async def work(stack: LocalStack, took_s: float) -> None:
        console.print(Text.assemble(("Pointsman is ready", "bold green"), (f"  after {took_s:.1f} s", "dim")))
        console.print()
        for line in where(stack):
            console.print(line, soft_wrap=True)
        # After the rest: the address answers from the moment it is printed.
        if address := await stack.wait_for_console():
            console.print(Text.assemble(("  Console  ", "bold"), address, ("  (opens once)", "dim")), soft_wrap=True)
        await asyncio.get_running_loop().create_future()

    await session.run(options, console, work)


def where(stack: LocalStack) -> list[Table | Text]:
    """The addresses of the stack, and the first commands to try."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_row("  Gateway", f"{stack.base_url}/v1")
    table.add_row("  Models", ", ".join((*stack.served.models, *stack.served.loras)))
    table.add_row("  NATS", stack.shown_nats)
    table.add_row("  Metrics", _metrics(stack))
    table.add_row("  Logs", str(stack.log_folder))
    body = json.dumps({"model": stack.served.models[0], "messages": [{"role": "user", "content": "Hello!"}]})
    key = "" if stack.options.engine_key is None else " -H 'authorization: Bearer <the engines' key>'"
    curl = f"curl {stack.base_url}/v1/chat/completions -H 'content-type: application/json'{key} \\\n       -d '{body}'"
    nats = "" if stack.shown_nats.endswith(":4222") else f" --nats {stack.shown_nats}"
    command = _command()
    engines = [keeper for keeper in stack.keepers if keeper.plan.kind is Kind.ENGINE]
    lines: list[Table | Text] = [
        table,
        Text(),
        Text("  Send a request", "bold"),
        Text(f"     {curl}"),
        Text(),
        Text("  In another terminal", "bold"),
        Text.assemble(f"     {command} watch{nats}", ("    every decision, and why", "dim")),
        Text.assemble(f"     {command} doctor{nats}", ("   is everything as it should be", "dim")),
        Text(),
    ]
    if engines:
        lines.append(
            Text(
                f"  {counted(len(engines), 'simulated engine')}. Real ones: {command} up --engine http://host:8000",
                "dim",
            )
        )
    lines.append(Text("  Ctrl-C ends everything.", "dim"))
    return lines


def _metrics(stack: LocalStack) -> str:
    """Where the processes' metrics are: a URL, or the ports of several."""
    urls = [keeper.url for keeper in stack.keepers if keeper.plan.kind in (Kind.EDGE, Kind.SERVICE, Kind.AGENT)]
    ports = [url.rpartition(":")[2] for url in urls]
    also = f"  (and the ports {', '.join(ports[1:])})" if ports[1:] else ""
    return f"{urls[0]}/metrics{also}"


def _command() -> str:
    """This command as the person would type it here."""
    if shutil.which("pointsman") == str(Path(sys.argv[0]).absolute()):
        return "pointsman"
    return min(os.path.relpath(sys.argv[0]), os.path.abspath(sys.argv[0]), key=len)  # noqa: PTH100 - as it was typed
