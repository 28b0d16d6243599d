"""Follows the sessions of agents while a page shows them."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from pydantic import JsonValue

from pointsman_console.adapters.stream import event
from pointsman_console.adapters.window import Window
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.session import SessionMoved
from pointsman_contracts.subjects import ANY, subject
from pointsman_core.agent_sessions import NEEDLE, AgentSessions, WantedSessions
from pointsman_core.request_events import read
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.wire import Receiver

TICK_S: Final = 1.0
"""Between two versions of a page."""
ROWS: Final = 100
"""Sessions on a page."""
TURNS: Final = 100
"""Turns on a page."""
MOST_SESSIONS: Final = 1000
KEPT_S: Final = 60.0
"""How long the sessions are kept without a page: it may only be loaded again."""
_KINDS: Final = (RequestScheduled, ResponseCompleted, SessionMoved)


class AgentSessionFeed:
    """One set of sessions for all viewers."""

    def __init__(self, window: Window) -> None:
        self._window: Final = window
        self._viewers = 0
        self._left_at = 0.0
        self.sessions = AgentSessions(MOST_SESSIONS)
        self.since_ms = 0
        """When the first page was opened, Unix milliseconds."""

    @asynccontextmanager
    async def watch_sessions(self) -> AsyncGenerator[Bus]:
        """Follow the events for the length of a `with`."""
        if not self._viewers and time.monotonic() - self._left_at > KEPT_S:
            self.sessions, self.since_ms = AgentSessions(MOST_SESSIONS), time.time_ns() // 1_000_000
        self._viewers += 1
        async with self._window.hold_bus() as bus:
            # Of several pages, the first one's subscriptions serve all: an event that comes again changes nothing.
            sids = [bus.link.subscribe(subject(kind, ANY), self._receiver(kind.address.type_id)) for kind in _KINDS]
            try:
                yield bus
            finally:
                for sid in sids:
                    bus.link.unsubscribe(sid)
                self._viewers -= 1
                self._left_at = time.monotonic()

    def _receiver(self, type_id: str) -> Receiver:
        def receive(to: str, reply: str, headers: bytes, payload: bytes) -> None:
            del to, reply, headers
            # Most requests have no session, and searching their bytes costs a hundredth of decoding them.
            if NEEDLE in payload and (found := read(type_id, payload)) is not None:
                self.sessions.take_event(found)

        return receive


async def agent_session_events(feed: AgentSessionFeed, wanted: WantedSessions) -> AsyncGenerator[bytes]:
    """The wanted sessions, and the turns of one where no other is wanted, once a second if they have changed."""
    async with feed.watch_sessions() as bus:
        told: tuple[int, str | None] | None = None
        while True:
            sessions = feed.sessions
            now = sessions.version, bus.missing
            if now != told:
                told = now
                yield event("sessions", _document(sessions, wanted, feed.since_ms, bus.missing))
            await asyncio.sleep(TICK_S)


def _document(sessions: AgentSessions, wanted: WantedSessions, since_ms: int, missing: str | None) -> JsonValue:
    rows: list[JsonValue] = [*sessions.list_sessions(wanted, ROWS)]
    found = sessions.find_sessions(wanted) if wanted.session else []
    turns: list[JsonValue] | None = None
    if len(found) == 1:
        turns = [turn.to_document() for turn in [*found[0].turns][-TURNS:]]
    return {
        "rows": rows, "count": sessions.count_sessions(wanted), "turns": turns, "since_ms": since_ms,
        "missing": missing, "forgotten": sessions.forgotten,
    }  # fmt: skip
