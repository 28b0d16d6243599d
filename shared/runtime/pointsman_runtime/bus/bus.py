"""The bus, as a service sees it: stages, signals, events, requests, replies."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal, TypeVar

from pydantic import ValidationError

from pointsman_contracts.journey import JOURNEY_LIMIT, Journey, PreprocessRequest, StageReport
from pointsman_contracts.message import Message
from pointsman_contracts.reply import Answer, Decision, Parked, Rejection
from pointsman_contracts.response_stage import ResponseReview
from pointsman_contracts.services import STAGES
from pointsman_contracts.subjects import ANY, direct_subject, stage_subject, subject
from pointsman_contracts.timing import TIMES
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.addresses import Addresses
from pointsman_runtime.bus.errors import BusDisconnected, MessageTooLarge, NobodyListens, NoReply
from pointsman_runtime.bus.fan_out import FanOut
from pointsman_runtime.bus.hub import Hub, LocalStage
from pointsman_runtime.bus.link import Link
from pointsman_runtime.bus.listener import Listener
from pointsman_runtime.bus.mailbox import Delivery, Fifo, LatestWins, Mailbox, Tally
from pointsman_runtime.bus.replies import FutureWaiter, ReplyTable
from pointsman_runtime.journey import elsewhere
from pointsman_runtime.journey.custom_answers import Servers
from pointsman_runtime.journey.custom_stages import CustomStages
from pointsman_runtime.journey.heartbeat import Heartbeat
from pointsman_runtime.journey.hop_budget import budget_of
from pointsman_runtime.journey.presence import Direct, Nobody
from pointsman_runtime.journey.review_stage import Reviewer, ReviewStage
from pointsman_runtime.journey.routing_slip import astray, route_of, skipped, unanswered
from pointsman_runtime.journey.stage import Handler, Stage
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.process import Process
from pointsman_runtime.telling.telemetry import Tracing

HOP_BUDGET_S: Final = 0.6
"""How long an edge waits before it sends a journey again, unless the configuration says otherwise."""

M = TypeVar("M", bound=Message)
S = TypeVar("S", PreprocessRequest, Journey)

_log = Log("bus")


class Bus:
    """What one service sends and hears on the journey's connection (`rpc`, `sig`, and the events of the journey)."""

    def __init__(self, around: Hub | Link, process: Process, tracing: Tracing | None = None) -> None:
        """`around`: what the services of this process share, or a link of this service's own."""
        self._own = not isinstance(around, Hub)
        self.hub = around if isinstance(around, Hub) else Hub(around, process.inbox)
        self.link: FanOut = self.hub.link
        self.process = process
        self.tracing = tracing or Tracing()
        self.heartbeat = Heartbeat(self, self.hub.roster)
        self.replies: ReplyTable = self.hub.replies
        self.hop_budget_s = HOP_BUDGET_S
        """How long the edges wait before they send a journey again."""
        self.connections = 0
        """How often the connection was made: what was published between two of them never arrives here."""
        self._never_static: frozenset[str] = frozenset()
        self.servers: Servers | None = None
        """Pools and providers of the configuration; None before there is one."""
        self._custom_stages = CustomStages(self)
        self._mailboxes: list[Mailbox] = []
        self._stages: list[tuple[str, str, Fifo]] = []
        self._reviews: list[tuple[str, Fifo]] = []
        self._sids: list[int] = []
        self._stage_sids: list[int] = []
        self._addresses = Addresses()
        self._connected = asyncio.Event()
        self._back_at = -math.inf
        self._was_lost = False
        self._closed = False
        self._left = 0
        self.hub.on_connected.append(self._on_connected)
        self.hub.on_disconnected.append(self._on_disconnected)

    @property
    def connected(self) -> bool:
        """Whether messages can be sent now."""
        return self.link.connected

    @property
    def missing(self) -> str | None:
        """Why messages can't be sent now; None when they can."""
        return None if self.connected else f"bus disconnected: {self.link.reason}"

    @property
    def back_for(self) -> float:
        """Seconds since a lost connection was made again; infinite when none was ever lost. Other processes come
        back with their own delays: shortly after a restart of the bus, a stage that nobody answers for may be one
        of those."""
        return asyncio.get_running_loop().time() - self._back_at

    def allow(self, hop_budget_s: float, never_static: Iterable[str] = (), servers: Servers | None = None) -> None:
        """Wait as long as the edges do: a message expires after their hop budget. A silent instance without a replica
        is used until then, or until `TIMES.service_lost_s` if that is later. `never_static`: profiles whose requests
        no edge decides alone. `servers`: what the targets of custom stages may name."""
        self.hop_budget_s = hop_budget_s
        self.servers = servers
        self._never_static = frozenset(never_static)
        self.heartbeat.table.lost_after_s = max(TIMES.service_lost_s, hop_budget_s)

    def open(self) -> None:
        """Begin to connect, and to beat once connected. Doesn't wait; a server that can't be reached is tried for
        ever."""
        self.hub.open()
        self.heartbeat.start()
        if self.connected:
            self._connected.set()

    async def wait_connected(self) -> None:
        """Wait for the connection, without a bound."""
        await self._connected.wait()

    def serve(self) -> None:
        """Join the queue groups of all stages, on both ways, and say that this instance is ready."""
        service = self.process.service
        for group, direct, mailbox in self._stages:
            self._stage_sids.append(self.link.attach(group, mailbox.take, queue=service))
            self._stage_sids.append(self.link.attach(direct, mailbox.take, exclusive=True))
            self.hub.stages[service] = LocalStage(self.process.instance, mailbox)
        self._stages.clear()
        for group, reviews in self._reviews:
            self._stage_sids.append(self.link.attach(group, reviews.take, queue=service))
            self.hub.reviewers[service] = LocalStage(self.process.instance, reviews)
        self._reviews.clear()
        self.heartbeat.ready = True
        self.heartbeat.beat()

    async def drain(
        self,
        timeout: float = 10.0,  # noqa: ASYNC109 - a bound on the work in hand
        before_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Take no new work, finish what is in hand, run `before_close`, disconnect."""
        self.heartbeat.ready = False
        self.heartbeat.beat()
        self._leave_hub()
        for sid in self._stage_sids:
            self.link.stop_delivery(sid)
        try:
            async with asyncio.timeout(timeout):
                await self.link.flush(timeout)
                for mailbox in self._mailboxes:
                    await mailbox.drain()
                await self._custom_stages.drain()
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
        """Take and send nothing more; disconnect, unless other services of this process use the connection."""
        if self._closed:
            return
        self._closed = True
        self.heartbeat.stop()
        self._connected.clear()
        self._leave_hub()
        self.hub.on_connected.remove(self._on_connected)
        self.hub.on_disconnected.remove(self._on_disconnected)
        for sid in (*self._stage_sids, *self._sids):
            self.link.unsubscribe(sid)
        if self._own:
            await self.hub.close()

    def new_tally(self, name: str) -> Tally:
        """Counters for a subscription, shown in metrics under `name`."""
        return self.hub.tallies.new(name)

    def stage(self, message: type[S], handler: Handler[S], *, pending: int = 4096, concurrency: int = 256) -> None:
        """Answer for the stage named after this service. Takes effect at `serve`.

        `handler(message, hop)` is a function or a coroutine function; it returns the advanced journey, a reply
        for the edge, or None when it will call `hop.finish` later. `pending` bounds the messages that wait,
        `concurrency` the coroutines that run.
        """
        service = self.process.service
        route = tuple(ANY for _ in STAGES[service].route) if service in STAGES else ()
        tally = self.new_tally(f"stage.{service}")
        mailbox = Fifo(
            tally,
            Stage(self, tally, message, handler).handle,
            self.link.soon,
            messages=pending,
            concurrency=concurrency,
        )
        self._mailboxes.append(mailbox)
        self._stages.append(
            (stage_subject(service, *route), direct_subject(service, self.process.instance, *route), mailbox)
        )

    def reviews(self, reviewer: Reviewer, *, pending: int = 4096, concurrency: int = 256) -> None:
        """Say about answers what the stage on the way back named after this service has to say. Takes effect at
        `serve`. `reviewer(review)` is a function or a coroutine function; bounds as of `stage`."""
        service = self.process.service
        tally = self.new_tally(f"reviews.{service}")
        stage = ReviewStage(self, tally, reviewer)
        mailbox = Fifo(tally, stage.handle, self.link.soon, messages=pending, concurrency=concurrency)
        self._mailboxes.append(mailbox)
        self._reviews.append((subject(ResponseReview, service), mailbox))

    def listen(
        self,
        message: type[M],
        handler: Callable[[M], None],
        *route: str,
        keep: Literal["all", "latest"] = "all",
        pending: int = 16384,
    ) -> None:
        """Call `handler` for every message of this type on this route (`ANY` and `REST` are allowed).

        `keep="latest"` hands over only the newest message of each subject when the handler falls behind;
        `keep="all"` drops the newest over `pending`. Drops are counted by subscription.
        """
        tally = self.new_tally(message.address.type_id)

        handle = Listener(self, tally, message, handler).handle
        mailbox: Mailbox
        if keep == "latest":
            mailbox = LatestWins(tally, handle, self.link.soon)
        else:
            mailbox = Fifo(tally, handle, self.link.soon, messages=pending)
        self._attach(mailbox, subject(message, *route), route)

    def answer(self, message: type[M], handler: Callable[[M], bytes], *route: str) -> None:
        """Call `handler` for every question of this type on this route, and send the bytes that it returns to whoever
        asked. For questions of the journey, which wait for the answer; others are `Events.handle`'s."""
        tally = self.new_tally(message.address.type_id)
        mailbox = Fifo(tally, Listener(self, tally, message, handler).handle, self.link.soon)
        self._attach(mailbox, subject(message, *route), route)

    def malformed(self, tally: Tally, subject: str, payload: bytes, error: ValidationError) -> None:
        """As `Tallies.malformed`."""
        self.hub.tallies.malformed(tally, subject, payload, error)

    def publish(self, message: Message, *route: str, traceparent: str | None = None, again: bool = False) -> None:
        """Send a signal, an event or a control message.

        An event gets a `Nats-Msg-Id` made of its subject, source and sequence, by which the stream drops
        duplicates. `again`: the services of this process have it already. Raises BusDisconnected, BusCongested,
        PayloadTooLarge, and MessageTooLarge for an event over 64 KiB; the services of this process have it then.
        """
        address = message.address
        to = self._addresses.message(type(message), route)
        if not again and self.link.tell(to, message):
            return
        if address.kind == "evt":
            facts = message.__dict__
            self._send_event(
                to, type(message), message.encode(), facts.get("source"), facts.get("sequence"), traceparent
            )
            return
        headers = message_headers.build(address.type_id, traceparent=traceparent)
        self.link.send(to, message.encode(), headers)

    def tell(self, message: Message, *route: str) -> None:
        """Hand a message to the services of this process alone."""
        self.link.tell(self._addresses.message(type(message), route), message)

    def publish_written(
        self,
        message: type[Message],
        payload: bytes,
        source: str | None,
        sequence: int | None,
        *route: str,
        traceparent: str | None = None,
    ) -> None:
        """As `publish`, of an event that is encoded: `payload` is a `message` with this source and sequence. No service
        of this process may listen to it."""
        to = self._addresses.message(message, route)
        self._send_event(to, message, payload, source, sequence, traceparent)

    def _send_event(
        self,
        to: str,
        message: type[Message],
        payload: bytes,
        source: str | None,
        sequence: int | None,
        traceparent: str | None,
    ) -> None:
        type_id = message.address.type_id
        if len(payload) > JOURNEY_LIMIT:
            raise MessageTooLarge(type_id, JOURNEY_LIMIT, len(payload))
        headers = message_headers.build(type_id, traceparent=traceparent, message_id=f"{to}:{source}:{sequence}")
        self.link.send(to, payload, headers, relaxed=True)

    def forward(self, journey: Journey, reply_to: str, traceparent: str | None = None) -> None:
        """Send a journey to its next stage, or answer the edge when that has nobody.

        Raises BusDisconnected, BusCongested, and MessageTooLarge for a journey over 64 KiB.
        """
        now = asyncio.get_running_loop().time()
        table = self.heartbeat.table
        while journey.itinerary:
            stage = journey.itinerary[0]
            if elsewhere.leaves(journey):
                self._leave(journey, reply_to, traceparent)
                return
            if stage.service not in STAGES:
                self._custom_stages.ask(journey, reply_to, traceparent)
                return
            route = route_of(journey, stage.service)
            if route is None:
                break
            if self.call(stage.service, journey, reply_to, traceparent, resent=journey.attempt > 1):
                return
            # Where an edge can choose an engine without the pool's scheduler, or another model serves, nobody waits for
            # a silent one.
            no_other_way = not route or (journey.profile in self._never_static and not journey.alternatives)
            patient = stage.on_error == "deny" and no_other_way
            to_pool = route[0] if route else None
            where = table.where(stage.service, to_pool, now, resent=journey.attempt > 1, patient=patient)
            if not isinstance(where, Nobody):
                payload = journey.encode()
                if len(payload) > JOURNEY_LIMIT:
                    raise MessageTooLarge(Journey.address.type_id, JOURNEY_LIMIT, len(payload))
                instance = where.instance if isinstance(where, Direct) else None
                budget_ms = round(budget_of(journey.attempt, self.hop_budget_s, table.slack_s) * 1000)
                deadline = min(journey.deadline_ms, time.time_ns() // 1_000_000 + budget_ms)
                headers = message_headers.build(Journey.address.type_id, deadline_ms=deadline, traceparent=traceparent)
                self.link.publish(self._addresses.stage(stage.service, instance, route), payload, reply_to, headers)
                return
            following = elsewhere.next_model(journey, 503, self._nobody_reports(stage.service))
            if following is not None:
                journey = following
                continue
            if stage.on_error == "deny":
                self.reply(reply_to, unanswered(journey, self.process.service), traceparent)
                return
            journey = skipped(journey, self.process.instance, f"nobody answers for {stage.service}")
        self.reply(reply_to, astray(journey, self.process.service), traceparent)

    def call(
        self,
        service: str,
        message: PreprocessRequest | Journey,
        reply_to: str,
        traceparent: str | None,
        body: bytes = b"",
        *,
        resent: bool = False,
    ) -> bool:
        """Hand a message to a stage of this process. False when no such stage takes work here, or when the message is
        `resent` and another process has one: the stage here may have swallowed it."""
        stage = self.hub.stages.get(service)
        if stage is None or (resent and self._has_others(service, stage.instance)):
            return False
        return stage.mailbox.hand(Delivery("", reply_to, b"", b"", message, memoryview(body), traceparent))

    def call_reviewer(self, service: str, review: ResponseReview, reply_to: str, traceparent: str | None) -> bool:
        """Hand a review to a stage on the way back of this process. False when none takes work here."""
        stage = self.hub.reviewers.get(service)
        return stage is not None and stage.mailbox.hand(
            Delivery("", reply_to, b"", b"", review, traceparent=traceparent)
        )

    def _leave_hub(self) -> None:
        for served in (self.hub.stages, self.hub.reviewers):
            served.pop(self.process.service, None)

    def _has_others(self, service: str, instance: str) -> bool:
        table, now = self.heartbeat.table, asyncio.get_running_loop().time()
        return any(name != instance and table.addressable(service, name, now) for name in table.instances(service, now))

    def _leave(self, journey: Journey, reply_to: str, traceparent: str | None) -> None:
        """Answer the edge of a request that a provider serves, and tell those who audit."""
        answer = elsewhere.decision(journey)
        self.reply(reply_to, answer, traceparent)
        self._left += 1
        at_ms = time.time_ns() // 1_000_000
        event = elsewhere.announcement(journey, answer, self.process.instance, self._left, at_ms)
        self.publish(event, event.pool, traceparent=traceparent)

    def _nobody_reports(self, service: str) -> StageReport:
        note = f"nobody answers for {service}"
        return StageReport(stage=service, instance=self.process.instance, outcome="rejected", note=note)

    def reply(
        self, reply_to: str, message: Decision | Rejection | Parked | Answer | Journey, traceparent: str | None = None
    ) -> None:
        """Send an answer to an edge's inbox, or a journey to whoever asked a custom stage."""
        if self.replies.tell(reply_to, message):
            return
        headers = message_headers.build(message.address.type_id, traceparent=traceparent)
        self.link.publish(reply_to, message.encode(), headers=headers)

    async def ask(self, message: Message, *route: str, timeout: float = 1.0) -> bytes:  # noqa: ASYNC109 - no task, no wait_for
        """Send a request and wait for its one answer, which is returned undecoded.

        Raises NoReply after `timeout` seconds, NobodyListens at once when no process subscribes, and what
        `publish` raises.
        """
        to = self._addresses.message(type(message), route)
        waiter = FutureWaiter(self.replies)
        reply_to = self.replies.open(waiter, asyncio.get_running_loop().time() + timeout)
        try:
            self.link.publish(to, message.encode(), reply_to, message_headers.build(message.address.type_id))
            headers, payload = await waiter.future
        except TimeoutError:
            raise NoReply(to, timeout) from None
        finally:
            self.replies.close(waiter)
        if not payload and message_headers.status(headers) == "503":
            raise NobodyListens(to)
        return payload

    def _on_connected(self) -> None:
        self._connected.set()
        self.connections += 1
        if self._was_lost:
            self._back_at = asyncio.get_running_loop().time()
        self.heartbeat.beat()

    def _on_disconnected(self) -> None:
        self._was_lost = True
        self._connected.clear()

    def _attach(self, mailbox: Mailbox, to: str, route: tuple[str, ...]) -> None:
        self._mailboxes.append(mailbox)
        # No other process subscribes to a route that names this instance.
        self._sids.append(self.link.attach(to, mailbox.take, exclusive=self.process.instance in route))
