"""While the bus or the scheduler is gone the edge decides alone or says 503, and no event is lost."""

import asyncio
import json

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from pointsman_apis import named
from pointsman_contracts.journey import PreprocessRequest, Target
from pointsman_contracts.message import Message
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.reply import STAGE_UNAVAILABLE, Decision, Rejection
from pointsman_contracts.response import RequestRejected, ResponseCompleted, ResponseStarted
from pointsman_core.config import load
from pointsman_edge.deciding.decider import BusStages, StagesMissing, UnusableStages
from pointsman_edge.deciding.policy import EdgePolicy, compile_policy
from pointsman_edge.deciding.static_choice import Closed
from pointsman_edge.telling.event_publisher import EventPublisher
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_journey.hop import Hop
from pointsman_journey.journey_client import JourneyClient, Settled
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.errors import BusError, MessageTooLarge
from pointsman_runtime.telling.process import Process
from pointsman_testing import NatsServer, builders, eventually
from pointsman_testing.buses import Buses
from pointsman_testing.fake_stages import EdgeUnderTest, RecordedEvents, StartEdge
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import ANSWER, ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'


async def without_bus(start_edge: StartEdge, engine: ScriptedEngine, **config: object) -> EdgeUnderTest:
    edge = await start_edge(config=config)
    edge.stages.failure = StagesMissing("bus disconnected: no route")
    view = WorkerView(worker="worker-9", url=engine.url)
    edge.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(view,)))
    return edge


