"""The laws of the bus, on both transports."""

import asyncio
import logging
from collections.abc import Awaitable

import pytest
from msgspec.structs import replace

from pointsman_contracts import headers as names
from pointsman_contracts.journey import Journey, PreprocessRequest, Stage
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.presence import OpenRequestsQuery
from pointsman_contracts.reply import Decision, Parked, Rejection, Reply, read_reply
from pointsman_contracts.response import ResponseStarted
from pointsman_contracts.subjects import ANY, direct_subject, stage_subject, subject
from pointsman_contracts.timing import TIMES
from pointsman_journey.hop import Hop, Outcome
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus.errors import MessageTooLarge, NoListener, NoReply, PayloadTooLarge
from pointsman_runtime.bus.message_headers import deadline_ms
from pointsman_runtime.telling.lag import MOST_SLACK_S
from pointsman_runtime.telling.tallies import Tally
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses, apart


class Edge:
    """Sends journeys and keeps every answer."""

    def __init__(self, service: Journeys) -> None:
        self.service = service
        self.answers: list[Reply] = []
        service.bus.link.subscribe("_INBOX.test.edge", self._receive)

    def _receive(self, subject: str, reply: str, headers: bytes, payload: bytes) -> None:
        self.answers.append(read_reply(payload))

    def send(self, journey: Journey) -> None:
        self.service.forward(journey, "_INBOX.test.edge")

    async def answer(self) -> Reply:
        await eventually(lambda: self.answers)
        return self.answers[-1]


def tally(service: Journeys, name: str) -> Tally:
    return next(tally for tally in service.bus.hub.tallies if tally.name == name)


@pytest.mark.requirement("S1-29", "S1-34")
async def test_a_journey_visits_its_stages_and_the_last_one_answers_the_edge(buses: Buses) -> None:
    selector, scheduler, edge = buses.make("model-selector"), buses.make("scheduler"), Edge(buses.make("frontend"))

    def select(journey: Journey, hop: Hop[Journey]) -> Journey:
        return hop.advance(note="cheapest")

    async def schedule(journey: Journey, hop: Hop[Journey]) -> Decision:
        return builders.decision(journey.request_id, reasons=tuple(report.stage for report in journey.trail))

    selector.stage(Journey, select)
    scheduler.stage(Journey, schedule)
    await buses.meet()
    journey = builders.journey("model-selector", "scheduler")
    edge.send(journey)
    answer = await edge.answer()
    assert isinstance(answer, Decision)
    assert answer.request_id == journey.request_id
    assert answer.reasons == ("model-selector",)


@apart
async def test_two_replicas_share_the_journeys(buses: Buses) -> None:
    seen: list[str] = []
    edge = Edge(buses.make("frontend"))
    for instance in ("1", "2"):
        service = buses.make("scheduler", instance)

        def schedule(journey: Journey, hop: Hop[Journey], name: str = service.process.instance) -> Decision:
            seen.append(name)
            return builders.decision(journey.request_id)

        service.stage(Journey, schedule)
    await buses.meet()
    for _ in range(40):
        edge.send(builders.journey("scheduler"))
    await eventually(lambda: len(edge.answers) == 40)
    assert len(seen) == 40
    assert set(seen) == {"scheduler-1", "scheduler-2"}


async def test_a_request_for_a_stage_without_replicas_is_answered_at_once(buses: Buses) -> None:
    edge = Edge(buses.make("frontend"))
    await buses.meet()
    edge.send(builders.journey("scheduler"))
    answer = await edge.answer()
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.code, answer.retry_after_s) == (503, "stage_unavailable", 1.0)


async def test_a_message_lives_as_long_as_the_edges_wait(buses: Buses) -> None:
    scheduler, edge = buses.make("scheduler"), Edge(buses.make("frontend"))
    deadlines: list[int | None] = []
    scheduler.bus.link.subscribe(
        stage_subject("scheduler", ANY), lambda _s, _r, headers, _p: deadlines.append(deadline_ms(headers))
    )
    edge.service.allow(20.0)
    await buses.meet()
    before = builders.unix_ms(20)
    edge.send(builders.journey("scheduler"))
    await eventually(lambda: deadlines)
    [deadline] = deadlines
    # A machine that runs late gives it more.
    assert before <= (deadline or 0) <= builders.unix_ms(20 + MOST_SLACK_S)


