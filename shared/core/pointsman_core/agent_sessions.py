"""Sessions of agents, gathered from the events of their requests. Bounded: of many sessions the latest are kept, and of
each its latest turns.

An event may come twice, late, or not at all: each request is one turn, and a number that no event told is None.
"""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from pointsman_contracts.agent import OTHER
from pointsman_contracts.message import JsonValue
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.session import RequestSession, SessionMoved, SessionTurn
from pointsman_core.request_events import Event

MOST_SESSIONS: Final = 5_000
MOST_TURNS: Final = 200
"""Turns of one session that are kept; earlier ones count in its sums."""
MOST_KEPT: Final = 50_000
"""Turns of all sessions that are kept."""
_MOST_KNOWN: Final = 20_000
"""Requests whose further events are waited for."""
_NO_TURN: Final = SessionTurn()
NEEDLE: Final = b'"session":{'
"""In every event that may count here."""


@dataclass(slots=True)
class GatheredTurn:
    """One request of a session."""

    request_id: str
    edge: str
    at_ms: int
    """When it was decided; when it ended, where no event told the decision."""
    seen: SessionTurn | None = None
    """As the scheduler knew it; None where a provider served it, or no event told."""
    pool: str = ""
    model: str = ""
    worker: str = ""
    prompt_tokens: int = 0
    believed_tokens: int | None = None
    """Prompt tokens that the scheduler believed cached."""
    usage: Usage | None = None
    outcome: str = ""
    """Empty while it is open."""
    status: int | None = None
    ended_ms: int = 0
    moved: tuple[SessionMoved, ...] = ()

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the engine reported as cached; None where it reported nothing."""
        usage = self.usage
        return None if usage is None or usage.cached_unknown else min(usage.cached_tokens, usage.prompt_tokens)

    @property
    def lost_tokens(self) -> int | None:
        """Prompt tokens that an earlier turn had and the engine computed again; None where that is unknown."""
        cached = self.cached_tokens
        return None if cached is None or self.seen is None else max(0, self.seen.continued_tokens - cached)

    def to_document(self) -> dict[str, JsonValue]:
        """The values that a page or a program shows."""
        seen = self.seen or _NO_TURN
        return {
            "id": self.request_id,
            "edge": self.edge,
            "at_ms": self.at_ms,
            "turn": None if self.seen is None else seen.number,
            "pool": self.pool,
            "model": self.model,
            "engine": self.worker,
            "gap_ms": seen.gap_ms,
            "half_back_ms": seen.half_back_ms,
            "kept_for_ms": seen.kept_for_ms,
            "prompt_tokens": self.prompt_tokens if self.usage is None else self.usage.prompt_tokens,
            "continued_tokens": None if self.seen is None else seen.continued_tokens,
            "believed_tokens": self.believed_tokens,
            "cached_tokens": self.cached_tokens,
            "lost_tokens": self.lost_tokens,
            "outcome": self.outcome,
            "status": self.status,
            "moves": [f"{each.last_worker} → {each.worker}: {each.reason}" for each in self.moved],
            "why": self.moved[-1].why if self.moved else seen.why,
        }


@dataclass(slots=True)
class GatheredSession:
    """One session of one tenant."""

    tenant: str
    id: str
    agent: str = OTHER
    parent: str | None = None
    turns: deque[GatheredTurn] = field(default_factory=lambda: deque[GatheredTurn](maxlen=MOST_TURNS))
    requests: int = 0
    open: int = 0
    moves: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])
    """Moves by their reason."""
    last_ms: int = 0
    gaps_ms: deque[float] = field(default_factory=lambda: deque[float](maxlen=MOST_TURNS))
    known_tokens: int = 0
    """Prompt tokens of turns whose engine reported the cached ones."""
    cached_tokens: int = 0
    lost_tokens: int = 0
    unknown: int = 0
    """Ended turns without a report of their tokens."""

    @property
    def cached_share(self) -> float | None:
        """The part of the prompts that came from caches, where that was reported; None where it never was."""
        return round(self.cached_tokens / self.known_tokens, 4) if self.known_tokens else None

    def to_document(self, children: int) -> dict[str, JsonValue]:
        """The values that a page or a program shows. `children`: sessions that this one began."""
        last = self.turns[-1]
        return {
            "session": self.id,
            "tenant": self.tenant,
            "agent": self.agent,
            "parent": self.parent,
            "children": children,
            "pool": last.pool,
            "model": last.model,
            "engine": last.worker,
            "turns": self.requests,
            "open": self.open,
            "last_ms": self.last_ms,
            "gap_ms": round(median(self.gaps_ms), 1) if self.gaps_ms else None,
            "moves": self.moves,
            "reasons": dict(self.reasons.most_common()),
            "prompt_tokens": self.known_tokens,
            "cached_tokens": self.cached_tokens if self.known_tokens else None,
            "cached_share": self.cached_share,
            "lost_tokens": self.lost_tokens if self.known_tokens else None,
            "unknown": self.unknown,
        }


class WantedSessions(NamedTuple):
    """The sessions that a reader wants; an empty text matches everything."""

    session: str = ""
    tenant: str = ""
    agent: str = ""
    model: str = ""

    def matches_session(self, session: GatheredSession) -> bool:
        """Whether the session is wanted; `session` matches a part of its name."""
        return (
            self.session in session.id
            and self.tenant in ("", session.tenant)
            and self.agent in ("", session.agent)
            and (not self.model or any(turn.model == self.model for turn in session.turns))
        )


class AgentSessions:
    """Follows events, in any order."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most: Final = most
        self._kept = 0
        """Turns of all sessions."""
        self._sessions: OrderedDict[tuple[str, str], GatheredSession] = OrderedDict()
        """By tenant and name, the one with the latest event last."""
        self._turns: OrderedDict[tuple[str, str], tuple[GatheredSession, GatheredTurn]] = OrderedDict()
        """By edge and request."""
        self.forgotten = 0
        """Sessions that were given up because there were more."""
        self.version = 0
        """Changes with every event that counts."""

    def take_event(self, event: Event) -> None:
        """Take one event; those without a session don't count."""
        match event:
            case RequestScheduled() if event.session is not None and event.turn is not None:
                self._take_decision(event, event.session, event.turn)
            case ResponseCompleted() if event.session is not None:
                self._take_end(event, event.session)
            case SessionMoved():
                self._take_move(event)
            case _:
                return
        self.version += 1

    def list_sessions(self, wanted: WantedSessions, most: int) -> list[dict[str, JsonValue]]:
        """The latest `most` wanted sessions, the latest first."""
        children = Counter((each.tenant, each.parent) for each in self._sessions.values() if each.parent is not None)
        found: list[dict[str, JsonValue]] = []
        for session in reversed(self._sessions.values()):
            if len(found) == most:
                break
            if wanted.matches_session(session):
                found.append(session.to_document(children[session.tenant, session.id]))
        return found

    def count_sessions(self, wanted: WantedSessions) -> int:
        """How many are wanted."""
        return sum(map(wanted.matches_session, self._sessions.values()))

    def find_sessions(self, wanted: WantedSessions) -> list[GatheredSession]:
        """The wanted sessions, the latest first; of one whose whole name is wanted, no other."""
        found = [session for session in reversed(self._sessions.values()) if wanted.matches_session(session)]
        return [session for session in found if session.id == wanted.session] or found

    def _take_decision(self, event: RequestScheduled, named: RequestSession, seen: SessionTurn) -> None:
        key = event.edge, event.request_id
        known = self._turns.get(key)
        if known is not None and known[1].seen is not None and known[1].outcome and event.at_ms > known[1].ended_ms:
            del self._turns[key]  # the client uses the id again
        session, turn = self._find_turn(key, seen.tenant, named, event.at_ms)
        new = turn.seen is None
        if new and seen.gap_ms is not None:
            session.gaps_ms.append(seen.gap_ms)
        turn.seen, turn.at_ms = seen, min(turn.at_ms, event.at_ms)
        turn.pool, turn.model = event.pool, event.model
        turn.prompt_tokens, turn.believed_tokens = event.prompt_tokens, event.cached_tokens
        if not turn.outcome:
            turn.worker = event.endpoints[0] if event.endpoints else ""
        elif new:  # the end came first
            session.lost_tokens += turn.lost_tokens or 0

    def _take_end(self, event: ResponseCompleted, named: RequestSession) -> None:
        tenant = "" if event.identity is None else event.identity.tenant
        session, turn = self._find_turn((event.source, event.request_id), tenant, named, event.at_ms)
        if turn.outcome:
            return  # it came twice
        turn.outcome, turn.status, turn.usage = event.outcome, event.status, event.usage
        turn.ended_ms = event.at_ms
        turn.worker, turn.pool = event.worker or turn.worker, event.pool
        turn.model = event.model or turn.model
        session.open -= 1
        cached, usage = turn.cached_tokens, event.usage
        if cached is None or usage is None:
            session.unknown += 1
            return
        session.known_tokens += usage.prompt_tokens
        session.cached_tokens += cached
        session.lost_tokens += turn.lost_tokens or 0

    def _take_move(self, event: SessionMoved) -> None:
        session, turn = self._find_turn((event.edge, event.request_id), event.tenant, event.session, event.at_ms)
        if any((each.source, each.sequence) == (event.source, event.sequence) for each in turn.moved):
            return
        turn.moved = (*turn.moved, event)
        turn.model, turn.pool = turn.model or event.model, turn.pool or event.pool
        if not turn.outcome:
            turn.worker = event.worker
        session.moves += 1
        session.reasons[event.reason] += 1

    def _find_turn(
        self, key: tuple[str, str], tenant: str, named: RequestSession, at_ms: int
    ) -> tuple[GatheredSession, GatheredTurn]:
        known = self._turns.get(key)
        if known is None or known[0].id != named.id:
            session = self._find_session(tenant, named)
            turn = GatheredTurn(key[1], key[0], at_ms)
            self._kept += len(session.turns) < MOST_TURNS
            session.turns.append(turn)
            session.requests += 1
            session.open += 1
            known = self._turns[key] = session, turn
            if len(self._turns) > _MOST_KNOWN:
                self._turns.popitem(last=False)
        session = known[0]
        session.last_ms = max(session.last_ms, at_ms)
        if (session.tenant, session.id) in self._sessions:
            self._sessions.move_to_end((session.tenant, session.id))
        while len(self._sessions) > self._most or (self._kept > MOST_KEPT and len(self._sessions) > 1):
            self._kept -= len(self._sessions.popitem(last=False)[1].turns)
            self.forgotten += 1
        return known

    def _find_session(self, tenant: str, named: RequestSession) -> GatheredSession:
        session = self._sessions.get((tenant, named.id))
        if session is None:
            session = self._sessions[tenant, named.id] = GatheredSession(tenant, named.id)
        if named.agent is not None:
            session.agent = named.agent.name
            session.parent = named.agent.parent
        return session
