"""Requests on their way, as one service handles them: its stages, the next stage, and the answer to the edge."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from msgspec.structs import replace

from pointsman_contracts.journey import JOURNEY_LIMIT, Journey, PreprocessRequest, StageReport
from pointsman_contracts.response_stage import ResponseReview
from pointsman_contracts.scheduling import DryRunForecast
from pointsman_contracts.services import STAGES
from pointsman_contracts.subjects import ANY, direct_subject, stage_subject, subject
from pointsman_contracts.timing import TIMES
from pointsman_journey import elsewhere
from pointsman_journey.custom_answers import Servers
from pointsman_journey.custom_stages import CustomStages
from pointsman_journey.heartbeat import Heartbeat
from pointsman_journey.hop import Reply
from pointsman_journey.hop_budget import HOP_BUDGET_S, budget_of
from pointsman_journey.presence import Direct, NoInstance
from pointsman_journey.process_stages import BodyOf, Handler, ProcessStages, StageRunner
from pointsman_journey.review_stage import Reviewer, ReviewStage
from pointsman_journey.routing_slip import astray, skipped, unanswered
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusDisconnected, MessageTooLarge
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.telemetry import Tracing

S = TypeVar("S", PreprocessRequest, Journey)

_JOURNEY: Final = Journey.address.type_id

_log = Log("bus")


class Journeys:
    """The stages of one service, and the way of its requests to the next stage or back to the edge."""

    def __init__(self, bus: Bus, shared: ProcessStages | None = None, tracing: Tracing | None = None) -> None:
        """`shared`: the stages of this process; None for a service that shares its process with no other."""
        self.bus = bus
        self.process = bus.process
        self.clocks = bus.clocks
        self.custom = bus.process.service not in STAGES
        """Whether the service is no stage of the gateway's own: another service asks it, and sends its outcome on."""
        self.tracing = tracing or Tracing()
        self.local: Final = shared or ProcessStages(bus.hub)
        self.heartbeat = Heartbeat(bus, self.local.roster)
        self.hop_budget_s = HOP_BUDGET_S
        """How long the edges wait before they send a request again."""
        self.beats = True
        """False for a service that no other one waits for: it neither sends nor receives heartbeats."""
        self.servers: Servers | None = None
        """Pools and providers of the configuration; None before there is one."""
        self._never_static: frozenset[str] = frozenset()
        self._custom_stages = CustomStages(bus, self)
        self._stages: list[tuple[str, str, StageRunner]] = []
        self._reviews: list[tuple[str, ReviewStage]] = []
        self._sids: list[int] = []
        self._holds: list[str] = []
        """Edges of this service."""
        self._left = 0
        self._closed = False
        bus.hub.on_connected.append(self.heartbeat.publish_state)

    def allow(self, hop_budget_s: float, never_static: Iterable[str] = (), servers: Servers | None = None) -> None:
        """Wait as long as the edges do. A message expires after their hop budget. A silent instance without a replica
        is dropped after the hop budget or `TIMES.service_lost_s`, whichever is longer. `never_static`: profiles whose
        requests no edge decides alone. `servers`: the pools and providers that a custom stage may choose."""
        self.hop_budget_s = hop_budget_s
        self.servers = servers
        self._never_static = frozenset(never_static)
        self.heartbeat.table.lost_after_s = max(TIMES.service_lost_s, hop_budget_s)

    def open(self) -> None:
        """Begin to connect, and to beat once connected. Returns at once."""
        self.bus.open()
        if self.beats:
            self.heartbeat.start()

    def stage(self, message: type[S], handler: Handler[S], *, pending: int = 4096, concurrency: int = 256) -> None:
        """Handle requests at the stage named after this service. Takes effect at `serve`.

        `handler(message, hop)` is a function or a coroutine function; it returns the advanced journey, a reply
        for the edge, or None when it will call `hop.finish` later. `pending` bounds the messages that wait,
        `concurrency` the coroutines that run.
        """
        service = self.process.service
        route = tuple(ANY for _ in STAGES[service].route) if service in STAGES else ()
        runner = StageRunner(
            onward=self,
            bus=self.bus,
            tracing=self.tracing,
            stages=self.local.stages,
            message=message,
            handler=handler,
            pending=pending,
            concurrency=concurrency,
        )
        self._stages.append(
            (stage_subject(service, *route), direct_subject(service, self.process.instance, *route), runner)
        )

    def handle_reviews(self, reviewer: Reviewer, *, pending: int = 4096, concurrency: int = 256) -> None:
        """Review responses at the response stage named after this service. Takes effect at `serve`.
        `reviewer(review)` is a function or a coroutine function; bounds as of `stage`."""
        service = self.process.service
        tally = self.bus.new_tally(f"reviews.{service}")
        runner = ReviewStage(self.bus, tally, reviewer, pending=pending, concurrency=concurrency)
        self._reviews.append((subject(ResponseReview, service), runner))

    def serve(self) -> None:
        """Join the queue groups of all stages, and publish that this instance is ready."""
        service, link = self.process.service, self.bus.link
        for group, direct, runner in self._stages:
            take, arrive = runner.mailbox.take, runner.mailbox.receive_from_wire
            self._sids.append(link.attach(group, take, queue=service, arrive=arrive))
            self._sids.append(link.attach(direct, take, exclusive=True, arrive=arrive))
            self.local.stages[service] = runner
        self._stages.clear()
        for group, reviews in self._reviews:
            self._sids.append(link.attach(group, reviews.mailbox.take, queue=service))
            self.local.reviewers[service] = reviews
        self._reviews.clear()
        self.heartbeat.ready = True
        self.heartbeat.publish_state()

    async def drain(
        self,
        timeout: float = 10.0,  # noqa: ASYNC109 - a bound on the work in hand
        before_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Take no new work, finish the current work within `timeout` seconds, run `before_close`, disconnect."""
        self.heartbeat.ready = False
        self.heartbeat.publish_state()
        self._leave_process()
        for sid in self._sids:
            self.bus.link.stop_delivery(sid)
        try:
            async with asyncio.timeout(timeout):
                await self.bus.finish(timeout)
                await self._custom_stages.wait_for_answers()
        except TimeoutError:
            _log.warning("drain_incomplete", waited_s=timeout)
        except BusDisconnected as error:
            _log.warning("drain_without_connection", reason=error.reason)
        try:
            if before_close is not None:
                await before_close()
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop receiving and sending; disconnect, unless other services of this process use the connection."""
        if self._closed:
            return
        self._closed = True
        self.heartbeat.stop()
        self._leave_process()
        for edge in self._holds:
            self.local.bodies.pop(edge, None)
        self.bus.hub.on_connected.remove(self.heartbeat.publish_state)
        for sid in self._sids:
            self.bus.link.unsubscribe(sid)
        await self.bus.close()

    def forward(self, journey: Journey, reply_to: str, traceparent: str | None = None) -> None:
        """Send a journey to its next stage, or answer the edge when that stage has no live replica.

        Raises BusDisconnected, BusCongested, and MessageTooLarge for a journey over 64 KiB.
        """
        while journey.itinerary:
            stage = journey.itinerary[0]
            address = STAGES.get(stage.service)
            if address is None:
                self._custom_stages.ask_stage(journey, reply_to, traceparent)
                return
            route: tuple[str, ...] = ()
            if address.route:
                if elsewhere.leaves(journey):
                    self._leave(journey, reply_to, traceparent)
                    return
                if journey.target is None or journey.target.pool is None:
                    break
                route = (journey.target.pool,)
            resent = journey.attempt > 1
            if self.local.call(stage.service, journey, reply_to, traceparent, resent=resent):
                return
            # Where an edge can choose an engine without the pool's scheduler, or another model serves, no request waits
            # for a silent one.
            no_other_way = not route or (journey.profile in self._never_static and not journey.alternatives)
            patient = stage.on_error == "deny" and no_other_way
            table, now = self.heartbeat.table, asyncio.get_running_loop().time()
            where = table.find_route(stage.service, route[0] if route else None, now, resent=resent, patient=patient)
            if not isinstance(where, NoInstance):
                instance = where.instance if isinstance(where, Direct) else None
                to = self.bus.addresses.stage(stage.service, instance, route)
                self._send(journey, to, reply_to, traceparent)
                return
            note = f"no replica of {stage.service} answers"
            following = elsewhere.next_model(journey, 503, self._report(stage.service, note))
            if following is not None:
                journey = following
                continue
            if stage.on_error == "deny":
                self.reply(reply_to, unanswered(journey, self.process.service), traceparent)
                return
            journey = skipped(journey, self.process.instance, note)
        self.reply(reply_to, astray(journey, self.process.service), traceparent)

    def hold_bodies(self, edge: str, body_of: BodyOf) -> None:
        """Let the stages of this process read the bodies that an edge of it holds, until its service closes."""
        self.local.bodies[edge] = body_of
        self._holds.append(edge)

    def body_of(self, edge: str) -> BodyOf | None:
        """The bodies that an edge of this process holds; None for an edge of another one."""
        return self.local.bodies.get(edge)

    def reply(self, reply_to: str, message: Journey | Reply, traceparent: str | None = None) -> None:
        """Send an answer to an edge's inbox, or a journey to the process that asked a custom stage."""
        if self.bus.replies.deliver_reply(reply_to, message):
            return
        headers = message_headers.build(message.address.type_id, traceparent=traceparent)
        self.bus.link.publish(reply_to, message.encode(), headers=headers)

    def _send(self, journey: Journey, to: str, reply_to: str, traceparent: str | None) -> None:
        payload = journey.encode()
        if len(payload) > JOURNEY_LIMIT:
            raise MessageTooLarge(Journey.address.type_id, JOURNEY_LIMIT, len(payload))
        budget_s = budget_of(journey.attempt, self.hop_budget_s, self.heartbeat.table.slack_s)
        clock = self.bus.clocks.read_clock(journey.edge)
        deadline_ms = min(journey.deadline_ms, clock.at_ms + round(budget_s * 1000))
        headers = message_headers.build(_JOURNEY, deadline_ms=deadline_ms, traceparent=traceparent, clock=clock)
        self.bus.link.publish(to, payload, reply_to, headers)

    def _leave(self, journey: Journey, reply_to: str, traceparent: str | None) -> None:
        """Answer the edge of a request that a provider serves, and publish the decision."""
        answer, at_ms = elsewhere.decision(journey), time.time_ns() // 1_000_000
        if journey.request.dry_run:
            event = elsewhere.announcement(journey, answer, self.process.instance, 0, at_ms)
            event = replace(
                event,
                dry_run=DryRunForecast(queue_ms=0.0, fallbacks=tuple([each.model for each in journey.alternatives])),
            )
            self.reply(reply_to, replace(answer, explained=event), traceparent)
            return
        self.reply(reply_to, answer, traceparent)
        self._left += 1
        event = elsewhere.announcement(journey, answer, self.process.instance, self._left, at_ms)
        self.bus.publish(event, event.pool, traceparent=traceparent)

    def _leave_process(self) -> None:
        for served in (self.local.stages, self.local.reviewers):
            served.pop(self.process.service, None)

    def _report(self, service: str, note: str) -> StageReport:
        return StageReport(stage=service, instance=self.process.instance, outcome="rejected", note=note)
