"""One edge, composed: everything that its requests share, whichever protocol they come by."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import CollectorRegistry

from pointsman_contracts.content import ContentEdits, ContentQuery, PromptEnd, PromptTokens
from pointsman_contracts.journey import Target
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.presence import OpenRequests, OpenRequestsQuery
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_contracts.subjects import ANY
from pointsman_contracts.timing import ROLLOUT_LOOK_S
from pointsman_contracts.verdicts import MovedRequests, MoveRequests
from pointsman_core.pool_table import PoolTable
from pointsman_edge.credentials.provider_credentials import Credentials
from pointsman_edge.deciding.decider import BusStages, Decider, EngineLoad, Stages, UnusableStages
from pointsman_edge.deciding.model_catalogue import ModelCatalogue
from pointsman_edge.deciding.policy import EdgePolicy, compile_policy
from pointsman_edge.reviewing.response_stages import ResponseStages
from pointsman_edge.reviewing.reviewers import Reviewers, StageReviewers
from pointsman_edge.sending.draining import DrainingEngines, OverdueDrain
from pointsman_edge.sending.moving_on import STALLED
from pointsman_edge.sending.provider_book import ProviderBook
from pointsman_edge.taking_in.bodies import HeldBodies
from pointsman_edge.taking_in.request_headers import HeaderRules, RequestIds
from pointsman_edge.taking_in.trust import TrustedProxies
from pointsman_edge.telling.answer_followers import ProcessorFailures
from pointsman_edge.telling.event_publisher import EventBus, EventPublisher
from pointsman_edge.telling.kept_responses import KeptResponses
from pointsman_edge.telling.metrics import EdgeMetrics
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_edge.telling.stored_responses import StoredResponses
from pointsman_hosting.configuration import Configuration
from pointsman_hosting.rollout import Rollout
from pointsman_hosting.service import Service
from pointsman_journey.journey_client import JourneyClient
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.telemetry import Tracing

TICK_S: Final = 0.1
"""Seconds: the resolution of time limits, and the delay of waiting events after the bus came back."""

_log = Log("edge")


@dataclass(frozen=True)
class Surroundings:
    """The process that an edge runs in. Tests replace it."""

    instance: str
    policy: Callable[[], EdgePolicy]
    """The current revision's."""
    stages: Stages
    reviewers: Reviewers
    bus: EventBus
    tracing: Tracing
    registry: CollectorRegistry
    missing: Callable[[EdgePolicy], UnusableStages | None] = lambda _: None
    """Why the stages can't be asked at the moment; None if they can."""
    responses: KeptResponses | None = None
    """The responses that all edges know; None: this edge knows its own alone."""


@dataclass(frozen=True)
class EdgeOptions:
    """The settings that both edges have."""

    headers: HeaderRules
    trusted: TrustedProxies
    own_worker: str | None = None
    """The worker beside this edge, which its requests prefer."""


Leave = Callable[[str, Collection[str], str], Iterable[str]]
"""Worker, ids of requests, and reason; the ids of those that left it."""


class OpenRequest(Protocol):
    """A request that hasn't ended."""

    due: float
    """Monotonic time at which it has taken too long."""
    record: RequestRecord

    def overdue(self) -> None:
        """End the request, which has taken too long."""
        ...

    def keep_alive(self, now: float) -> None:
        """Keep the client's connection open, if its stream has been silent for too long; `now` is monotonic."""
        ...