@pytest.mark.requirement("S1-51")
async def test_the_edge_picks_from_its_last_snapshot(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await without_bus(start_edge, engine)
        answer = await raw_request(edge.url, post(CHAT, BODY))
        assert engine.received[0].body == BODY
        metrics = await raw_request(edge.url, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (answer.status, answer.body) == (200, ANSWER)
    assert answer.header("x-pointsman-level") == "static"
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.level, done.worker, done.pool, done.model) == ("static", "worker-9", "llama-8b", "llama-8b")
    assert (done.profile, done.outcome) == ("standard", "ok")
    assert b'pointsman_edge_decisions_total{level="static"} 1.0' in metrics.body


async def test_a_member_that_occurs_twice_is_refused_by_the_edge_alone_too(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await without_bus(start_edge, engine)
        answer = await raw_request(edge.url, post(CHAT, BODY.replace(b"{", b'{"model":"other",', 1)))
        assert engine.received == []
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "duplicate_member", "model")


async def test_a_policy_that_forbids_it_means_503_at_once(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await without_bus(start_edge, engine, profiles={"standard": {"static": "deny"}})
        answer = await raw_request(edge.url, post(CHAT, BODY))
        assert engine.received == []
    assert (answer.status, answer.header("retry-after")) == (503, "1")
    assert json.loads(answer.body)["error"]["code"] == "gateway_unavailable"
    (done,) = edge.events.of(ResponseCompleted)
    assert (done.level, done.outcome) == ("closed", "rejected")
    assert (
        done.reason
        == "bus disconnected: no route; the edge may not decide alone because profile standard doesn't allow it"
    )
    assert "no route" not in edge.events.of(RequestRejected)[0].reason
    assert edge.metric("pointsman_edge_decisions_total") == 1


BAD = {
    "not json": (b"hello", "invalid_json"),
    "truncated": (BODY[:-3], "invalid_json"),
    "NaN": (b'{"model":"llama-8b","temperature":NaN}', "invalid_json"),
    "invalid utf-8": (b'{"model":"llama-8b","x":"\xff"}', "invalid_json"),
    "lone surrogate": (b'{"model":"\\ud800"}', "invalid_json"),
    "too deep": (b'{"model":"llama-8b","x":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "body_too_complex"),
    "an array": (b"[]", "invalid_json"),
    "no model": (b"{}", "invalid_model"),
    "model a number": (b'{"model":7}', "invalid_model"),
    "another model": (b'{"model":"gpt"}', "model_not_found"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_body_that_no_engine_could_take_is_refused_here_too(start_edge: StartEdge, name: str) -> None:
    body, code = BAD[name]
    async with ScriptedEngine() as engine:
        edge = await without_bus(start_edge, engine)
        answer = await raw_request(edge.url, post(CHAT, body))
        assert engine.received == []
    assert answer.status == (404 if code == "model_not_found" else 400)
    assert json.loads(answer.body)["error"]["code"] == code


def test_the_end_of_a_stream_leaves_sooner_than_that_of_a_whole_response() -> None:
    """Schedulers take the engine to be at work until they hear of it."""
    bus = RecordedEvents()
    events = EventPublisher(bus, "edge-1", CollectorRegistry())
    whole, stream = (RequestRecord(name, named("completions"), POLICY, 0.0) for name in ("whole", "stream"))
    stream.stream = True
    events.publish_completion(whole, 1.0)
    assert bus.hastened == []
    events.publish_start(stream, "w", 0.1)
    events.publish_completion(stream, 1.0)
    assert bus.hastened == [ResponseStarted, ResponseCompleted]


def test_the_end_of_a_line_of_a_batch_leaves_at_once() -> None:
    """Its batch gets the end of the answer once the stream has the event, which charges it."""
    bus = RecordedEvents()
    events = EventPublisher(bus, "edge-1", CollectorRegistry())
    line = RequestRecord("line", named("completions"), POLICY, 0.0)
    events.publish_completion(line, 1.0)
    assert bus.awaited == []
    stored: list[str] = []
    line.reported = lambda: stored.append("line")
    events.publish_completion(line, 1.0)
    [done] = bus.awaited
    assert stored == []
    done()
    assert stored == ["line"]


def test_an_event_over_the_limit_is_dropped_and_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    class Narrow(RecordedEvents):
        def publish(self, message: Message, *route: str) -> None:
            if isinstance(message, ResponseCompleted) and message.request_id.startswith("large"):
                raise MessageTooLarge("response.completed.v1", 1, 2)
            super().publish(message, *route)

    bus, registry = Narrow(), CollectorRegistry()
    events = EventPublisher(bus, "edge-1", registry)
    for number in range(3):
        events.publish_completion(RequestRecord(f"large-{number}", named("completions"), POLICY, 0.0), 1.0)
    events.publish_completion(RequestRecord("small", named("completions"), POLICY, 0.0), 1.0)
    assert [event.request_id for event in bus.of(ResponseCompleted)] == ["small"]
    assert registry.get_sample_value("pointsman_edge_events_too_large_total") == 3
    assert caplog.text.count("event_too_large") == 1


def stages(edge: Journeys) -> BusStages:
    return BusStages(edge, JourneyClient(edge))


async def asked(edge: Journeys, policy: EdgePolicy, body: bytes = BODY) -> Settled:
    """The reply of the stages; raises why there is none."""
    source = stages(edge)
    try:
        return source.usable(await source.ask(builders.preprocess_request(), body, policy, None))
    except BusError as error:
        raise source.explained(error) from error


POLICY = compile_policy(load({"edge": {"hop_budget": "300ms"}}), 1)
Asked = tuple[PreprocessRequest, bytes]


async def test_the_stages_are_asked_over_the_bus(buses: Buses) -> None:
    preprocessor, edge = buses.make("preprocessor"), buses.make("frontend")
    heard: list[Asked] = []

    def decide(request: PreprocessRequest, hop: Hop[PreprocessRequest]) -> Decision:
        heard.append((request, bytes(hop.body)))
        return builders.decision(request.request_id)

    preprocessor.stage(PreprocessRequest, decide)
    await buses.meet()
    assert isinstance(await asked(edge, POLICY), Decision)
    assert [body for _, body in heard] == [BODY]


async def test_the_edge_may_decide_alone_when_a_stage_saw_no_scheduler_although_the_edge_sees_one(buses: Buses) -> None:
    """A new replica of the scheduler is known to the edge before every stage knows it."""
    preprocessor, edge = buses.make("preprocessor"), buses.make("frontend")

    def give_up(request: PreprocessRequest, hop: Hop[PreprocessRequest]) -> Rejection:
        del hop
        return Rejection(
            request_id=request.request_id,
            stage="preprocessor",
            status=503,
            type="server_error",
            code=STAGE_UNAVAILABLE,
            message="No live instance of scheduler; try again shortly.",
            missing="scheduler",
        )

    preprocessor.stage(PreprocessRequest, give_up)
    buses.make("scheduler")
    await buses.meet()
    with pytest.raises(StagesMissing, match="no live scheduler"):
        await asked(edge, POLICY)


async def test_a_missing_preprocessor_means_503_at_once(buses: Buses) -> None:
    edge = buses.make("frontend")
    await buses.meet()
    with pytest.raises(Closed, match="No live instance of preprocessor") as closed:
        await asked(edge, POLICY)
    assert closed.value.retry_after_s == 1.0


async def test_missing_stages_are_known_before_a_request_comes(buses: Buses) -> None:
    edge = buses.make("frontend")
    pooled = compile_policy(load({"pools": {"p": {"models": ["m"]}}}), 1)
    await buses.meet()
    assert stages(edge).find_unusable_stages(pooled) == UnusableStages("no live preprocessor", alone=False)
    for service in ("preprocessor", "profile-picker"):
        buses.make(service)
    await buses.meet()
    assert stages(edge).find_unusable_stages(pooled) == UnusableStages("no live scheduler", alone=True)
    assert stages(edge).find_unusable_stages(POLICY) is None
    buses.make("scheduler")
    await buses.meet()
    assert stages(edge).find_unusable_stages(pooled) is None


@pytest.mark.parametrize("hangs", [False, True])
async def test_just_after_the_bus_came_back_a_missing_stage_lets_the_edge_decide_alone(
    own_nats_server: NatsServer, hangs: bool
) -> None:
    edge = Journeys(Bus(Connection([own_nats_server.url], name="edge"), Process("frontend", "edge-1")))
    stage = Journeys(Bus(Connection([own_nats_server.url], name="stage"), Process("preprocessor", "stage-1")))
    stage.stage(PreprocessRequest, lambda request, hop: None)
    edge.open()
    try:
        await edge.bus.wait_connected()
        await asyncio.to_thread(own_nats_server.kill)
        await eventually(lambda: not edge.bus.connected)
        await asyncio.to_thread(own_nats_server.start)
        await edge.bus.wait_connected()
        if hangs:
            stage.open()
            await stage.bus.wait_connected()
            stage.serve()
            now = asyncio.get_running_loop().time
            await eventually(lambda: edge.heartbeat.table.is_addressable("preprocessor", "stage-1", now()))
        said = "don't answer yet" if hangs else "preprocessor isn't yet"
        with pytest.raises(StagesMissing, match=said):
            await asked(edge, POLICY)
    finally:
        await edge.close()
        await stage.close()


async def test_no_answer_within_the_decision_timeout_means_503(buses: Buses) -> None:
    preprocessor, edge = buses.make("preprocessor"), buses.make("frontend")
    attempts: list[int] = []
    preprocessor.stage(PreprocessRequest, lambda request, _: attempts.append(request.attempt))
    await buses.meet()
    policy = compile_policy(load({"edge": {"hop_budget": "50ms", "decision_timeout": "2s"}}), 1)

    async def asked_twice() -> bool:
        attempts.clear()
        with pytest.raises(Closed) as closed:
            await asked(edge, policy)
        assert closed.value.code == "decision_timeout"
        return attempts[:2] == [1, 2]

    # A machine that stands still for 2 s leaves no time for the second attempt.
    await eventually(asked_twice)


async def test_a_request_waits_for_a_scheduler_that_was_there_a_moment_ago_unless_the_edge_may_decide_alone(
    buses: Buses,
) -> None:
    preprocessor, scheduler, edge = buses.make("preprocessor"), buses.make("scheduler"), buses.make("frontend")

    def forward(request: PreprocessRequest, hop: Hop[PreprocessRequest]) -> Decision | Rejection:
        if request.attempt > 1:
            return builders.decision(request.request_id)
        missing = {"target": Target(model="m", pool="p"), "missing": "scheduler"}
        return replace(hop.reject(503, "No live instance.", code="stage_unavailable"), **missing)

    preprocessor.stage(PreprocessRequest, forward)
    await buses.meet()
    await scheduler.close()
    now = asyncio.get_running_loop().time
    await eventually(lambda: not edge.heartbeat.table.is_alive("scheduler", "scheduler-1", now()))
    with pytest.raises(StagesMissing, match="no live scheduler"):
        await asked(edge, POLICY)
    insists = compile_policy(load({"profiles": {"standard": {"static": "deny"}}}), 1)
    asking = asyncio.create_task(asked(edge, insists))
    again = buses.make("scheduler", "2")
    again.open()
    await again.bus.wait_connected()
    again.serve()
    assert isinstance(await asking, Decision)


async def test_an_edge_is_not_missing_what_its_requests_are_held_for(buses: Buses) -> None:
    edge, preprocessor = buses.make("frontend"), buses.make("preprocessor")
    buses.make("profile-picker")
    await buses.meet()
    await preprocessor.close()
    table, now = edge.heartbeat.table, asyncio.get_running_loop().time
    table.mark_unreachable("preprocessor", None)
    assert stages(edge).find_unusable_stages(POLICY) is None
    await eventually(lambda: table.hold_time_left("preprocessor", None, 1.0, 1.0, now()) <= 0)
    assert stages(edge).find_unusable_stages(POLICY) is None
    brief = compile_policy(load({"edge": {"decision_timeout": "1s"}}), 1)
    assert stages(edge).find_unusable_stages(brief) == UnusableStages("no live preprocessor", alone=False)


async def test_a_lost_bus_lets_the_edge_decide_alone(buses: Buses) -> None:
    edge = buses.make("frontend")
    with pytest.raises(StagesMissing, match="bus disconnected"):
        await asked(edge, POLICY)


@pytest.mark.requirement("S1-51")
@pytest.mark.parametrize("scheduler_lives", [True, False])
async def test_a_missing_scheduler_lets_the_edge_decide_alone(buses: Buses, scheduler_lives: bool) -> None:
    preprocessor, edge = buses.make("preprocessor"), buses.make("frontend")

    def nobody(request: PreprocessRequest, hop: Hop[PreprocessRequest]) -> Rejection:
        return replace(
            hop.reject(503, "No live instance.", code="stage_unavailable"), target=Target(model="m", pool="p")
        )

    preprocessor.stage(PreprocessRequest, nobody)
    if scheduler_lives:
        buses.make("scheduler")
    await buses.meet()
    asking = asked(edge, POLICY)
    if scheduler_lives:
        # Another stage is missing: that is for the client to know.
        assert isinstance(await asking, Rejection)
    else:
        with pytest.raises(StagesMissing, match="no live scheduler"):
            await asking
