"""The page of sessions: what events say, for the sessions that it wants, and no subscription without a page."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from fastapi.responses import StreamingResponse

from pointsman_console.adapters import agent_session_feed
from pointsman_console.adapters.agent_session_feed import AgentSessionFeed, agent_session_events
from pointsman_console.adapters.stream import Streams
from pointsman_console.adapters.window import Window
from pointsman_contracts.agent import Agent
from pointsman_contracts.identity import Identity
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.session import RequestSession, SessionMoved, SessionTurn
from pointsman_core.agent_sessions import WantedSessions
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.telling.process import Process
from pointsman_testing import eventually
from pointsman_testing.builders import scheduled
from pointsman_testing.memory_nats import MemoryNats

SESSION = RequestSession(id="s1", agent=Agent(name="codex"))


class Page:
    """A gateway's bus, and pages of a console."""

    def __init__(self, server: MemoryNats) -> None:
        self.bus = Bus(server.link(), Process("scheduler", "s-1"))
        self.bus.open()
        self.window = Window(lambda: Bus(server.link(), Process("console", "c-1")))
        self.feed = AgentSessionFeed(self.window)

    def publish(self, request: str, session: RequestSession | None = SESSION) -> None:
        turn = None if session is None else SessionTurn(tenant="acme", number=2, continues=True, continued_tokens=900)
        self.bus.publish(scheduled(request_id=request, endpoints=("w1",), session=session, turn=turn), "p")
        if session is not None:
            self.bus.publish(
                SessionMoved(
                    request_id=request, source="s-1", sequence=1, at_ms=1, edge="edge-1", pool="p", tenant="acme",
                    session=session, model="m", last_worker="w0", worker="w1", reason="gone",
                ),
                "p",
            )  # fmt: skip
        self.bus.publish(
            ResponseCompleted(
                request_id=request, source="edge-1", sequence=1, at_ms=2, pool="p", worker="w1", status=200,
                outcome="ok", usage=Usage(prompt_tokens=1000, cached_tokens=600), session=session,
                identity=Identity(tenant="acme"),
            ),
            "p",
        )  # fmt: skip


async def document(stream: AsyncGenerator[bytes]) -> dict[str, Any]:
    head, data = (await anext(stream)).decode().splitlines()[:2]
    assert head == "event: sessions"
    return json.loads(data.removeprefix("data: "))


async def test_a_page_shows_sessions_turns_and_moves_and_two_pages_count_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_session_feed, "TICK_S", 0.01)
    page = Page(MemoryNats())
    await page.bus.wait_connected()
    first = agent_session_events(page.feed, WantedSessions())
    second = agent_session_events(page.feed, WantedSessions(session="s1"))
    async with aclosing(first), aclosing(second):
        assert (await document(first))["rows"] == []
        assert (await document(second))["turns"] is None
        page.publish("r0", None)
        page.publish("r1")
        await eventually(lambda: page.feed.sessions.version >= 3)
        found = await document(first)
        while not found["rows"] or found["rows"][0]["open"]:
            found = await document(first)
        [row] = found["rows"]
        assert (row["turns"], row["moves"], row["reasons"], row["lost_tokens"]) == (1, 1, {"gone": 1}, 300)
        assert found["turns"] is None
        found = await document(second)
        while not found["turns"]:
            found = await document(second)
        assert [turn["moves"] for turn in found["turns"]] == [["w0 → w1: gone"]]
    assert not page.window.open
    # A page that is only loaded again has the sessions still.
    async with aclosing(agent_session_events(page.feed, WantedSessions(tenant="acme"))) as again:
        assert len((await document(again))["rows"]) == 1
    await page.bus.close()


async def test_a_page_that_is_left_while_nothing_happens_ends_its_subscriptions() -> None:
    page, streams = Page(MemoryNats()), Streams()

    async def still() -> bool:
        return True

    response = streams.stream_response(agent_session_events(page.feed, WantedSessions()), still)
    assert isinstance(response, StreamingResponse)

    async def read() -> None:
        async for _ in response.body_iterator:
            pass

    reading = asyncio.create_task(read())
    await eventually(lambda: page.window.open)
    # A server cancels at every await until the answer's iterator has ended.
    while not reading.done():
        reading.cancel()
        await asyncio.sleep(0)
    await eventually(lambda: not page.window.open)
    await page.bus.close()
