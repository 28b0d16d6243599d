"""`pointsman sessions`: the sessions of agents, from the stored events of their requests."""

import json
import time
from collections.abc import Sequence
from datetime import timedelta

from pydantic import JsonValue
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pointsman_cli import bus
from pointsman_cli.explain.stored_events import read_events
from pointsman_cli.tables import borderless, folding, numbers, unbroken
from pointsman_cli.words import CommandError, counted
from pointsman_core.agent_sessions import NEEDLE, AgentSessions, GatheredSession, WantedSessions
from pointsman_core.why import spell_time

Row = dict[str, JsonValue]


async def sessions(
    url: str | None, wanted: WantedSessions, since: timedelta, limit: int, console: Console, *, as_json: bool
) -> None:
    """Print the wanted sessions, or the turns of one. CommandError when there is none."""
    found = AgentSessions()
    async with bus.connected(bus.settings(url), "pointsman sessions") as client:
        async for event in read_events(client, since, NEEDLE):
            found.take_event(event)
    count = found.count_sessions(wanted)
    if not count:
        minutes = counted(since // timedelta(minutes=1), "minute")
        known = found.count_sessions(WantedSessions())
        raise CommandError(
            f"no event of the last {minutes} is of {'such a session' if known else 'a session'}.",
            f"{counted(known, 'session')} had other names, tenants, agents or models."
            if known
            else "docs/agents.md says how sessions are recognised; --since looks further back.",
        )
    one = found.find_sessions(wanted) if wanted.session else []
    if one and len({session.id for session in one}) == 1:
        for session in one:
            show_turns(session, console, as_json=as_json)
        return
    rows = found.list_sessions(wanted, limit)
    if as_json:
        for row in rows:
            console.print(json.dumps(row), soft_wrap=True, markup=False)
        return
    console.print(table(rows, time.time_ns() // 1_000_000))
    if count > len(rows):
        console.print(Text(f"{counted(count - len(rows), 'more session')}; --limit shows more.", "dim"))
    if found.forgotten:
        console.print(Text(f"{counted(found.forgotten, 'earlier session')} left out; shorten --since.", "dim"))


def table(rows: Sequence[Row], now_ms: int) -> Table:
    """One row for each session."""
    shown = borderless(
        *folding("session", "agent", "tenant", "model"),
        *numbers("turns", "gap"),
        "engine",
        "moves",
        *numbers("cached", "lost", "last"),
        *folding("begun by"),
    )
    for row in rows:
        share, lost, last = row["cached_share"], row["lost_tokens"], row["last_ms"]
        children = row["children"]
        name = Text(str(row["session"]), "cyan")
        if children:
            name.append(f" (+{children})", "dim")
        shown.add_row(
            name,
            str(row["agent"]),
            str(row["tenant"] or "-"),
            str(row["model"]),
            f"{row['turns']:,}" + (f" ({row['open']} open)" if row["open"] else ""),
            _time(row["gap_ms"]),
            str(row["engine"]),
            _moves(row["reasons"]),
            "unknown" if share is None else f"{share:.0%}",
            "unknown" if lost is None else f"{lost:,}",
            f"{spell_time(max(0, now_ms - last))} ago" if isinstance(last, int) else "",
            str(row["parent"] or ""),
        )
    return shown


def show_turns(session: GatheredSession, console: Console, *, as_json: bool) -> None:
    """Each turn that is kept, the earliest first."""
    turns: list[Row] = [turn.to_document() for turn in session.turns]
    if as_json:
        for row in turns:
            console.print(
                json.dumps({"session": session.id, "tenant": session.tenant, **row}), soft_wrap=True, markup=False
            )
        return
    begun = "" if session.parent is None else f" · begun by {session.parent}"
    head = f"{session.agent}{f' · {session.tenant}' if session.tenant else ''}{begun}"
    console.print(Text.assemble((session.id, "bold cyan"), f"  {head}"), soft_wrap=True)
    shown = borderless(
        *unbroken("time"),
        *folding("request"),
        *numbers("turn", "gap", "predicted"),
        "engine",
        *numbers("prompt", "goes on", "cached", "lost"),
        *unbroken("outcome"),
        "why",
    )
    for turn, row in zip(session.turns, turns, strict=True):
        moves = row["moves"]
        why = str(row["why"])
        shown.add_row(
            time.strftime("%H:%M:%S", time.localtime(turn.at_ms / 1000)),
            turn.request_id,
            _number(row["turn"]),
            _time(row["gap_ms"]),
            _time(row["half_back_ms"]),
            turn.worker,
            _number(row["prompt_tokens"]),
            _number(row["continued_tokens"]),
            _number(turn.cached_tokens),
            _number(turn.lost_tokens),
            turn.outcome or "open",
            Text(f"{'; '.join(map(str, moves))}: {why}", "yellow") if isinstance(moves, list) and moves else Text(why),
        )
    console.print(shown)
    if session.requests > len(turns):
        console.print(Text(f"{counted(session.requests - len(turns), 'earlier turn')} left out.", "dim"))


def _moves(reasons: JsonValue) -> str:
    found = reasons if isinstance(reasons, dict) else {}
    return ", ".join(f"{count} {reason}" for reason, count in found.items())


def _time(milliseconds: JsonValue) -> str:
    return spell_time(milliseconds) if isinstance(milliseconds, int | float) else "-"


def _number(value: JsonValue) -> str:
    return f"{value:,}" if isinstance(value, int | float) else "-"
