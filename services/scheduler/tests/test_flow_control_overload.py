"""Ten minutes of four times the load that a pool can take, in virtual time."""

import gc
import heapq
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from pointsman_contracts.scheduling import ReservationChange
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_core.config.flow_control import FlowControl
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.domain.flow_control import (
    Capacity,
    Dispatch,
    Dropped,
    FlowController,
    Item,
    compile_flow_control,
)
from pointsman_scheduler.domain.ledger import Ledger
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.plugins.flow_control import flow_registries

ENGINES, SLOTS, SERVICE_S = 4, 8, 2.0
CAPACITY = ENGINES * SLOTS / SERVICE_S
REPORT_S = 0.05
SOON_S = 5.0
"""A high-priority answer counts when the request reached a slot of an engine within this time."""


@dataclass
class Engine:
    """Runs SLOTS requests at a time, each for SERVICE_S; others queue in it, first come, first served."""

    name: str
    running: int = 0
    queue: deque[str] = field(default_factory=deque[str])
    reported: tuple[int, int] = (0, 0)


@dataclass
class Tally:
    offered: int = 0
    good: int = 0
    dispatched: int = 0
    dropped: int = 0


class Overload:
    """Events by time; the fleet, the books and the detector are the real ones."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.ledger = Ledger(self.fleet, PrefixIndex())
        self.engines = [Engine(f"e{i}") for i in range(ENGINES)]
        for engine in self.engines:
            self.fleet.register(
                WorkerRegistration(
                    worker=engine.name, pool="p", url=f"http://{engine.name}:1", boot_id="b", agent="a", version="1",
                    registered_ms=0,
                )
            )  # fmt: skip
        self.policy = compile_flow_control(FlowControl(), flow_registries())
        self.flow = FlowController[str](self.policy)
        self.events: list[tuple[float, int, str, str]] = []
        self.tallies = {priority: Tally() for priority in (1, 0, -1)}
        self.arrived: dict[str, tuple[int, float]] = {}
        self.sequence = 0
        self.late = 0
        self.deepest_engine_queue = 0

    def at(self, time: float, what: str, whom: str = "") -> None:
        self.sequence += 1
        heapq.heappush(self.events, (time, self.sequence, what, whom))

    def gauge(self, now: float) -> Capacity:
        self.fleet.refresh(now)
        return Capacity(len(self.fleet.workers), self.policy.detector.saturation(self.fleet, now))

    def wake(self, now: float) -> None:
        for outcome in self.flow.wake_requests(now, lambda: self.gauge(now)):
            if isinstance(outcome, Dropped):
                self.end(outcome)
            else:
                self.dispatch(outcome, now)

    def offer(self, priority: int, now: float) -> None:
        self.sequence += 1
        name = f"r{self.sequence}"
        self.arrived[name] = (priority, now)
        self.tallies[priority].offered += 1
        item = Item(name, now, payload=name, priority=priority, flow=f"t{self.sequence % 7}", deadline=now + 25.0)
        outcome = self.flow.offer_request(item, now, self.gauge(now))
        if isinstance(outcome, Dropped):
            self.end(outcome)
        elif isinstance(outcome, Dispatch):
            self.dispatch(outcome, now)

    def end(self, outcome: Dropped[str]) -> None:
        self.tallies[outcome.item.priority].dropped += 1
        del self.arrived[outcome.item.payload]

    def dispatch(self, outcome: Dispatch[str], now: float) -> None:
        self.late += now >= outcome.item.deadline
        self.tallies[outcome.item.priority].dispatched += 1
        worker = min(self.fleet.workers, key=lambda worker: worker.open)
        change = ReservationChange(op="reserve", request_id=outcome.item.payload, worker=worker.name)
        self.ledger.put(Hold(change, worker, now), now)
        engine = next(engine for engine in self.engines if engine.name == worker.name)
        engine.queue.append(outcome.item.payload)
        self.start(engine, now)

    def start(self, engine: Engine, now: float) -> None:
        while engine.queue and engine.running < SLOTS:
            name = engine.queue.popleft()
            engine.running += 1
            priority, arrived = self.arrived.pop(name)
            self.tallies[priority].good += now - arrived <= SOON_S
            hold = self.ledger.find_reservation(("", name))
            assert hold is not None
            self.ledger.confirm(hold, now)
            self.at(now + SERVICE_S, "done", f"{engine.name} {name}")
        self.deepest_engine_queue = max(self.deepest_engine_queue, len(engine.queue))

    def report(self, now: float) -> None:
        for engine in self.engines:
            self.sequence += 1
            self.fleet.hear(
                WorkerLoad(
                    worker=engine.name, pool="p", boot_id="b", sequence=self.sequence, at_ms=0,
                    running=engine.running, waiting=len(engine.queue),
                ),
                now,
            )  # fmt: skip
        self.wake(now)

    def step(self) -> None:
        now, _, what, whom = heapq.heappop(self.events)
        if what == "arrival":
            self.offer(int(whom), now)
        elif what == "report":
            self.report(now)
        else:
            name, request_id = whom.split()
            engine = next(engine for engine in self.engines if engine.name == name)
            engine.running -= 1
            hold = self.ledger.find_reservation(("", request_id))
            assert hold is not None
            self.ledger.take_off(hold, now)
            self.start(engine, now)
            self.wake(now)


def _poisson(rng: np.random.Generator, rate: float, start: float, end: float, priority: int) -> list[tuple[float, int]]:
    times = np.cumsum(rng.exponential(1 / rate, int((end - start) * rate * 1.3))) + start
    return [(float(time), priority) for time in times if time < end]


def test_the_important_half_of_a_fourfold_overload_is_served_and_memory_stays_flat() -> None:
    rng = np.random.default_rng(5)
    overload = Overload()
    objects: list[int] = []
    for minute in range(10):
        start, end = minute * 60.0, (minute + 1) * 60.0
        arrivals = [
            *_poisson(rng, 0.5 * CAPACITY, start, end, 1),
            *_poisson(rng, 3.0 * CAPACITY, start, end, 0),
            *_poisson(rng, 0.5 * CAPACITY, start, end, -1),
        ]
        for time, priority in arrivals:
            overload.at(time, "arrival", str(priority))
        for tick in range(int(60 / REPORT_S)):
            overload.at(start + tick * REPORT_S, "report")
        while overload.events and overload.events[0][0] < end:
            overload.step()
        gc.collect()
        objects.append(len(gc.get_objects()))
    high, middle, low = (overload.tallies[priority] for priority in (1, 0, -1))
    assert high.good >= 0.95 * high.offered
    assert high.good + middle.dispatched >= 0.95 * CAPACITY * 600  # the pool isn't left idle meanwhile
    assert low.dropped >= 0.95 * low.offered
    assert overload.late == 0
    assert overload.deepest_engine_queue <= 10  # late binding: who waits, waits where its place can still change
    assert max(objects[3:]) <= 1.1 * objects[2]
