"""`pointsman sessions`: the options."""

from datetime import timedelta
from typing import Annotated

import typer

from pointsman_cli.command_line import NatsOption, console, run


def sessions(
    session: Annotated[str, typer.Argument(help="A session, or a part of its name: shows its turns.")] = "",
    tenant: Annotated[str, typer.Option(help="Only sessions of this tenant.")] = "",
    agent: Annotated[str, typer.Option(help="Only sessions of this agent, e.g. claude-code, codex, other.")] = "",
    model: Annotated[str, typer.Option(help="Only sessions with a request for this model.")] = "",
    since_minutes: Annotated[
        float, typer.Option("--since", metavar="MINUTES", min=0, max=10**7, help="Minutes to look back.")
    ] = 15,
    limit: Annotated[int, typer.Option(min=1, max=5000, help="Most sessions that are listed, the latest first.")] = 50,
    nats: NatsOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a session, or a turn, for programs.")
    ] = False,
) -> None:
    """Show the sessions of agents from the stored events: turns, gaps, engines and moves between them, and how much of
    the prompts came from caches. With a session: each turn, and why it went to its engine."""
    from pointsman_cli.explain.sessions import sessions as show
    from pointsman_core.agent_sessions import WantedSessions

    wanted = WantedSessions(session, tenant, agent, model)
    run(show(nats, wanted, timedelta(minutes=since_minutes), limit, console(), as_json=as_json))