def _no_slack(due: float, now: float) -> float:
    return 0.0


@pytest.mark.parametrize("profile", ["standard", "alone"])
async def test_a_silent_scheduler_is_asked_where_no_edge_decides_alone(
    buses: Buses, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine lets a scheduler be silent for longer.
    monkeypatch.setattr("pointsman_journey.roster.measured_slack", _no_slack)
    edge = Edge(buses.make("frontend"))
    edge.service.allow(20.0, ["standard"])
    await buses.meet()
    table, now = edge.service.heartbeat.table, asyncio.get_running_loop().time()
    table.receive_heartbeat("scheduler", "late", now - 2 * TIMES.service_silent_s)
    asked: list[str] = []
    edge.service.bus.link.subscribe(
        direct_subject("scheduler", "late", ANY), lambda subject, _r, _h, _p: asked.append(subject)
    )
    edge.send(builders.journey("scheduler", profile=profile))
    await eventually(lambda: asked or edge.answers)
    assert (len(asked), len(edge.answers)) == ((1, 0) if profile == "standard" else (0, 1))


async def test_a_stage_without_replicas_is_skipped_when_its_profile_allows_that(buses: Buses) -> None:
    scheduler, edge = buses.make("scheduler"), Edge(buses.make("frontend"))
    scheduler.stage(
        Journey,
        lambda journey, hop: builders.decision(journey.request_id, level=journey.level, reasons=journey.reasons),
    )
    await buses.meet()
    edge.send(builders.journey(Stage(service="guard", on_error="allow"), "scheduler"))
    answer = await edge.answer()
    assert isinstance(answer, Decision)
    assert (answer.level, answer.reasons) == ("degraded", ("no replica of guard answers",))


async def test_a_handler_that_raises_answers_500_with_the_request_id_and_quotes_nothing(
    buses: Buses, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, edge = buses.make("scheduler"), Edge(buses.make("frontend"))

    def fail(journey: Journey, hop: Hop[Journey]) -> Decision:
        raise ValueError("canary-4711")

    scheduler.stage(Journey, fail)
    await buses.meet()
    journey = builders.journey("scheduler")
    with caplog.at_level(logging.INFO, "pointsman"):
        edge.send(journey)
        answer = await edge.answer()
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.code) == (500, "internal_error")
    assert journey.request_id in answer.message
    assert "canary" not in answer.message
    lines = [record for record in caplog.records if record.getMessage() == "handler_failed"]
    assert len(lines) == 1
    assert "canary" not in str(lines[0].__dict__)


@pytest.mark.parametrize("later", [False, True])
@apart
async def test_an_outcome_that_json_has_no_word_for_is_a_failure_of_its_request_alone(
    buses: Buses, caplog: pytest.LogCaptureFixture, later: bool
) -> None:
    guard, edge = buses.make("guard"), Edge(buses.make("frontend"))
    buses.make("scheduler").stage(Journey, lambda journey, hop: builders.decision(journey.request_id))

    def odd(journey: Journey, hop: Hop[Journey]) -> Outcome | Awaitable[Outcome]:
        facts = replace(journey.request, attributes={"plugin": object()})
        outcome = hop.advance(request=facts) if journey.model == "odd" else hop.advance()

        async def wait() -> Outcome:
            return outcome

        return wait() if later else outcome

    guard.stage(Journey, odd)
    await buses.meet()
    with caplog.at_level(logging.INFO, "pointsman"):
        edge.send(builders.journey("guard", "scheduler", model="odd"))
        refused = await edge.answer()
    assert isinstance(refused, Rejection)
    assert (refused.stage, refused.status, refused.code) == ("guard", 500, "internal_error")
    assert [record.getMessage() for record in caplog.records] == ["handler_failed"]
    edge.send(builders.journey("guard", "scheduler"))
    await eventually(lambda: len(edge.answers) == 2)
    assert isinstance(edge.answers[1], Decision)
    counts = tally(guard, "stage.guard")
    assert (counts.handled, counts.failed) == (1, 1)


async def test_a_handler_that_raises_in_a_stage_that_may_fail_is_skipped(buses: Buses) -> None:
    guard, scheduler, edge = buses.make("guard"), buses.make("scheduler"), Edge(buses.make("frontend"))

    async def fail(journey: Journey, hop: Hop[Journey]) -> Journey:
        raise KeyError

    guard.stage(Journey, fail)
    scheduler.stage(Journey, lambda journey, hop: builders.decision(reasons=journey.reasons))
    await buses.meet()
    edge.send(builders.journey(Stage(service="guard", on_error="allow"), "scheduler"))
    answer = await edge.answer()
    assert isinstance(answer, Decision)
    assert answer.reasons == ("guard failed",)


async def test_a_stage_that_is_too_slow_is_skipped_when_its_profile_allows_that(buses: Buses) -> None:
    guard, scheduler, edge = buses.make("guard"), buses.make("scheduler"), Edge(buses.make("frontend"))

    async def hang(journey: Journey, hop: Hop[Journey]) -> Journey:
        await asyncio.Event().wait()
        return hop.advance()

    guard.stage(Journey, hang)
    scheduler.stage(Journey, lambda journey, hop: builders.decision(reasons=journey.reasons))
    await buses.meet()
    edge.send(builders.journey(Stage(service="guard", on_error="allow", timeout_ms=20), "scheduler"))
    answer = await edge.answer()
    assert isinstance(answer, Decision)
    assert answer.reasons == ("guard was too slow",)


async def test_a_stage_that_is_too_slow_and_must_answer_ends_the_request_with_504(buses: Buses) -> None:
    guard, edge = buses.make("guard"), Edge(buses.make("frontend"))

    async def hang(journey: Journey, hop: Hop[Journey]) -> Journey:
        await asyncio.Event().wait()
        return hop.advance()

    guard.stage(Journey, hang)
    await buses.meet()
    edge.send(builders.journey(Stage(service="guard", timeout_ms=20), "scheduler"))
    answer = await edge.answer()
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.code) == (504, "stage_timeout")