class Edge:
    """Connects to nothing by itself; `tick` is called every `TICK_S`."""

    def __init__(self, around: Surroundings, options: EdgeOptions) -> None:
        self.instance: Final = around.instance
        self.policy: Final = around.policy
        self.missing: Final = around.missing
        self.tracing: Final = around.tracing
        self.headers: Final = options.headers
        self.trusted: Final = options.trusted
        self.ids: Final = RequestIds()
        self.bodies: Final = HeldBodies()
        self.load: Final = EngineLoad()
        self.open: Final[dict[str, OpenRequest]] = {}
        """Requests that haven't ended, by id."""
        self.metrics: Final = EdgeMetrics(around.registry, lambda: len(self.open))
        self.events: Final = EventPublisher(around.bus, around.instance, around.registry)
        self.processor_failures: Final = ProcessorFailures()
        text = "Errors of response processors; their answers aren't changed"
        self.metrics.read("response_processor_failures", text, self.processor_failures.by_processor.total)
        self._table: Final = PoolTable[PoolSnapshot, PoolSnapshot](lambda snapshot, _: snapshot)
        self.pools: Final = self._table.views
        """The newest snapshot of each pool."""
        self.draining: Final = DrainingEngines()
        self._engines: Final[dict[str, tuple[PoolSnapshot, dict[str, str]]]] = {}
        """The kind of each worker's engine, by pool, and the snapshot that it is from."""
        self.decider: Final = Decider(around.stages, self.pools, self.load, options.own_worker)
        self.models: Final = ModelCatalogue(
            edge=around.instance,
            policy=around.policy,
            pools=self.pools,
            headers=options.headers,
            trusted=options.trusted,
            decider=self.decider,
        )
        self.providers: Final = ProviderBook(Credentials())
        self.response_stages: Final = ResponseStages(around.instance, around.reviewers, self.bodies, self.events)
        self.responses: Final = StoredResponses(around.responses)
        responses = self.responses
        text = "Requests that named a response which no edge knows"
        self.metrics.read("responses_unknown", text, lambda: responses.unknown)
        text = "Requests that named a response whose engine is gone or has restarted"
        self.metrics.read("responses_gone", text, lambda: responses.gone)
        self.leave: Leave = _stay
        """Ends the attempts of requests at a worker. An edge that doesn't send its requests itself can't."""
        self.give_way: Leave = _stay
        """Ends the attempts of background requests at a worker, as `leave`."""
        self.move_off: Callable[[OverdueDrain], None] = _stay_there
        """Moves requests off an engine that has drained. An edge that doesn't send its requests itself can't."""
        self.all_ended: asyncio.Event | None = None
        """Set once no request is open, after `drained` has begun."""
        if options.own_worker is not None:
            decider = self.decider
            text = "Requests that the worker beside this edge couldn't take"
            self.metrics.read("sent_elsewhere", text, lambda: decider.sent_elsewhere)

    def keep_snapshot(self, snapshot: PoolSnapshot) -> None:
        """Keep a pool's state, unless a newer one is here."""
        now = time.monotonic()
        if self._table.take_snapshot(snapshot, now):
            self.draining.take_snapshot(snapshot, now)

    def open_requests(self, query: OpenRequestsQuery) -> OpenRequests:
        """Answer which of the requests in the query haven't ended."""
        return OpenRequests(request_ids=tuple(each for each in query.request_ids if each in self.open))

    def move_requests(self, query: MoveRequests) -> MovedRequests:
        """Send requests elsewhere that wait at a worker which makes no progress, or that give way to others."""
        if query.gives_way:
            left = self.give_way(query.worker, frozenset(query.request_ids), query.reason)
            return MovedRequests(request_ids=tuple(left))
        now = time.monotonic()
        for worker in query.avoid:
            self.load.record_failure(worker, now)
        moved = {each for each in query.request_ids if self._moved_off(query.worker, each)}
        moved.update(self.leave(query.worker, frozenset(query.request_ids), query.reason))
        return MovedRequests(request_ids=tuple(each for each in query.request_ids if each in moved))

    def _moved_off(self, worker: str, request_id: str) -> bool:
        request = self.open.get(request_id)
        return request is not None and any(
            attempt.worker == worker and attempt.outcome == STALLED for attempt in request.record.attempts
        )

    def boot_of(self, pool: str, worker: str) -> str:
        """The `boot_id` of a worker; empty if it isn't known."""
        snapshot = self.pools.get(pool)
        views = snapshot.workers if snapshot else ()
        return next((view.boot_id for view in views if view.worker == worker), "")

    def engine_of(self, pool: str, worker: str) -> str:
        """The kind of a worker's engine; empty if it isn't known."""
        snapshot = self.pools.get(pool)
        if snapshot is None:
            return ""
        known = self._engines.get(pool)
        if known is None or known[0] is not snapshot:
            known = self._engines[pool] = snapshot, {view.worker: view.engine for view in snapshot.workers}
        return known[1].get(worker, "")

    def is_avoided(self, worker: str) -> bool:
        """Whether a worker failed lately."""
        return self.load.is_avoided(worker, time.monotonic())

    def unwell_workers(self, pool: str) -> Set[str]:
        """The pool's workers that schedulers have a verdict against."""
        snapshot = self.pools.get(pool)
        if snapshot is None:
            return frozenset()
        return {view.worker for view in snapshot.workers if view.verdict or view.draining is not None}

    def find_engine(self, pool: str, target: Target, without: Collection[str]) -> ChosenEndpoint | None:
        """A well engine of the pool that serves the target, by the edge's own counts, for a request that leaves another
        one; None where none is known. `without`: those that aren't asked."""
        snapshot = self.pools.get(pool)
        able = [
            view
            for view in (() if snapshot is None else snapshot.workers)
            if view.worker not in without
            and view.state == "serving"
            and not (view.verdict or view.draining is not None or self.is_avoided(view.worker))
            and (not view.models or (target.lora or target.model) in (*view.models, *view.loras))
        ]
        best = min(able, key=lambda view: (self.load.open_on(view.worker), view.running + view.waiting), default=None)
        return None if best is None else ChosenEndpoint(worker=best.worker, url=best.url)

    def tick(self) -> None:
        """End the requests that take too long, keep silent streams open, and move requests off drained engines."""
        now = time.monotonic()
        for overdue in self.draining.find_overdue(now):
            self.move_off(overdue)
        for request in list(self.open.values()):
            if request.due < now:
                request.overdue()
            request.keep_alive(now)

    async def wait_until_drained(self, within_s: float) -> None:
        """Wait until no request is open, at most `within_s` seconds, and until its stages have answered."""
        self.all_ended = asyncio.Event()
        if self.open:
            try:
                async with asyncio.timeout(within_s):
                    await self.all_ended.wait()
            except TimeoutError:
                _log.warning("requests_left_open", count=len(self.open))
        await self.response_stages.wait_for_stages()


