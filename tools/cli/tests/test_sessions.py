"""`pointsman sessions` shows sessions and turns of the stored events, for people and for programs."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from io import StringIO
from unittest.mock import Mock

import pytest
from rich.console import Console

from pointsman_cli import bus
from pointsman_cli.explain import sessions as command
from pointsman_cli.explain.explain import story
from pointsman_cli.explain.sessions import sessions
from pointsman_cli.words import CommandError
from pointsman_contracts.agent import Agent
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.session import RequestSession, SessionMoved, SessionTurn
from pointsman_core.agent_sessions import WantedSessions
from pointsman_core.request_events import Event
from pointsman_testing.builders import scheduled

SESSION = RequestSession(id="s1/[red]a", agent=Agent(name="claude-code", parent="s1"))
TURN = SessionTurn(
    tenant="acme", number=7, continues=True, gap_ms=2400.0, last_worker="w0", continued_tokens=900,
    kept_for_ms=64_000.0, half_back_ms=2000.0, move="no-room", why="w0 was removed by cache-room: it is full",
)  # fmt: skip
DECIDED = scheduled(
    request_id="r7", endpoints=("w1",), prompt_tokens=1000, cached_tokens=64, session=SESSION, turn=TURN
)
MOVED = SessionMoved(
    request_id="r7", source="scheduler-1", sequence=1, at_ms=1, edge="edge-1", pool="p", tenant="acme", turn=7,
    session=SESSION, model="m", last_worker="w0", worker="w1", reason="no-room", why=TURN.why,
)  # fmt: skip
ENDED = ResponseCompleted(
    request_id="r7", source="edge-1", sequence=1, at_ms=2, pool="p", worker="w1", status=200, outcome="ok", model="m",
    usage=Usage(prompt_tokens=1000, cached_tokens=64), session=SESSION,
)  # fmt: skip


async def run(
    monkeypatch: pytest.MonkeyPatch, events: Sequence[Event], name: str = "", *, as_json: bool = False
) -> list[str]:
    """The lines that the command prints for these stored events."""

    @asynccontextmanager
    async def connected(*_: object) -> AsyncGenerator[Mock]:
        yield Mock()

    async def read_events(*_: object) -> AsyncGenerator[Event]:
        for event in events:
            yield event

    monkeypatch.setattr(bus, "connected", connected)
    monkeypatch.setattr(command, "read_events", read_events)
    console = Console(width=240, file=StringIO(), record=True)
    await sessions(None, WantedSessions(session=name), timedelta(minutes=5), 9, console, as_json=as_json)
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


async def test_a_list_has_the_engine_the_moves_and_what_caches_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    head, row = await run(monkeypatch, [DECIDED, MOVED, ENDED])
    assert head == "session agent tenant model turns gap engine moves cached lost last begun by"
    assert row.startswith("s1/[red]a claude-code acme m 1 2.4 s w1 1 no-room 6% 836 ")
    assert row.endswith(" ago s1")
    (line,) = await run(monkeypatch, [DECIDED, MOVED, ENDED], as_json=True)
    assert json.loads(line)["reasons"] == {"no-room": 1}
    _, row = await run(monkeypatch, [DECIDED])
    assert " 1 (1 open) 2.4 s w1 unknown unknown " in row


async def test_one_session_shows_each_turn_and_why_it_went_there(monkeypatch: pytest.MonkeyPatch) -> None:
    head, _, turn = await run(monkeypatch, [DECIDED, MOVED, ENDED], "s1/")
    assert head == "s1/[red]a claude-code · acme · begun by s1"
    assert turn.endswith(f"r7 7 2.4 s 2.0 s w1 1,000 900 64 836 ok w0 → w1: no-room: {TURN.why}")
    (line,) = await run(monkeypatch, [DECIDED, MOVED, ENDED], "s1/", as_json=True)
    assert json.loads(line) == json.loads(line) | {"session": SESSION.id, "tenant": "acme", "id": "r7", "turn": 7}


async def test_no_session_is_an_error_that_says_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match=r"no event of the last 5 minutes is of a session\."):
        await run(monkeypatch, [scheduled()])
    with pytest.raises(CommandError, match=r"is of such a session\.") as caught:
        await run(monkeypatch, [DECIDED], "nothing like it")
    assert caught.value.advice.startswith("1 session had other names")


def test_explain_tells_the_turn_its_prediction_and_why_the_engine_changed() -> None:
    console = Console(width=240, file=StringIO(), record=True)
    console.print(*story(DECIDED), *story(MOVED), sep="\n")
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines[3:6] == [
        "session s1/[red]a of claude-code begun by s1, turn 7 · 2.4 s after the last · half predicted to come back "
        "within 2.0 s, its prefix worth its place for 64.0 s",
        "of the 900 tokens that it goes on with, 64 believed kept, 836 lost",
        "moved (no-room): w0 was removed by cache-room: it is full",
    ]
    assert lines[-2].endswith("r7 session s1/[red]a goes from w0 to w1 no-room")