async def test_a_parked_journey_is_finished_later(buses: Buses) -> None:
    scheduler, edge = buses.make("scheduler"), Edge(buses.make("frontend"))
    held: list[Hop[Journey]] = []

    def park(journey: Journey, hop: Hop[Journey]) -> Parked:
        held.append(hop)
        return hop.park("saturated")

    scheduler.stage(Journey, park)
    await buses.meet()
    edge.send(builders.journey("scheduler"))
    first = await edge.answer()
    assert isinstance(first, Parked)
    assert first.instance == "scheduler-1"
    held[0].finish(builders.decision(held[0].message.request_id))
    await eventually(lambda: len(edge.answers) == 2)
    assert isinstance(edge.answers[1], Decision)


@pytest.mark.requirement("S1-48")
async def test_the_preprocessor_gets_the_body_byte_for_byte(buses: Buses) -> None:
    preprocessor, edge = buses.make("preprocessor"), Edge(buses.make("frontend"))
    bodies: list[bytes] = []

    def keep(request: PreprocessRequest, hop: Hop[PreprocessRequest]) -> Rejection:
        bodies.append(bytes(hop.body))
        return hop.reject(400, "enough")

    preprocessor.stage(PreprocessRequest, keep)
    await buses.meet()
    body = b'{"a":\n"\x00\xff"}\n\n' + b"x" * 300_000
    payload = builders.preprocess_request().encode() + b"\n" + body
    edge.service.bus.link.publish(stage_subject("preprocessor"), payload, "_INBOX.test.edge")
    assert isinstance(await edge.answer(), Rejection)
    assert bodies == [body]


@apart
async def test_a_message_after_its_deadline_is_dropped_and_counted(buses: Buses) -> None:
    scheduler, edge = buses.make("scheduler"), Edge(buses.make("frontend"))
    scheduler.stage(Journey, lambda journey, hop: builders.decision(journey.request_id))
    await buses.meet()
    edge.send(builders.journey("scheduler", deadline_ms=builders.unix_ms(-1)))
    counts = tally(scheduler, "stage.scheduler")
    await eventually(lambda: counts.dead == 1)
    edge.send(builders.journey("scheduler"))
    await edge.answer()
    assert (counts.dead, counts.handled, len(edge.answers)) == (1, 1, 1)


