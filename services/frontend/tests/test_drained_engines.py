"""Requests leave an engine whose time to drain is over, and their clients don't notice: over real sockets."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from pointsman_apis.chat import CHAT
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseStarted
from pointsman_contracts.worker import DrainNotice
from pointsman_edge.sending.draining import DrainingEngines, OverdueDrain
from pointsman_testing import eventually
from pointsman_testing.continuing_engine import Body, ContinuingEngine
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import Received, Script, ScriptedEngine

RESUMED: Final[Body] = {"profiles": {"standard": {"resume": "exact", "resume_attempts": 1}}}
POOL: Final = "llama-8b"
ENGINE: Final = ContinuingEngine(model=POOL, together=1)
ASKED: Final[Body] = {
    "model": POOL,
    "messages": [{"role": "user", "content": "Tell me"}],
    "max_tokens": 60,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}
DOCUMENT: Final = b'{"id":"1","choices":[{"index":0,"message":{"content":"whole"}}]}'


class HeldEngine:
    """Answers a stream up to an event, and goes on once it is told."""

    def __init__(self, upto: int) -> None:
        self.go = asyncio.Event()
        self.came = asyncio.Event()
        self.cut = asyncio.Event()
        self._upto = upto

    async def __call__(self, request: Received) -> None:
        if request.method == "GET":
            await request.answer(b'{"object":"list","data":[{"id":"llama-8b","max_model_len":4096}]}')
            return
        asked = json.loads(request.body)
        if not asked.get("stream"):
            self.came.set()
            await self._wait(request)
            await request.answer(DOCUMENT)
            return
        if self._upto == 0:
            self.came.set()
            await self._wait(request)
        await request.begin_stream()
        for number, event in enumerate(ENGINE.events(request.path, asked)):
            if number == self._upto and number:
                self.came.set()
                await self._wait(request)
            await request.chunk(event)
        await request.chunk(b"")

    async def _wait(self, request: Received) -> None:
        told, gone = asyncio.create_task(self.go.wait()), asyncio.create_task(request.gone.wait())
        await asyncio.wait({told, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (told, gone):
            task.cancel()
        if request.gone.is_set():
            self.cut.set()


class Ticks:
    """The moments at which the edge looks for engines whose time is over."""

    def __init__(self) -> None:
        self.count = 0
        self.ahead_s = 0.0
        """The edge takes it to be so much later."""
        self.stands_at: float | None = None
        """The edge takes it to be always this time, monotonic."""
        self.look: Callable[[], float] = float
        """Called each time."""
        self.seen: set[float] = set()
        """The values of `look`."""

    async def wait_for_more(self, number: int) -> None:
        """Wait until the edge has looked so many more times."""
        until = self.count + number
        await eventually(lambda: self.count >= until)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    found, plain = Ticks(), DrainingEngines.find_overdue

    def find_overdue(draining: DrainingEngines, now: float) -> list[OverdueDrain]:
        found.count += 1
        found.seen.add(found.look())
        return plain(draining, now + found.ahead_s if found.stands_at is None else found.stands_at)

    monkeypatch.setattr(DrainingEngines, "find_overdue", find_overdue)
    return found


def serves() -> Script:
    """An engine that never waits."""
    engine = HeldEngine(-1)
    engine.go.set()
    return engine


def tell(edge: EdgeUnderTest, *notices: DrainNotice | None, at_ms: int = 1, states: str = "") -> None:
    """A snapshot with these engines, of which some drain; `states`: `-` for one that doesn't serve."""
    views = tuple(
        WorkerView(
            worker=f"worker-{number}",
            url=edge.stages.urls[number - 1],
            engine="vllm",
            state="not_ready" if states[number - 1 : number] == "-" else "draining" if notice else "serving",
            draining=notice,
        )
        for number, notice in enumerate(notices, 1)
    )
    edge.hear(PoolSnapshot(pool=POOL, source="c", sequence=at_ms, at_ms=at_ms, workers=views))


async def until_begun(edge: EdgeUnderTest, number: int) -> None:
    """Wait until the edge has the first byte of so many answers."""
    await eventually(lambda: len(edge.events.of(ResponseStarted)) == number)


OVER: Final = DrainNotice(left_ms=0, why="upgrade")
LATER: Final = DrainNotice(left_ms=600_000, why="upgrade")
WITHOUT_END: Final = DrainNotice(why="its pod isn't ready")


def body(**more: Any) -> bytes:
    return json.dumps(ASKED | more).encode()


