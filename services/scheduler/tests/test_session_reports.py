"""Events name the turn that each request of a session is, and every change of its engine with its reason."""

from collections.abc import AsyncIterator
from typing import Final

import numpy as np
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from pointsman_contracts.agent import Agent
from pointsman_contracts.journey import RequestFacts, StageReport, Target
from pointsman_contracts.message import Blob, JsonValue, read_fields
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled, ReservationChange
from pointsman_contracts.session import RequestSession, SessionMoved, SessionTurn
from pointsman_contracts.subjects import ANY
from pointsman_journey.journeys import Journeys
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Removed
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.telling.process import Process
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.scheduled_event import ScheduledEvent, describe_decision
from pointsman_scheduler.session_reports import SessionReporter
from pointsman_testing import builders, eventually
from pointsman_testing.memory_nats import MemoryNats
from pointsman_testing.scheduler_bench import Bench

TARGET = Target(model="llama-8b", pool="llama")
AGENT: Final[dict[str, JsonValue]] = {
    "agent": {"name": "claude-code", "parent": "s0"},
    "identity": {"tenant": "acme", "subject": "alice"},
}
SESSION = RequestSession(id="s1", agent=Agent(name="claude-code", parent="s0"))
LONG = 20
FILTERS = [{"use": "healthy"}, {"use": "subset"}]
SCORERS = [{"use": "prefix-cache"}, {"use": "queue", "weight": 3}]


class Scene:
    """A pool of `a` and `b`, and a reader of the moves that its scheduler publishes."""

    def __init__(self, nats: MemoryNats) -> None:
        self.scheduler = Journeys(Bus(nats.link(), Process("scheduler", "scheduler-1")))
        self.reader = Journeys(Bus(nats.link(), Process("recorder", "recorder-1")))
        self.moves: list[SessionMoved] = []
        self.reader.bus.listen(SessionMoved, self.moves.append, ANY)
        self.registry = CollectorRegistry()
        self.reporter = SessionReporter(self.scheduler.bus, SchedulerMetrics(self.registry, list))
        self.bench = Bench({"profiles": {"default": {"filters": FILTERS, "scorers": SCORERS}}})
        self.bench.join("a", "b")

    async def begin(self) -> None:
        for service in (self.scheduler, self.reader):
            service.open()
            await service.bus.wait_connected()

    def prompt(self, length: int = LONG, **facts: object) -> ScheduleRequest:
        """The session's next prompt: the first `length` blocks of one conversation."""
        blocks = self.bench.prompt(1, 200).blocks[:length]
        own: dict[str, object] = {
            "session": "s1", "fairness_id": "acme", "prompt_tokens": length * 64, "blocks": blocks
        }  # fmt: skip
        request = self.bench.request(**(own | facts))
        request.facts = request.facts.changed(attributes=AGENT)
        return request

    def report(self, request: ScheduleRequest, outcome: Scheduled | None = None) -> tuple[str, SessionTurn]:
        """Decide, and report: the engine, and the turn."""
        outcome = outcome or self.bench.decide(request)
        journey = builders.journey("scheduler", request_id=request.request_id, edge=request.edge, target=TARGET)
        told = ScheduledEvent(
            journey=journey.changed(request=request.facts), target=TARGET, policy=self.bench.policy, revision=1,
            outcome=outcome, took_s=0.0, queued_s=0.0, report=StageReport(stage="scheduler", instance="s"),
            traceparent=None, at_ms=7, bound=None,
        )  # fmt: skip
        turn = self.reporter.report_turn(told)
        assert turn is not None
        event = RequestScheduled.decode(describe_decision(told, "scheduler-1", 1, 9, turn).encode())
        assert (event.session, event.turn) == (SESSION, turn)
        return outcome.endpoints[0].name, turn

    def end(self, request: ScheduleRequest, worker: str, **changes: object) -> None:
        """The request is answered by this engine."""
        self.bench.pool.books.started(request.key, worker, 5.0, self.bench.now)
        self.bench.pool.books.completed(request.key, self.bench.now, ok=True, worker=worker)
        fields: dict[str, object] = {
            "request_id": request.request_id, "source": request.edge, "sequence": 1, "at_ms": 9, "pool": "llama",
            "worker": worker, "model": "llama-8b", "status": 200, "outcome": "ok", "ttft_ms": 5.0,
        }  # fmt: skip
        event = read_fields(ResponseCompleted, fields | changes)
        self.reporter.note_end(replace(event, session=SESSION), self.bench.pool)

    def turn(self, length: int, **facts: object) -> tuple[str, SessionTurn]:
        """One whole turn."""
        request = self.prompt(length, **facts)
        worker, turn = self.report(request)
        self.end(request, worker)
        return worker, turn

    async def end_scene(self) -> None:
        for service in (self.scheduler, self.reader):
            await service.close()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene(MemoryNats())
    await scene.begin()
    yield scene
    await scene.end_scene()


def other(name: str) -> str:
    return "b" if name == "a" else "a"


async def test_a_session_that_stays_says_so_and_publishes_nothing(scene: Scene) -> None:
    first, turn = scene.turn(LONG)
    assert (turn.number, turn.tenant, turn.continues) == (1, "acme", False)
    assert turn.why == "the scheduler knows no earlier request of this session"
    second, turn = scene.turn(LONG + 2)
    assert (second, turn.last_worker, turn.move, turn.number) == (first, first, "", 2)
    assert turn.why == (
        f"it stays with {first}, which holds 1,280 of the 1,280 prompt tokens that the session goes on with"
    )
    assert scene.registry.get_sample_value(
        "pointsman_scheduler_session_turns_total", {"pool": "llama", "place": "stayed"}
    )
    _, turn = scene.turn(5, blocks=scene.bench.prompt(9, 5).blocks)
    assert turn.why == "its prompt goes on with none of the session's earlier ones"
    assert scene.moves == []