async def test_a_malformed_message_is_counted_and_dropped_with_one_line(
    buses: Buses, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, edge = buses.make("scheduler"), Edge(buses.make("frontend"))
    scheduler.stage(Journey, lambda journey, hop: builders.decision(journey.request_id))
    await buses.meet()
    with caplog.at_level(logging.INFO, "pointsman"):
        for payload in (b"\xff canary", b'{"request_id": "canary"}', b"", b"[" * 100_000):
            edge.service.bus.link.publish(stage_subject("scheduler", "any"), payload, "_INBOX.test.edge")
        edge.send(builders.journey("scheduler"))
        await edge.answer()
    counts = tally(scheduler, "stage.scheduler")
    assert (counts.malformed, counts.handled) == (4, 1)
    lines = [record for record in caplog.records if record.getMessage() == "malformed_message"]
    assert len(lines) == 4
    assert "canary" not in str([line.__dict__ for line in lines])


@apart
async def test_one_byte_too_many_is_a_typed_error_and_the_connection_lives(buses: Buses) -> None:
    scheduler, edge = buses.make("scheduler"), buses.make("frontend")
    got: list[int] = []
    scheduler.bus.link.subscribe("test.big", lambda _subject, _reply, _headers, payload: got.append(len(payload)))
    await buses.meet()
    limit = edge.bus.link.max_payload
    assert limit == 8 * 1024 * 1024
    with pytest.raises(PayloadTooLarge) as caught:
        edge.bus.link.publish("test.big", b"x" * (limit + 1))
    assert (caught.value.limit, caught.value.size) == (limit, limit + 1)
    edge.bus.link.publish("test.big", b"x" * limit)
    await eventually(lambda: got == [limit])


async def test_a_journey_over_64_kib_is_refused_where_it_is_published(buses: Buses) -> None:
    buses.make("scheduler")
    edge = Edge(buses.make("frontend"))
    await buses.meet()
    with pytest.raises(MessageTooLarge):
        edge.send(builders.journey("scheduler", reasons=("x" * 65_536,)))


async def test_a_stage_that_makes_a_journey_too_large_answers_500(buses: Buses) -> None:
    selector, edge = buses.make("model-selector"), Edge(buses.make("frontend"))
    buses.make("scheduler")
    selector.stage(Journey, lambda journey, hop: hop.advance(reasons=("x" * 65_536,)))
    await buses.meet()
    edge.send(builders.journey("model-selector", "scheduler"))
    answer = await edge.answer()
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.code) == (500, "journey_too_large")


@apart
async def test_an_event_carries_its_type_and_a_key_for_deduplication(buses: Buses) -> None:
    reader, edge = buses.make("recorder"), buses.make("frontend")
    got: list[bytes] = []
    reader.bus.link.subscribe(
        subject(ResponseStarted, ANY), lambda _subject, _reply, headers, _payload: got.append(headers)
    )
    await buses.meet()
    event = ResponseStarted(request_id="r", source="frontend-1", sequence=7, at_ms=1, pool="p", worker="w", ttft_ms=1.0)
    edge.bus.publish(event, "p")
    await eventually(lambda: got)
    assert f"{names.TYPE}: response.started.v1\r\n".encode() in got[0]
    assert f"{names.MESSAGE_ID}: pm.evt.response.started.v1.p:frontend-1:7\r\n".encode() in got[0]


async def test_a_listener_that_falls_behind_gets_the_latest_of_each_subject(buses: Buses) -> None:
    reader, writer = buses.make("scheduler"), buses.make("metrics-collector")
    got: list[tuple[str, int]] = []
    reader.bus.listen(PoolSnapshot, lambda snapshot: got.append((snapshot.pool, snapshot.sequence)), ANY, keep="latest")
    await buses.meet()
    for sequence in range(100):
        for pool in ("a", "b"):
            writer.bus.publish(PoolSnapshot(pool=pool, source="m", sequence=sequence, at_ms=0), pool)
    await eventually(lambda: {("a", 99), ("b", 99)} <= set(got))
    assert tally(reader, "pool.snapshot.v1").dropped == 0