def _stay(worker: str, request_ids: Collection[str], reason: str) -> Iterable[str]:
    del worker, request_ids, reason
    return ()


def _stay_there(overdue: OverdueDrain) -> None:
    del overdue


@dataclass(frozen=True)
class Wiring:
    """An edge's connections to its process, made before the edge itself."""

    around: Surroundings
    configuration: Configuration[EdgePolicy]
    rollout: Rollout[EdgePolicy]
    client: JourneyClient


def surroundings(service: Service[ServiceSettings]) -> Wiring:
    """The process of a service as its edge sees it."""
    journeys = service.journeys
    configuration = service.configuration(compile_policy)
    rollout = Rollout(configuration, service.heartbeat.table)
    client = JourneyClient(journeys)
    stages = BusStages(journeys, client)
    around = Surroundings(
        instance=service.process.instance,
        policy=rollout.compile_current,
        stages=stages,
        reviewers=StageReviewers(journeys),
        bus=service.bus,
        tracing=service.tracing,
        registry=service.registry,
        missing=stages.find_unusable_stages,
        responses=KeptResponses(service.responses_bucket()),
    )
    return Wiring(around, configuration, rollout, client)


def connect(
    service: Service[ServiceSettings], wiring: Wiring, edge: Edge, snapshot: Callable[[PoolSnapshot], None]
) -> None:
    """Subscribe an edge to the bus. `snapshot` takes the state of a pool."""
    client, bus, rollout = wiring.client, service.bus, wiring.rollout
    edge.metrics.read("held", "Requests held while a stage had no live replica", lambda: client.held.total)
    edge.metrics.read("resent", "Times that a request was sent into the stages again", lambda: client.resent)
    kept = wiring.around.responses
    if kept is not None:
        edge.metrics.read("responses_unwritten", "Responses that other edges don't know", lambda: kept.unwritten)
        edge.metrics.read("responses_unread", "Failed looks for a response of another edge", lambda: kept.unread)
    edge.metrics.read("abandoned", "Requests whose holder fell silent, sent again", lambda: client.abandoned)
    bus.listen(PoolSnapshot, snapshot, ANY, keep="latest")
    service.events.handle(OpenRequestsQuery, edge.open_requests, edge.instance)
    service.events.handle(MoveRequests, edge.move_requests, edge.instance)
    service.journeys.hold_bodies(edge.instance, edge.bodies.find_body)
    bus.answer(ContentQuery, edge.bodies.answer_query, edge.instance)
    bus.answer(ContentEdits, edge.bodies.edit_body, edge.instance)
    bus.listen(PromptTokens, edge.bodies.take_tokens, edge.instance)
    bus.listen(PromptEnd, edge.bodies.take_end, edge.instance)
    service.every(ROLLOUT_LOOK_S, lambda: rollout.advance_revision(asyncio.get_running_loop().time()))