def text_of(answer: bytes) -> str:
    events = [line[6:] for line in answer.split(b"\n\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


WHOLE: Final = text_of(ENGINE.stream(CHAT.path, ASKED))


async def test_a_stream_moves_once_the_time_is_over_and_its_client_reads_one_answer(
    start_edge: StartEdge, ticks: Ticks
) -> None:
    held = HeldEngine(9)
    async with ScriptedEngine(held) as first, ScriptedEngine(serves()) as second:
        edge = await start_edge(first.url, second.url, config=RESUMED)
        tell(edge, None, None)
        answering = asyncio.create_task(raw_request(edge.url, post(CHAT.path, body())))
        await held.came.wait()
        await until_begun(edge, 1)
        for notice in (LATER, WITHOUT_END):
            tell(edge, notice, None, at_ms=2)
            await ticks.wait_for_more(3)
            assert not held.cut.is_set(), "it may end until its time is over"
        tell(edge, OVER, None, at_ms=3)
        answer = await answering
        assert [request.path for request in second.received] == ["/v1/completions"]
    assert text_of(answer.body) == WHOLE
    assert answer.body.count(b"\n\ndata: [DONE]\n\n") == 1
    (done,) = edge.events.of(ResponseCompleted)
    assert [(each.worker, each.outcome) for each in done.attempts] == [
        ("worker-1", "drained"),
        ("worker-2", "answered"),
    ]
    assert (done.outcome, len(done.seams), done.worker) == ("ok", 1, "worker-2")
    (failed,) = edge.events.of(AttemptFailed)
    assert (failed.outcome, failed.next_worker) == ("drained", "worker-2")
    assert edge.metric("pointsman_edge_drain_moves_total") == 1


async def test_a_stream_may_move_more_often_than_it_may_be_continued_after_failures(start_edge: StartEdge) -> None:
    engines = [HeldEngine(4), HeldEngine(7), HeldEngine(9)]
    async with ScriptedEngine(engines[0]) as first, ScriptedEngine(engines[1]) as second:
        edge = await start_edge(first.url, second.url, config=RESUMED)
        tell(edge, None, None)
        answering = asyncio.create_task(raw_request(edge.url, post(CHAT.path, body())))
        await engines[0].came.wait()
        await until_begun(edge, 1)
        tell(edge, OVER, None, at_ms=2)
        await engines[1].came.wait()
        await until_begun(edge, 2)
        engines[0].go.set()
        # The first one is back: it drained, and hasn't failed the request.
        tell(edge, None, OVER, at_ms=3)
        answer = await answering
        assert len(first.received) == 2
    assert text_of(answer.body) == WHOLE
    (done,) = edge.events.of(ResponseCompleted)
    assert [(each.worker, each.outcome) for each in done.attempts] == [
        ("worker-1", "drained"),
        ("worker-2", "drained"),
        ("worker-1", "answered"),
    ]


@pytest.mark.parametrize("upto", [0, 1], ids=["whole", "waiting stream"])
async def test_a_request_of_which_nothing_has_left_moves_as_a_whole(start_edge: StartEdge, upto: int) -> None:
    held = HeldEngine(0)
    async with ScriptedEngine(held) as first, ScriptedEngine(serves()) as second:
        edge = await start_edge(first.url, second.url, config=RESUMED)
        tell(edge, None, None)
        answering = asyncio.create_task(raw_request(edge.url, post(CHAT.path, body(stream=bool(upto)))))
        await held.came.wait()
        tell(edge, OVER, None, at_ms=2)
        answer = await answering
        assert len(second.received) == 1
    assert (text_of(answer.body) == WHOLE) if upto else (answer.body == DOCUMENT)
    (done,) = edge.events.of(ResponseCompleted)
    assert [each.outcome for each in done.attempts] == ["drained", "answered"]
    assert done.seams == ()


async def test_a_whole_answer_moves_to_an_engine_that_its_decision_does_not_name(start_edge: StartEdge) -> None:
    held = HeldEngine(0)
    async with ScriptedEngine(held) as first, ScriptedEngine(serves()) as second:
        edge = await start_edge(first.url, second.url)
        tell(edge, None, None)
        edge.stages.urls = (first.url,)
        answering = asyncio.create_task(raw_request(edge.url, post(CHAT.path, body(stream=False))))
        await held.came.wait()
        edge.stages.urls = (first.url, second.url)
        tell(edge, OVER, None, at_ms=2)
        # The stages don't know of it yet: they name the drained engine again.
        edge.stages.urls = (first.url,)
        assert (await answering).body == DOCUMENT
        assert len(second.received) == 1


@pytest.mark.parametrize(
    ("config", "more", "states", "reason"),
    [
        ({"profiles": {"standard": {"resume": "off"}}}, {}, "", "not_continued"),
        (RESUMED, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "", "not_continued"),
        (RESUMED, {}, " -", "no_engine"),
    ],
    ids=["resume is off", "tools", "no other engine serves"],
)
async def test_a_stream_that_no_engine_could_continue_stays_and_ends_well(
    start_edge: StartEdge, config: Body, more: Body, states: str, reason: str
) -> None:
    held = HeldEngine(9)
    async with ScriptedEngine(held) as first, ScriptedEngine(serves()) as second:
        edge = await start_edge(first.url, second.url, config=config)
        tell(edge, None, None, states=states)
        answering = asyncio.create_task(raw_request(edge.url, post(CHAT.path, body(**more))))
        await held.came.wait()
        await until_begun(edge, 1)
        tell(edge, OVER, None, at_ms=2, states=states)
        await eventually(lambda: edge.metric("pointsman_edge_drain_stays_total") == 1)
        held.go.set()
        answer = await answering
        assert not second.received
    assert text_of(answer.body) == WHOLE
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.outcome, [each.outcome for each in done.attempts]) == ("ok", ["answered"])
    assert edge.metric("pointsman_edge_drain_stays_total") == 1, reason


async def test_a_stream_that_finds_an_engine_later_moves_then(start_edge: StartEdge) -> None:
    held = HeldEngine(9)
    async with ScriptedEngine(held) as first, ScriptedEngine(serves()) as second:
        edge = await start_edge(first.url, second.url, config=RESUMED)
        tell(edge, OVER, None, states=" -")
        answering = asyncio.create_task(raw_request(edge.url, post(CHAT.path, body())))
        await eventually(lambda: edge.metric("pointsman_edge_drain_stays_total") == 1)
        tell(edge, OVER, None, at_ms=2)
        assert text_of((await answering).body) == WHOLE
        assert len(second.received) == 1


async def test_nothing_moves_after_the_order_is_taken_back(start_edge: StartEdge, ticks: Ticks) -> None:
    held = HeldEngine(9)
    async with ScriptedEngine(held) as first, ScriptedEngine(serves()) as second:
        edge = await start_edge(first.url, second.url, config=RESUMED)
        tell(edge, LATER, None)
        answering = asyncio.create_task(raw_request(edge.url, post(CHAT.path, body())))
        await held.came.wait()
        await until_begun(edge, 1)
        tell(edge, None, None, at_ms=2)
        ticks.ahead_s = 601
        await ticks.wait_for_more(3)
        assert not held.cut.is_set()
        held.go.set()
        assert text_of((await answering).body) == WHOLE
        assert not second.received


async def test_a_deadline_holds_without_further_snapshots(start_edge: StartEdge, ticks: Ticks) -> None:
    """NATS is away, or every metrics-collector: the edge knows the time."""
    held = HeldEngine(9)
    async with ScriptedEngine(held) as first, ScriptedEngine(serves()) as second:
        edge = await start_edge(first.url, second.url, config=RESUMED)
        tell(edge, LATER, None)
        answering = asyncio.create_task(raw_request(edge.url, post(CHAT.path, body())))
        await held.came.wait()
        await until_begun(edge, 1)
        ticks.ahead_s = 601
        assert text_of((await answering).body) == WHOLE
        assert held.cut.is_set()


async def test_many_streams_leave_one_after_the_other(start_edge: StartEdge, ticks: Ticks) -> None:
    held = HeldEngine(9)
    async with ScriptedEngine(held) as first, ScriptedEngine(serves()) as second:
        edge = await start_edge(first.url, second.url, config=RESUMED)
        tell(edge, None, None)
        answering = [asyncio.create_task(raw_request(edge.url, post(CHAT.path, body()))) for _ in range(40)]
        await eventually(lambda: len(first.received) == 40 and len(edge.stages.asked) == 40)
        await until_begun(edge, 40)
        ticks.look = lambda: edge.metric("pointsman_edge_drain_moves_total")
        tell(edge, OVER, None, at_ms=2)
        ticks.stands_at = time.monotonic()
        answers = await asyncio.gather(*answering)
    assert len(ticks.seen) > 5, "the others would get all their prompts at once"
    assert {text_of(answer.body) for answer in answers} == {WHOLE}
    assert edge.metric("pointsman_edge_drain_moves_total") == 40
    assert edge.metric("pointsman_edge_resumed_total") == 40
