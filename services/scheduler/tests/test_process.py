"""The scheduler as its neighbours see it: a process on a real NATS server."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import nats
import numpy as np
import pytest
from nats.js.api import KeyValueConfig
from nats.js.errors import BucketNotFoundError

from pointsman_contracts.journey import Journey, RequestFacts, Target
from pointsman_contracts.message import read_fields
from pointsman_contracts.presence import OpenRequests, OpenRequestsQuery
from pointsman_contracts.reply import Decision, Rejection, Reply, read_reply
from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseStarted
from pointsman_contracts.scheduling import RequestScheduled, Reservations
from pointsman_contracts.subjects import ANY, kv_key, subject
from pointsman_contracts.worker import WorkerAnnouncement, WorkerLoad, WorkerRegistration
from pointsman_journey.journeys import Journeys
from pointsman_journey.presence import NoInstance
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.process import Process
from pointsman_testing import builders, eventually
from pointsman_testing.eventually import PATIENCE_S
from pointsman_testing.nats_server import LocalNatsServer, NatsServer
from pointsman_testing.processes import Processes, ServiceProcess

CONFIG = """
pools: {llama: {models: [llama-8b]}}
"""


def _registration(worker: str, boot_id: str) -> WorkerRegistration:
    return WorkerRegistration(
        worker=worker,
        pool="llama",
        url=f"http://{worker}.local:8000",
        boot_id=boot_id,
        agent=f"agent-{worker}",
        version="1",
        registered_ms=builders.unix_ms(),
        kv_blocks=1024,
        block_tokens=64,
    )


class Neighbours:
    """An edge, two agents and a listener."""

    def __init__(self, service: Journeys, url: str) -> None:
        self.service = service
        # A scheduler that a busy machine stops decides later.
        self.service.allow(PATIENCE_S, ["standard"])
        self.url = url
        self.answers: list[Reply] = []
        self.scheduled: list[RequestScheduled] = []
        self.reservations: list[Reservations] = []
        self.asked: list[Journey] = []
        self.open: set[str] = set()
        self.first: ServiceProcess
        self._loads: dict[str, WorkerLoad] = {}
        self._registrations: dict[str, bytes] = {}
        self._announced: list[WorkerAnnouncement] = []
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self.service.bus.listen(RequestScheduled, self.scheduled.append, ANY)
        self.service.bus.listen(Reservations, self.reservations.append, ANY)
        self.service.open()
        await self.service.bus.wait_connected()
        self.service.bus.link.subscribe("_INBOX.edge", lambda _s, _r, _h, data: self.answers.append(read_reply(data)))
        self.service.bus.link.subscribe(subject(OpenRequestsQuery, "edge-1"), self._tell_open)
        self._task = asyncio.get_running_loop().create_task(self._push_loads())

    def _tell_open(self, _subject: str, reply: str, _headers: bytes, payload: bytes) -> None:
        """An engine of these tests never shows a request, so schedulers ask whether it is still open."""
        asked = OpenRequestsQuery.decode(payload).request_ids
        still = OpenRequests(request_ids=tuple(request_id for request_id in asked if request_id in self.open))
        self.service.bus.link.publish(reply, still.encode())

    async def _push_loads(self) -> None:
        for turn in itertools.count():
            with suppress(BusError):
                for load in self._loads.values():
                    self.service.bus.publish(load, load.pool, load.worker)
                for announced in self._announced:
                    self.service.bus.publish(announced, "llama", announced.registration.worker)
                # As agents renew theirs, for as long as the machine makes the test take.
                for key, registration in self._registrations.items() if turn % 10 == 9 else ():
                    self.service.bus.link.publish(f"$KV.pm-workers.{key}", registration)
            await asyncio.sleep(0.1)

    async def register(self, worker: str, boot_id: str = "life-1") -> None:
        client = await nats.connect(self.url)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        try:
            js = client.jetstream()  # pyright: ignore[reportUnknownMemberType]
            try:
                store = await js.key_value("pm-workers")
            except BucketNotFoundError:
                config = KeyValueConfig(bucket="pm-workers", ttl=60)
                store = await js.create_key_value(config)  # pyright: ignore[reportUnknownMemberType]
            registration = _registration(worker, boot_id)
            key = kv_key(WorkerRegistration, "llama", worker)
            await store.put(key, registration.encode())
            self._registrations[key] = registration.encode()
        finally:
            await client.close()
        self._loads[worker] = WorkerLoad(worker=worker, pool="llama", boot_id=boot_id, sequence=1, at_ms=0)

    def announce(self, worker: str) -> None:
        """As the agent on the bus, without the bucket."""
        self._announced.append(WorkerAnnouncement(registration=_registration(worker, "life-1")))
        self._loads[worker] = WorkerLoad(worker=worker, pool="llama", boot_id="life-1", sequence=1, at_ms=0)

    def ask(self, pool: str = "llama", **facts: object) -> Journey:
        journey = builders.journey(
            "scheduler",
            model="llama-8b",
            target=Target(model="llama-8b", pool=pool),
            request=read_fields(RequestFacts, {"api": "chat.completions", "prompt_tokens": 100} | facts),
        )
        self.service.forward(journey, "_INBOX.edge")
        self.asked.append(journey)
        self.open.add(journey.request_id)
        return journey

    def complete(self, journey: Journey, pool: str = "llama") -> None:
        self.open.discard(journey.request_id)
        chosen = [event.endpoints[0] for event in self.scheduled if event.request_id == journey.request_id]
        self.service.bus.publish(
            ResponseCompleted(
                request_id=journey.request_id,
                source="edge-1",
                sequence=len(self.asked),
                at_ms=0,
                pool=pool,
                worker=chosen[0] if chosen else None,
                status=200,
                outcome="ok",
            ),
            pool,
        )

    def schedulers_alive(self) -> int:
        instances = self.service.heartbeat.table.list_instances("scheduler", asyncio.get_running_loop().time())
        return sum(instances.values())

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.service.close()


StartScheduler = Callable[[], Awaitable[ServiceProcess]]


@pytest.fixture
def start_scheduler(own_nats_server: NatsServer, processes: Processes, tmp_path: Path) -> StartScheduler:
    config = tmp_path / "pointsman.yaml"
    config.write_text(CONFIG)
    env = {"POINTSMAN_NATS_URL": own_nats_server.url, "POINTSMAN_CONFIG": str(config)}

    async def start() -> ServiceProcess:
        process = processes.fork("pointsman-scheduler", env=env)
        await process.wait_ready()
        return process

    return start


@pytest.fixture
async def neighbours(own_nats_server: NatsServer, start_scheduler: StartScheduler) -> AsyncIterator[Neighbours]:
    url = own_nats_server.url
    service = Journeys(Bus(Connection([url], name="edge"), Process("frontend", "edge-1")))
    neighbours = Neighbours(service, url)
    await neighbours.begin()
    await neighbours.register("w1")
    await neighbours.register("w2")
    neighbours.first = await start_scheduler()
    loop = asyncio.get_running_loop()
    table = service.heartbeat.table
    await eventually(lambda: not isinstance(table.find_route("scheduler", "llama", loop.time()), NoInstance))
    yield neighbours
    await neighbours.end()


@pytest.mark.requirement("S1-24")
async def test_an_edge_gets_a_decision_and_everybody_learns_why(neighbours: Neighbours) -> None:
    journey = neighbours.ask()
    await eventually(lambda: neighbours.answers)
    decision = neighbours.answers[0]
    assert isinstance(decision, Decision)
    assert decision.request_id == journey.request_id
    assert {endpoint.worker for endpoint in decision.endpoints} == {"w1", "w2"}
    assert decision.endpoints[0].url == f"http://{decision.endpoints[0].worker}.local:8000"
    assert decision.headers[0].name == "x-gateway-destination-endpoint"
    await eventually(lambda: neighbours.scheduled)
    event = neighbours.scheduled[0]
    assert event.endpoints == tuple(endpoint.worker for endpoint in decision.endpoints)
    assert event.sequence == 1
    assert set(event.runs[0].candidates.scores) == {"least-delay", "lora-affinity", "queue"}
    assert event.trail[-1].stage == "scheduler"


@pytest.mark.requirement("S1-13")
async def test_a_pool_that_does_not_exist_is_a_404_that_names_the_others(neighbours: Neighbours) -> None:
    neighbours.ask(pool="mistral")
    await eventually(lambda: neighbours.answers)
    rejection = neighbours.answers[0]
    assert isinstance(rejection, Rejection)
    assert (rejection.status, rejection.code) == (404, "model_not_found")
    assert "'mistral'" in rejection.message
    assert "llama" in rejection.message


async def test_a_refused_connection_takes_the_worker_out_until_it_is_tried_again(neighbours: Neighbours) -> None:
    journey = neighbours.ask()
    await eventually(lambda: neighbours.answers)
    decision = neighbours.answers[0]
    assert isinstance(decision, Decision)
    dead, alive = (endpoint.worker for endpoint in decision.endpoints)
    neighbours.service.bus.publish(
        AttemptFailed(
            request_id=journey.request_id,
            source="edge-1",
            sequence=1,
            at_ms=0,
            pool="llama",
            worker=dead,
            outcome="refused",
            next_worker=alive,
        ),
        "llama",
    )
    neighbours.service.bus.publish(
        ResponseStarted(
            request_id=journey.request_id, source="edge-1", sequence=1, at_ms=0, pool="llama", worker=alive, ttft_ms=5
        ),
        "llama",
    )

    async def left_out() -> RequestScheduled | None:
        asked = neighbours.ask()
        await eventually(lambda: any(event.request_id == asked.request_id for event in neighbours.scheduled))
        event = neighbours.scheduled[-1]
        return event if event.endpoints == (alive,) else None

    event = await eventually(left_out)
    assert event is not None
    assert event.runs[0].candidates.filtered[dead].startswith("healthy: ejected: it refused a connection")


@pytest.mark.parametrize("pool", ["llama", "-"], ids=["told by its pool", "by an edge that never learnt the pool"])
async def test_completed_requests_leave_the_books(neighbours: Neighbours, pool: str) -> None:
    journeys = [neighbours.ask() for _ in range(20)]
    await eventually(lambda: len(neighbours.answers) == 20)
    for journey in journeys:
        neighbours.complete(journey, pool)

    async def shown_idle() -> bool:
        asked = neighbours.ask()
        await eventually(lambda: any(event.request_id == asked.request_id for event in neighbours.scheduled))
        return sum(neighbours.scheduled[-1].runs[0].candidates.waiting) < 20

    await eventually(shown_idle)


async def test_a_second_scheduler_knows_what_the_first_one_did_and_goes_on_without_it(
    neighbours: Neighbours, start_scheduler: StartScheduler
) -> None:
    prompts = [np.random.default_rng(n).integers(1, 2**63, size=30, dtype=np.uint64).tobytes() for n in range(6)]

    async def homes() -> list[tuple[str, int]]:
        before = len(neighbours.scheduled)
        journeys = [neighbours.ask(blocks=blocks, prompt_tokens=1920) for blocks in prompts]
        await eventually(lambda: len(neighbours.scheduled) == before + len(prompts))
        events = {event.request_id: event for event in neighbours.scheduled}
        return [
            (events[journey.request_id].endpoints[0], events[journey.request_id].cached_tokens) for journey in journeys
        ]

    first = await homes()
    second = await start_scheduler()
    (joined,) = [line for line in second.log_lines() if line["event"] == "joined"]
    assert joined["requests"] == len(prompts)
    for journey in neighbours.asked:
        neighbours.complete(journey)
    neighbours.first.kill()
    await eventually(lambda: neighbours.schedulers_alive() == 1)
    assert await homes() == [(worker, 1920) for worker, _ in first]
    assert {event.source for event in neighbours.scheduled[-len(prompts) :]} != {neighbours.scheduled[0].source}


async def test_a_reservation_reaches_the_other_scheduler(
    neighbours: Neighbours, start_scheduler: StartScheduler
) -> None:
    await start_scheduler()

    async def told() -> bool:
        """After one more request: a scheduler tells peers once it has heard of one."""
        neighbours.ask()
        await eventually(lambda: len(neighbours.scheduled) == len(neighbours.asked))
        return bool(neighbours.reservations)

    await eventually(told)
    change = neighbours.reservations[0].changes[0]
    assert change.op == "reserve"
    (decided,) = [event for event in neighbours.scheduled if event.request_id == change.request_id]
    assert change.worker == decided.endpoints[0]


async def test_a_scheduler_that_starts_while_the_bucket_cannot_be_read_learns_the_workers_from_their_agents(
    processes: Processes, tmp_path: Path
) -> None:
    server = LocalNatsServer(jetstream=False)
    server.start()
    made = Neighbours(
        Journeys(Bus(Connection([server.url], name="neighbours"), Process("test", "neighbours"))), server.url
    )
    await made.begin()
    config = tmp_path / "pointsman.yaml"
    config.write_text(CONFIG)
    made.announce("w1")
    try:
        process = processes.start(
            "pointsman-scheduler", env={"POINTSMAN_NATS_URL": server.url, "POINTSMAN_CONFIG": str(config)}
        )
        await process.wait_ready()
        assert "workers_not_listed" in [line["event"] for line in process.log_lines()]

        async def decided() -> bool:
            made.ask()
            await eventually(lambda: len(made.answers) == len(made.asked))
            return isinstance(made.answers[-1], Decision)

        await eventually(decided)
        assert await process.terminate() == 0
    finally:
        await made.end()
        server.close()