async def test_a_signal_that_goes_by_the_server_comes_back_after_all_that_others_sent_before(buses: Buses) -> None:
    mine, other = buses.make("scheduler", "mine"), buses.make("scheduler", "other")
    got: list[tuple[str, int]] = []
    mine.bus.listen(PoolSnapshot, lambda snapshot: got.append((snapshot.source, snapshot.sequence)), ANY)
    await buses.meet()
    others = [PoolSnapshot(pool="a", source="other", sequence=number, at_ms=0) for number in range(300)]
    for each in others:
        other.bus.publish(each, "a")
    await other.bus.link.flush(5)
    own = PoolSnapshot(pool="a", source="mine", sequence=300, at_ms=0)
    before = len(got)
    mine.bus.publish_via_server(own, "a")
    assert len(got) == before, "it can't have come back yet"
    await eventually(lambda: (own.source, own.sequence) in got)
    assert got == [(each.source, each.sequence) for each in (*others, own)]


async def test_a_full_mailbox_drops_the_newest_and_counts(buses: Buses, caplog: pytest.LogCaptureFixture) -> None:
    # Of the same service, so that they never share a process: within one, no message waits.
    reader, writer = buses.make("scheduler", "1"), buses.make("scheduler", "2")
    got: list[int] = []
    reader.bus.listen(PoolSnapshot, lambda snapshot: got.append(snapshot.sequence), ANY, pending=10)
    await buses.meet()
    counts = tally(reader, "pool.snapshot.v1")
    with caplog.at_level(logging.INFO, "pointsman"):
        for sequence in range(500):
            writer.bus.publish(PoolSnapshot(pool="a", source="m", sequence=sequence, at_ms=0), "a")
        await eventually(lambda: counts.handled + counts.dropped == 500)
        await eventually(lambda: any(r.getMessage() == "mailbox_caught_up" for r in caplog.records))
    assert counts.dropped > 0
    assert got == sorted(got)
    full = [record for record in caplog.records if record.getMessage() == "mailbox_full"]
    assert 1 <= len(full) < counts.dropped


async def test_a_request_without_a_subscriber_fails_at_once(buses: Buses) -> None:
    service = buses.make("scheduler")
    await buses.meet()
    with pytest.raises(NoListener):
        await service.bus.ask(OpenRequestsQuery(request_ids=()), "edge-9", timeout=30)
    assert len(service.bus.replies) == 0


async def test_a_request_without_an_answer_ends_at_its_deadline(buses: Buses) -> None:
    service, silent = buses.make("scheduler"), buses.make("frontend")
    silent.bus.link.subscribe(subject(OpenRequestsQuery, "edge-9"), lambda _subject, _reply, _headers, _payload: None)
    await buses.meet()
    with pytest.raises(NoReply):
        await service.bus.ask(OpenRequestsQuery(request_ids=()), "edge-9", timeout=0.02)
    assert len(service.bus.replies) == 0


async def test_many_requests_at_once_each_get_their_own_answer(buses: Buses) -> None:
    service, edge = buses.make("scheduler"), buses.make("frontend")
    edge.bus.link.subscribe(
        subject(OpenRequestsQuery, "edge-9"),
        lambda _subject, reply, _headers, payload: edge.bus.link.publish(reply, payload),
    )
    await buses.meet()
    queries = [OpenRequestsQuery(request_ids=(str(number),)) for number in range(200)]
    answers = await asyncio.gather(*(service.bus.ask(query, "edge-9", timeout=30) for query in queries))
    assert answers == [query.encode() for query in queries]


async def test_a_drained_stage_finishes_what_it_has_and_loses_nothing(buses: Buses) -> None:
    edge = Edge(buses.make("frontend"))
    leaving, staying = buses.make("scheduler", "1"), buses.make("scheduler", "2")
    gate = asyncio.Event()

    async def slowly(journey: Journey, hop: Hop[Journey]) -> Decision:
        await gate.wait()
        return builders.decision(journey.request_id)

    leaving.stage(Journey, slowly)
    staying.stage(Journey, lambda journey, hop: builders.decision(journey.request_id))
    await buses.meet()
    for _ in range(20):
        edge.send(builders.journey("scheduler"))
    drained = asyncio.create_task(leaving.drain())
    for _ in range(20):
        edge.send(builders.journey("scheduler"))
    gate.set()
    await drained
    for _ in range(20):
        edge.send(builders.journey("scheduler"))
    await eventually(lambda: len(edge.answers) == 60)
    assert all(isinstance(answer, Decision) for answer in edge.answers)
