"""Sessions gathered from events are right whatever comes late, twice, or not at all, and their memory is bounded."""

import random
from collections.abc import Iterable
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_contracts.agent import Agent
from pointsman_contracts.identity import Identity
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.session import RequestSession, SessionMoved, SessionTurn
from pointsman_core import agent_sessions
from pointsman_core.agent_sessions import NEEDLE, AgentSessions, WantedSessions
from pointsman_core.request_events import Event
from pointsman_testing.builders import scheduled

EVERY: Final = WantedSessions()


def gather_sessions(events: Iterable[Event]) -> AgentSessions:
    """The sessions of these events."""
    found = AgentSessions()
    for event in events:
        found.take_event(event)
    return found


def named(name: str = "s1", agent: str | None = "codex", parent: str | None = None) -> RequestSession:
    return RequestSession(id=name, agent=None if agent is None else Agent(name=agent, parent=parent))


def decided(request: str, session: RequestSession, worker: str = "w1", **seen: object) -> Event:
    fields: dict[str, object] = {"tenant": "acme", "number": 2, "continues": True, "continued_tokens": 800}
    turn = SessionTurn(**(fields | seen))  # pyright: ignore[reportArgumentType] - named by the test
    return scheduled(
        request_id=request, at_ms=10, endpoints=(worker,), prompt_tokens=1000, cached_tokens=800,
        session=session, turn=turn,
    )  # fmt: skip


def ended(request: str, session: RequestSession, cached: int | None = 600, worker: str = "w1") -> Event:
    usage = Usage(prompt_tokens=1000, cached_tokens=cached or 0, cached_unknown=cached is None)
    return ResponseCompleted(
        request_id=request, source="edge-1", sequence=1, at_ms=20, pool="p", worker=worker, model="m", status=200,
        outcome="ok", usage=usage, identity=Identity(tenant="acme"), session=session,
    )  # fmt: skip


def moved(request: str, session: RequestSession, sequence: int = 1) -> Event:
    return SessionMoved(
        request_id=request, source="scheduler-1", sequence=sequence, at_ms=11, edge="edge-1", pool="p", tenant="acme",
        session=session, model="m", last_worker="w0", worker="w1", reason="no-room", why="it is full",
    )  # fmt: skip


def test_a_session_sums_up_its_turns_and_a_count_that_no_engine_reported_is_unknown() -> None:
    parent, child = named("s1"), named("s1/a", parent="s1")
    found = gather_sessions(
        [
            decided("r1", parent, gap_ms=2000.0), moved("r1", parent), ended("r1", parent),
            decided("r2", parent, gap_ms=4000.0), ended("r2", parent, cached=None),
            decided("r3", child), decided("r4", named("s2", None)),
        ]
    )  # fmt: skip
    rows = {str(row["session"]): row for row in found.list_sessions(EVERY, 9)}
    assert list(rows) == ["s2", "s1/a", "s1"]
    assert rows["s1"] == rows["s1"] | {
        "tenant": "acme", "agent": "codex", "children": 1, "turns": 2, "open": 0, "gap_ms": 3000.0, "moves": 1,
        "reasons": {"no-room": 1}, "prompt_tokens": 1000, "cached_tokens": 600, "cached_share": 0.6,
        "lost_tokens": 200, "unknown": 1, "engine": "w1",
    }  # fmt: skip
    assert rows["s1/a"] == rows["s1/a"] | {"parent": "s1", "open": 1, "cached_share": None, "lost_tokens": None}
    assert rows["s2"]["agent"] == "other"
    (session,) = found.find_sessions(WantedSessions(session="s1", agent="codex"))
    first, second = [turn.to_document() for turn in session.turns]
    assert (first["moves"], first["why"]) == (["w0 → w1: no-room"], "it is full")
    assert (second["cached_tokens"], second["lost_tokens"], second["believed_tokens"]) == (None, None, 800)


def test_filters_choose_sessions() -> None:
    found = gather_sessions(
        [decided("r1", named("abc")), decided("r2", named("xyz", "claude-code"), tenant="umbrella")]
    )
    for wanted, names in (
        (WantedSessions(session="b"), ["abc"]),
        (WantedSessions(tenant="umbrella"), ["xyz"]),
        (WantedSessions(agent="claude-code"), ["xyz"]),
        (WantedSessions(model="m"), ["xyz", "abc"]),
        (WantedSessions(model="n"), []),
    ):
        assert [row["session"] for row in found.list_sessions(wanted, 9)] == names
        assert found.count_sessions(wanted) == len(names)


def test_sessions_of_one_name_in_two_tenants_are_two() -> None:
    found = gather_sessions([decided("r1", named()), decided("r2", named(), tenant="umbrella")])
    assert [row["tenant"] for row in found.list_sessions(EVERY, 9)] == ["umbrella", "acme"]


@given(st.randoms(use_true_random=False), st.lists(st.integers(0, 6), min_size=1, max_size=12))
@settings(max_examples=25)
def test_the_order_of_events_and_repetitions_change_no_sum(order: random.Random, repeated: list[int]) -> None:
    session = named()
    events = [decided("r1", session, gap_ms=5.0), moved("r1", session), ended("r1", session), decided("r2", session),
              ended("r2", session, None), moved("r2", session, 2), ended("r3", session)]  # fmt: skip
    expected = gather_sessions(events).list_sessions(EVERY, 9)[0]
    shuffled = [*events, *(events[each] for each in repeated)]
    order.shuffle(shuffled)
    now = gather_sessions(shuffled).list_sessions(EVERY, 9)[0]
    sums = ("turns", "open", "moves", "reasons", "prompt_tokens", "cached_tokens", "lost_tokens", "unknown", "gap_ms")
    assert {name: now[name] for name in sums} == {name: expected[name] for name in sums}


def test_a_request_id_that_is_used_again_is_another_turn() -> None:
    first, again = decided("r1", named()), decided("r1", named("s2"))
    assert isinstance(again, RequestScheduled)
    found = gather_sessions([first, ended("r1", named()), replace(again, at_ms=30), ended("r1", named("s2"))])
    assert {row["session"]: row["turns"] for row in found.list_sessions(EVERY, 9)} == {"s1": 1, "s2": 1}
    same = decided("r1", named())
    assert isinstance(same, RequestScheduled)
    found = gather_sessions([first, ended("r1", named()), replace(same, at_ms=30), ended("r1", named())])
    assert [(row["turns"], row["open"]) for row in found.list_sessions(EVERY, 9)] == [(2, 0)]


def test_events_without_a_session_do_not_count_and_lack_the_needle() -> None:
    found = AgentSessions()
    plain = scheduled(endpoints=("w1",))
    found.take_event(plain)
    assert (found.version, found.list_sessions(EVERY, 9)) == (0, [])
    assert NEEDLE not in plain.encode()
    assert all(NEEDLE in event.encode() for event in (decided("r", named()), ended("r", named()), moved("r", named())))


def test_memory_is_bounded_in_sessions_and_in_turns() -> None:
    found = AgentSessions(most=20)
    for number in range(100):
        found.take_event(decided(f"r{number}", named(f"s{number}")))
    assert (found.count_sessions(EVERY), found.forgotten) == (20, 80)
    many = AgentSessions()
    for number in range(2 * agent_sessions.MOST_TURNS):
        many.take_event(decided(f"r{number}", named()))
    (session,) = many.find_sessions(EVERY)
    assert (session.requests, len(session.turns)) == (2 * agent_sessions.MOST_TURNS, agent_sessions.MOST_TURNS)