async def test_a_change_of_engine_is_published_with_ids_and_its_reason(scene: Scene) -> None:
    first, _ = scene.turn(LONG)
    request = scene.prompt(LONG + 4, subset=(f"{other(first)}:8000",))
    worker, turn = scene.report(request)
    assert (worker, turn.move) == (other(first), "given")
    await eventually(lambda: len(scene.moves) == 1)
    (move,) = scene.moves
    assert (move.request_id, move.edge, move.pool, move.session) == (request.request_id, "edge-1", "llama", SESSION)
    assert (move.last_worker, move.worker, move.reason, move.tenant) == (first, worker, "given", "acme")
    assert (move.continued_tokens, move.cached_tokens, move.turn) == (LONG * 64, 0, 2)
    assert (move.source, move.sequence, move.why) == ("scheduler-1", 1, turn.why)


async def test_each_reason_to_leave_an_engine_is_told_apart(scene: Scene) -> None:
    bench = scene.bench
    first, _ = scene.turn(LONG)
    bench.hear(first, state="not_ready")
    worker, turn = scene.turn(LONG + 1)
    assert (worker, turn.move) == (other(first), "filtered")
    assert turn.why.startswith(f"{first} was removed by healthy: ")
    bench.hear(first)
    scene.turn(LONG + 2)
    bench.pool.remove(worker, bench.now)
    back, turn = scene.turn(LONG + 3)
    assert (back, turn.move, turn.why) == (first, "gone", f"{worker} left the pool")
    # The engine that it comes back to restarted: it stays, and the cache is gone.
    bench.join(first, boot_id="life-2")
    _, turn = scene.turn(LONG + 4)
    assert (turn.move, turn.why) == ("", f"{first} restarted since")


async def test_an_engine_that_lost_the_prefix_is_told_apart_from_one_that_scored_less(scene: Scene) -> None:
    bench = scene.bench
    first, _ = scene.turn(LONG)
    bench.hear(first, waiting=9)
    second, turn = scene.turn(LONG + 1)
    assert (second, turn.move) == (other(first), "outscored")
    assert f"{first} holds 1,280 of the 1,280 prompt tokens" in turn.why
    worker = bench.pool.fleet.find(second)
    assert worker is not None
    bench.pool.index.cleared(worker.life)
    bench.hear(first)
    bench.hear(second, waiting=9)
    third, turn = scene.turn(LONG + 2)
    assert (third, turn.move) == (first, "evicted")
    assert f"{second} holds 0 of the 1,344 prompt tokens" in turn.why


async def test_an_engine_without_room_is_told_apart_from_one_that_a_filter_removed(scene: Scene) -> None:
    first, _ = scene.turn(LONG)
    request = scene.prompt(LONG + 1, subset=(f"{other(first)}:8000",))
    outcome = scene.bench.decide(request)
    request.facts = replace(request.facts, subset=None)
    outcome.selection.primary.removed = [Removed("cache-room", np.array(["ab".index(first)]), "it is full")]
    _, turn = scene.report(request, outcome)
    assert (turn.move, turn.why) == ("no-room", f"{first} was removed by cache-room: it is full")


async def test_an_engine_that_fails_loses_the_session_once_whichever_message_says_so(scene: Scene) -> None:
    first, _ = scene.turn(LONG)
    request = scene.prompt(LONG + 1)
    assert scene.report(request)[0] == first
    scene.end(request, other(first))
    scene.end(request, other(first))
    await eventually(lambda: len(scene.moves) == 1)
    assert (scene.moves[0].reason, scene.moves[0].last_worker) == ("failed", first)
    # Of the next one, the gateway asks for another decision.
    request = scene.prompt(LONG + 2)
    scene.report(request)
    again = scene.prompt(LONG + 2, request_id=request.request_id, decision=2, subset=(f"{first}:8000",))
    worker, turn = scene.report(again)
    assert (worker, turn.move, turn.number) == (first, "failed", 3)
    scene.end(again, first)
    await eventually(lambda: len(scene.moves) == 2)
    assert [move.sequence for move in scene.moves] == [1, 2]


async def test_turns_of_other_schedulers_count_even_if_their_end_comes_first(scene: Scene) -> None:
    def change(request: ScheduleRequest, worker: str) -> ReservationChange:
        facts: RequestFacts = request.facts
        return ReservationChange(
            op="reserve", request_id=request.request_id, worker=worker, boot_id="life-1", edge="edge-1", session="s1",
            flow="acme", prompt_tokens=facts.prompt_tokens, blocks=Blob(request.blocks.tobytes()),
        )  # fmt: skip

    bench, books = scene.bench, scene.bench.pool.books
    late = scene.prompt()
    books.completed(late.key, bench.now, ok=True)
    scene.reporter.note_peer_turn(bench.pool, change(late, "a"), bench.now, applied=False)
    _, turn = scene.turn(LONG + 1, subset=("a:8000",))
    assert (turn.number, turn.last_worker, turn.gap_ms) == (2, "a", 0.0) or turn.gap_ms is not None
    # A reservation that another one overrules isn't a turn.
    scene.reporter.note_peer_turn(bench.pool, change(scene.prompt(), "b"), bench.now, applied=False)
    _, turn = scene.turn(LONG + 2, subset=("a:8000",))
    assert (turn.number, turn.move) == (3, "")
    assert scene.moves == []


async def test_a_request_that_is_on_the_books_already_is_the_same_turn(scene: Scene) -> None:
    request = scene.prompt()
    scene.report(request)
    held = scene.bench.decide(request)
    assert held.held
    assert scene.report(request, held)[1].number == 1
