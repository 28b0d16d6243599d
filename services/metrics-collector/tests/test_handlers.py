"""Collectors on a bus: snapshots, statistics, events, and what Prometheus is shown."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import Target
from pointsman_contracts.message import read_fields
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.pool import PoolDiscovery, PoolSnapshot
from pointsman_contracts.response import Attempt, ResponseCompleted, Usage
from pointsman_contracts.subjects import ANY
from pointsman_contracts.worker import WorkerJoined, WorkerLeft, WorkerLoad, WorkerRegistration, WorkerSilent
from pointsman_core.config import load
from pointsman_engines.report import ReportedWorker
from pointsman_hosting.configuration import Revision
from pointsman_journey.journeys import Journeys
from pointsman_metrics_collector.adapters.pool_metrics import WorkerMetrics
from pointsman_metrics_collector.adapters.response_metrics import MOST_AGENTS, ResponseMetrics
from pointsman_metrics_collector.announcer import MessageNumbers
from pointsman_metrics_collector.domain.engines import ScrapedEngine
from pointsman_metrics_collector.domain.finding import EngineSource
from pointsman_metrics_collector.handlers import TICK_S, Handlers
from pointsman_testing import eventually
from pointsman_testing.buses import Buses, apart

STATIC = {"discovery": "static", "engines": ["http://e:1"]}
CONFIG = load({"pools": {"p": {"models": ["m"]}, "empty": {"models": ["n"]}}})


def registration(boot_id: str = "b1") -> WorkerRegistration:
    return WorkerRegistration(
        worker="w1",
        pool="p",
        url="http://w1",
        models=("m",),
        boot_id=boot_id,
        agent="a",
        version="0",
        registered_ms=0,
    )


def told(**changes: object) -> WorkerLoad:
    fields: dict[str, object] = {"worker": "w1", "pool": "p", "boot_id": "b1", "sequence": 1, "at_ms": 0}
    return read_fields(WorkerLoad, fields | changes)


def completed(**changes: object) -> ResponseCompleted:
    fields: dict[str, object] = {
        "request_id": "r",
        "source": "edge-1",
        "sequence": 1,
        "at_ms": 0,
        "pool": "p",
        "worker": "w1",
        "model": "m",
        "target": Target(model="m", pool="p"),
        "stream": True,
        "status": 200,
        "outcome": "ok",
        "attempts": (Attempt(worker="w1", outcome="answered"),),
        "decided_ms": 1.0,
        "ttft_ms": 100.0,
        "duration_ms": 1000.0,
        "usage": Usage(prompt_tokens=50, completion_tokens=10, cached_tokens=32),
    }
    return read_fields(ResponseCompleted, fields | changes)


class Collector:
    """A collector without its process: the test ticks it and stands in for the bucket."""

    def __init__(self, service: Journeys) -> None:
        self.service = service
        self.registry = CollectorRegistry()
        self.ahead = 0.0
        """How far the collector's clock is ahead of the loop's."""
        announcer = MessageNumbers(service.bus, self.registry)
        self.handlers = Handlers(
            service.bus, service.heartbeat, announcer, ResponseMetrics(self.registry).count_completion, self.clock
        )
        self.registry.register(WorkerMetrics(self.handlers.pools, self.handlers.changes))
        self.handlers.configured(Revision(1, CONFIG, "", None))
        service.bus.listen(WorkerLoad, self.handlers.load, ANY, ANY, keep="latest")
        service.bus.listen(ResponseCompleted, self.handlers.completed, ANY)
        self.timer: asyncio.TimerHandle | None = None

    def clock(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead

    def start(self) -> None:
        self.handlers.listed()
        self.turn()

    def turn(self) -> None:
        self.handlers.tick()
        self.timer = asyncio.get_running_loop().call_later(TICK_S, self.turn)

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def register(self, boot_id: str = "b1") -> None:
        self.handlers.registered(registration(boot_id))

    def deregister(self) -> None:
        self.handlers.left("p", "w1")

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@dataclass
class World:
    collectors: list[Collector]
    edge: Journeys
    snapshots: list[PoolSnapshot] = field(default_factory=list[PoolSnapshot])
    statistics: list[ModelStatistics] = field(default_factory=list[ModelStatistics])
    changes: list[WorkerJoined | WorkerSilent | WorkerLeft] = field(
        default_factory=list[WorkerJoined | WorkerSilent | WorkerLeft]
    )

    def of(self, pool: str) -> list[PoolSnapshot]:
        return [snapshot for snapshot in self.snapshots if snapshot.pool == pool]

    def each(self, action: Callable[[Collector], None]) -> None:
        for collector in self.collectors:
            action(collector)


async def world(buses: Buses, collectors: int = 1) -> World:
    edge = buses.make("frontend")
    made = World([Collector(buses.make("metrics-collector", str(n))) for n in range(collectors)], edge)
    edge.bus.listen(PoolSnapshot, made.snapshots.append, ANY)
    edge.bus.listen(ModelStatistics, made.statistics.append, ANY)
    edge.bus.listen(WorkerJoined, made.changes.append, ANY)
    edge.bus.listen(WorkerSilent, made.changes.append, ANY)
    edge.bus.listen(WorkerLeft, made.changes.append, ANY)
    await buses.meet()
    return made


@pytest.mark.requirement("SLO-1")
async def test_kept_missed_and_refused_service_levels_are_counted_by_class(buses: Buses) -> None:
    made = await world(buses)
    (collector,) = made.collectors
    collector.start()
    promise = {"service_class": "interactive", "ttft_ms": 800.0}
    for kept, tokens in ((True, 40), (True, 2), (False, 30), (None, 5)):
        made.edge.bus.publish(completed(promise=promise, kept=kept, usage={"completion_tokens": tokens}), "p")
    refused = completed(promise=promise, kept=None, outcome="rejected", status=429, worker=None, usage=None)
    made.edge.bus.publish(refused, "p")
    names = {"pool": "p", "model": "m", "class": "interactive"}

    def counted(result: str) -> float | None:
        return collector.value("pointsman_slo_requests_total", **names, result=result)

    await eventually(lambda: [counted(each) for each in ("kept", "missed", "unknown", "refused")] == [2, 1, 1, 1])
    assert collector.value("pointsman_slo_goodput_tokens_total", **names) == 42
    assert collector.value("pointsman_slo_tenant_goodput_tokens_total", **{"tenant": "", "class": "interactive"}) == 42


async def test_reuse_is_counted_by_agent_and_tokens_of_which_nothing_is_known_apart(buses: Buses) -> None:
    made = await world(buses)
    (collector,) = made.collectors
    collector.start()

    def publish(agent: str | None, prompt: int, cached: int, *, unknown: bool = False) -> None:
        session = {"id": "s", "agent": None if agent is None else {"name": agent}}
        usage = {"prompt_tokens": prompt, "cached_tokens": cached, "cached_unknown": unknown}
        made.edge.bus.publish(completed(session=session, usage=usage), "p")

    def counted(agent: str) -> list[float | None]:
        name = "pointsman_agent_prompt_tokens_total"
        return [collector.value(name, pool="p", agent=agent, cached=cached) for cached in ("yes", "no", "unknown")]

    publish("claude-code", 100, 80)
    publish("claude-code", 50, 0, unknown=True)
    publish("codex", 10, 999)
    publish(None, 7, 0)
    await eventually(lambda: counted("other") == [0, 7, None])
    assert counted("claude-code") == [80, 20, 50]
    assert counted("codex") == [10, 0, None]
    for number in range(2 * MOST_AGENTS):
        publish(f"made-up-{number}", 1, 0)
    publish("made-up-0", 1, 1)
    await eventually(lambda: counted("made-up-0") == [1, 1, None])
    # Claude Code and Codex are two of the agents that have counts of their own.
    assert counted("other")[1] == 7 + 2 * MOST_AGENTS - (MOST_AGENTS - 2)


async def test_a_pool_is_published_when_it_changes_and_again_while_it_does_not(buses: Buses) -> None:
    made = await world(buses)
    (collector,) = made.collectors
    collector.register()
    made.edge.bus.publish(told(waiting=5, running=2), "p", "w1")
    collector.start()
    await eventually(lambda: made.of("p"))
    first = made.of("p")[0]
    assert (first.saturation, first.models, first.source) == (1.0, ("m",), "metrics-collector-0")
    assert [(view.worker, view.state, view.running) for view in first.workers] == [("w1", "serving", 2)]
    assert made.of("empty")[0].saturation == 1.0
    made.edge.bus.publish(told(waiting=0), "p", "w1")
    await eventually(lambda: made.of("p")[-1].saturation == 0.0)
    assert [snapshot.sequence for snapshot in made.of("p")] == list(range(1, len(made.of("p")) + 1))
    count = len(made.of("empty"))
    await eventually(lambda: len(made.of("empty")) > count)
    collector.stop()


async def test_nothing_is_published_before_the_registered_workers_were_heard_or_missed(buses: Buses) -> None:
    made = await world(buses)
    (collector,) = made.collectors
    collector.register()
    assert collector.handlers.missing == "the registered workers aren't known yet"
    collector.start()
    assert collector.handlers.missing == "registered workers were not heard yet"
    await eventually(lambda: collector.handlers.missing is None)
    await eventually(lambda: made.of("p"))
    assert made.of("p")[0].workers[0].state == "silent"
    assert made.changes == [], "what was so before this collector began is no news"
    collector.stop()


async def test_workers_that_come_fall_silent_return_and_leave_are_published_once_by_all_collectors_together(
    buses: Buses,
) -> None:
    made = await world(buses, collectors=2)
    made.each(Collector.start)
    made.each(Collector.register)
    await eventually(lambda: len(made.changes) == 1)
    await eventually(lambda: len(made.changes) == 2)
    made.edge.bus.publish(told(), "p", "w1")
    await eventually(lambda: len(made.changes) == 3)
    made.each(lambda collector: collector.register("b2"))
    await eventually(lambda: len(made.changes) == 4)
    made.each(Collector.deregister)
    await eventually(lambda: len(made.changes) == 5)
    made.each(Collector.stop)
    seen = [change.why if isinstance(change, WorkerJoined) else type(change).__name__ for change in made.changes]
    assert seen == ["registered", "WorkerSilent", "heard", "restarted", "WorkerLeft"]
    assert [change.sequence for change in made.changes] == [1, 1, 2, 3, 1]
    for collector in made.collectors:
        assert collector.value("pointsman_worker_changes_total", pool="p", change="joined") == 3
        assert collector.value("pointsman_worker_changes_total", pool="p", change="silent") == 1
        assert collector.value("pointsman_worker_changes_total", pool="p", change="left") == 1


async def test_workers_are_shown_to_prometheus_until_they_leave(buses: Buses) -> None:
    made = await world(buses)
    (collector,) = made.collectors
    collector.start()
    collector.register()
    made.edge.bus.publish(told(running=3, waiting=1, kv_usage=0.4), "p", "w1")
    worker = {"pool": "p", "worker": "w1"}
    await eventually(lambda: collector.value("pointsman_worker_running_requests", **worker) == 3)
    assert collector.value("pointsman_worker_waiting_requests", **worker) == 1
    assert collector.value("pointsman_worker_kv_usage_ratio", **worker) == 0.4
    assert collector.value("pointsman_worker_state", **worker, state="serving") == 1
    assert collector.value("pointsman_worker_state", **worker, state="silent") == 0
    assert collector.value("pointsman_pool_saturation", pool="p") == 0.5
    assert collector.value("pointsman_pool_workers", pool="p", state="serving") == 1
    assert collector.value("pointsman_pool_saturation", pool="empty") == 1.0
    age = collector.value("pointsman_worker_report_age_seconds", **worker)
    assert age is not None
    assert 0 <= age < 5
    collector.deregister()
    for name in ("running_requests", "waiting_requests", "kv_usage_ratio", "report_age_seconds"):
        assert collector.value(f"pointsman_worker_{name}", **worker) is None
    assert collector.value("pointsman_worker_state", **worker, state="serving") is None
    assert collector.value("pointsman_pool_workers", pool="p", state="serving") == 0
    collector.stop()


async def test_completions_are_counted_and_teach_about_their_model(buses: Buses) -> None:
    made = await world(buses, collectors=2)
    made.each(Collector.start)
    made.edge.bus.publish(completed(), "p")
    retried = (Attempt(worker="w1", outcome="refused"), Attempt(worker="w2", outcome="answered"))
    made.edge.bus.publish(completed(stream=False, attempts=retried, usage=None), "p")
    made.edge.bus.publish(completed(outcome="engine_error", level="degraded", ttft_ms=None, usage=None), "p")
    made.edge.bus.publish(completed(pool="-", target=None, model="made-up", outcome="rejected", attempts=()), "-")
    served = {"pool": "p", "model": "m"}
    collector = made.collectors[0]
    await eventually(
        lambda: all(
            c.value("pointsman_requests_total", pool="-", model="other", outcome="rejected", level="full") == 1
            for c in made.collectors
        )
    )
    assert collector.value("pointsman_requests_total", **served, outcome="ok", level="full") == 2
    assert collector.value("pointsman_requests_total", **served, outcome="engine_error", level="degraded") == 1
    assert collector.value("pointsman_attempts_total", **served, outcome="answered") == 3
    assert collector.value("pointsman_attempts_total", **served, outcome="refused") == 1
    assert collector.value("pointsman_tokens_total", **served, kind="prompt") == 50
    assert collector.value("pointsman_tokens_total", **served, kind="cached") == 32
    assert collector.value("pointsman_request_ttft_seconds_count", **served) == 1
    assert collector.value("pointsman_request_ttft_seconds_bucket", **served, le="0.1") == 1
    assert collector.value("pointsman_request_duration_seconds_sum", **served) == 2.0
    assert collector.value("pointsman_request_decision_seconds_count", **served) == 3
    await eventually(lambda: {s.source for s in made.statistics} == {"metrics-collector-0", "metrics-collector-1"})
    await eventually(lambda: made.statistics[-1].requests == 3)
    last = made.statistics[-1]
    assert (last.model, last.errors, last.ttft_ms, last.output_tokens) == ("m", 1, 100.0, 10.0)
    assert {statistics.model for statistics in made.statistics} == {"m"}
    made.each(Collector.stop)


async def test_a_request_that_went_on_to_another_model_teaches_about_both(buses: Buses) -> None:
    made = await world(buses)
    made.each(Collector.start)
    first, second = Target(model="m", pool="p"), Target(model="m2", pool="p")
    attempts = (
        Attempt(worker="w1", outcome="failed", target=first, limited_until_ms=600_000, remaining=0.5),
        Attempt(worker="w2", outcome="answered", target=second),
    )
    made.edge.bus.publish(completed(target=second, attempts=attempts), "p")
    await eventually(lambda: any(told.model == "m" for told in made.statistics))
    told = next(told for told in made.statistics if told.model == "m")
    assert (told.requests, told.errors, told.remaining) == (1, 1, 0.5)
    assert told.limited_until_ms is not None
    assert 0 < told.limited_until_ms - told.at_ms <= 600_000
    made.each(Collector.stop)


async def test_an_answer_that_a_stage_had_is_counted_and_teaches_nothing_about_the_model(buses: Buses) -> None:
    made = await world(buses)
    made.each(Collector.start)
    made.edge.bus.publish(completed(answered_by="semantic-cache", attempts=(), worker=None, usage=Usage()), "p")
    made.edge.bus.publish(completed(), "p")
    await eventually(lambda: any(told.requests for told in made.statistics))
    told = made.statistics[-1]
    assert (told.requests, told.output_tokens) == (1, 10.0)
    (collector,) = made.collectors
    assert collector.value("pointsman_requests_total", pool="p", model="m", outcome="ok", level="full") == 2
    made.each(Collector.stop)


async def test_silence_is_not_put_down_to_workers_while_the_bus_is_gone(buses: Buses) -> None:
    made = await world(buses)
    (collector,) = made.collectors
    collector.start()
    collector.register()
    made.edge.bus.publish(told(running=1), "p", "w1")
    await eventually(lambda: collector.value("pointsman_worker_running_requests", pool="p", worker="w1") == 1)
    collector.stop()

    def pass_seconds() -> None:
        for _ in range(30):
            collector.ahead += 0.1
            collector.handlers.tick()

    await collector.service.bus.hub.connection.close()
    pass_seconds()
    assert collector.value("pointsman_worker_state", pool="p", worker="w1", state="serving") == 1
    collector.service.bus.hub.connection.open()
    await collector.service.bus.wait_connected()
    pass_seconds()
    assert collector.value("pointsman_worker_state", pool="p", worker="w1", state="silent") == 1


@pytest.mark.parametrize("buses", ["memory", "bundle"], indirect=True)
async def test_events_wait_for_the_bus_and_snapshots_that_it_does_not_take_are_counted(buses: Buses) -> None:
    """In memory only: a connection to a server that its own process closes gives up what it holds."""
    made = await world(buses)
    [collector] = made.collectors
    collector.handlers.listed()
    untaken = 0.0
    for outage in (1, 2):
        await collector.service.bus.hub.connection.close()
        collector.register()
        collector.deregister()
        collector.ahead += 10.0
        collector.handlers.tick()
        before, untaken = untaken, collector.value("pointsman_collector_unpublished_total", type="PoolSnapshot") or 0.0
        assert untaken > before
        collector.service.bus.hub.connection.open()
        await collector.service.bus.wait_connected()
        await eventually(lambda outage=outage: len(made.changes) >= 2 * outage)
    assert [type(change) for change in made.changes] == [WorkerJoined, WorkerLeft] * 2
    assert [change.sequence for change in made.changes] == [1, 1, 2, 2]
    for event in ("WorkerJoined", "WorkerLeft"):
        assert collector.value("pointsman_collector_unpublished_total", type=event) is None


@apart
async def test_an_event_that_is_too_large_is_counted_and_its_type_logged_once(
    buses: Buses, caplog: pytest.LogCaptureFixture
) -> None:
    made = await world(buses)
    [collector] = made.collectors
    collector.handlers.listed()
    many = tuple(f"a-model-with-a-long-name-{number:060d}" for number in range(1000))
    for times in (1, 2):
        collector.handlers.registered(replace(registration(), models=many))
        collector.deregister()
        assert collector.value("pointsman_collector_unpublished_total", type="WorkerJoined") == times
    assert caplog.text.count("message_too_large") == 1
    await eventually(lambda: [type(change) for change in made.changes] == [WorkerLeft] * 2)


async def test_a_collector_that_has_found_nothing_yet_is_given_no_share_of_a_pool(buses: Buses) -> None:
    made = await world(buses, 2)
    first, second = made.collectors
    both = {collector.service.process.instance for collector in made.collectors}
    pools = {"p": {"models": ["m"], "discovery": "kubernetes", "kubernetes": {"inference_pool": "ip"}}, "s": STATIC}
    configuration = Revision(2, load({"pools": pools}), "", None)

    def shared(pool: str) -> list[set[str]]:
        return [collector.handlers.collectors_of(pool) for collector in made.collectors]

    made.each(lambda collector: collector.handlers.configured(configuration))
    await eventually(lambda: shared("p") == shared("s") == [both, both])
    first.handlers.found("p", EngineSource("kubernetes"))
    await eventually(lambda: shared("p") == [{first.service.process.instance}] * 2)
    assert shared("s") == [both, both]
    second.handlers.found("p", EngineSource("kubernetes", problem="the API server isn't reached", answered=False))
    await eventually(lambda: shared("p") == [{first.service.process.instance}] * 2)
    second.handlers.found("p", EngineSource("kubernetes"))
    await eventually(lambda: shared("p") == [both, both])
    second.handlers.found("p", EngineSource("kubernetes", problem="the API server isn't reached"))
    assert shared("p") == [both, both], "what it knows may be old, which it says; it goes on to speak for its share"


async def test_findings_are_published_with_the_pool_and_forgotten_with_its_configuration(buses: Buses) -> None:
    made = await world(buses)
    [collector] = made.collectors
    pools = {"p": {"models": ["m"], "discovery": "file", "file": "/e.yaml"}, "s": STATIC}
    collector.handlers.configured(Revision(2, load({"pools": pools}), "", None))
    engines = {("p", "w1"): ScrapedEngine(ReportedWorker("p", "w1", "http://w1"))}
    collector.handlers.found("p", EngineSource("file", engines, "line 3 is wrong"))
    assert set(collector.handlers.engines) == {("p", "w1"), ("s", "e:1")}
    collector.start()
    await eventually(lambda: made.of("p") and made.of("p")[-1].discovery is not None)
    assert made.of("p")[-1].discovery == PoolDiscovery(kind="file", problem="line 3 is wrong", endpoints=1)
    await eventually(lambda: made.of("s"))
    assert made.of("s")[-1].discovery is None
    collector.handlers.configured(Revision(3, CONFIG, "", None))
    assert not collector.handlers.engines
    collector.stop()
