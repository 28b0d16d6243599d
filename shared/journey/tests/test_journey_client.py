"""An edge and its requests: answered, parked, re-sent, or told why not. On both transports."""

import asyncio
import os

import pytest
from msgspec.structs import replace

from pointsman_contracts.content import Content, ContentQuery
from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.reply import Decision, Parked, Rejection
from pointsman_contracts.subjects import stage_subject
from pointsman_journey import roster
from pointsman_journey.content_client import ContentClient
from pointsman_journey.hop import Hop
from pointsman_journey.journey_client import TRIES, JourneyClient
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus.errors import BusCongested, BusDisconnected, NoListener, NoReply
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses, apart

Request = PreprocessRequest


def decide(request: Request, hop: Hop[Request]) -> Decision:
    return builders.decision(request.request_id, attempt=request.attempt)


async def test_an_edge_gets_the_decision(buses: Buses) -> None:
    stage, edge = buses.make("preprocessor"), buses.make("frontend")
    stage.stage(Request, decide)
    client = JourneyClient(edge)
    await buses.meet()
    request = builders.preprocess_request()
    answer = await client.send_request(request, b"{}")
    assert isinstance(answer, Decision)
    assert (answer.request_id, answer.attempt) == (request.request_id, 1)
    assert len(edge.bus.replies) == 0


async def test_an_edge_gets_the_rejection(buses: Buses) -> None:
    stage, edge = buses.make("preprocessor"), buses.make("frontend")
    stage.stage(Request, lambda request, hop: hop.reject(404, "no such model", code="model_not_found"))
    client = JourneyClient(edge)
    await buses.meet()
    answer = await client.send_request(builders.preprocess_request(), b"{}")
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.stage) == (404, "preprocessor")


async def test_without_a_preprocessor_the_edge_knows_at_once(buses: Buses) -> None:
    edge = buses.make("frontend")
    client = JourneyClient(edge)
    await buses.meet()
    with pytest.raises(NoListener):
        await client.send_request(builders.preprocess_request(), b"{}")


async def test_an_answer_that_comes_after_several_tries_still_counts(buses: Buses) -> None:
    stage, edge = buses.make("preprocessor"), buses.make("frontend")
    hops: list[Hop[Request]] = []
    stage.stage(Request, lambda request, hop: hops.append(hop))
    client = JourneyClient(edge)
    await buses.meet()
    waiting = asyncio.create_task(client.send_request(builders.preprocess_request(), b"{}", hop_budget_s=0.02))
    await eventually(lambda: len(hops) >= 3)
    hops[0].finish(decide(hops[0].message, hops[0]))
    answer = await waiting
    assert isinstance(answer, Decision)
    assert answer.attempt == 1


async def test_a_request_waits_for_the_only_replica_to_come_back(buses: Buses) -> None:
    edge, first = buses.make("frontend"), buses.make("preprocessor", "1")
    first.stage(Request, decide)
    client = JourneyClient(edge)
    await buses.meet()
    await first.close()
    waiting = asyncio.create_task(client.send_request(builders.preprocess_request(), b"{}"))
    await eventually(lambda: len(client.held) == 1)
    await comes(buses, "preprocessor", "2")
    assert isinstance(await waiting, Decision)
    assert (len(client.held), len(edge.bus.replies)) == (0, 0)


async def test_a_request_waits_for_a_later_stage_that_another_one_misses(buses: Buses) -> None:
    edge, stage, picker = buses.make("frontend"), buses.make("preprocessor"), buses.make("profile-picker", "1")

    def forward(request: Request, hop: Hop[Request]) -> Decision | Rejection:
        if any(stage.heartbeat.table.list_instances("profile-picker", loop_time()).values()):
            return decide(request, hop)
        return replace(hop.reject(503, "No live instance.", code="stage_unavailable"), missing="profile-picker")

    stage.stage(Request, forward)
    client = JourneyClient(edge)
    await buses.meet()
    await picker.close()
    await eventually(lambda: not picker_lives(stage) and not picker_lives(edge))
    waiting = asyncio.create_task(client.send_request(builders.preprocess_request(), b"{}"))
    await eventually(lambda: len(client.held) == 1)
    await comes(buses, "profile-picker", "2")
    assert isinstance(await waiting, Decision)


async def test_a_request_is_held_for_no_longer_than_a_decision_may_take(buses: Buses) -> None:
    edge, stage = buses.make("frontend"), buses.make("preprocessor")
    stage.stage(Request, decide)
    client = JourneyClient(edge)
    await buses.meet()
    await stage.close()
    with pytest.raises(NoListener):
        await client.send_request(builders.preprocess_request(), b"{}", timeout_s=0.2)
    assert (client.held.total, len(client.held), len(edge.bus.replies)) == (1, 0, 0)


# A stage of the same process hangs together with its edge.
@pytest.mark.parametrize("buses", ["memory", "nats"], indirect=True)
@pytest.mark.parametrize("returns", [False, True])
async def test_a_request_waits_for_a_silent_stage_for_as_long_as_the_configuration_says(
    buses: Buses, returns: bool
) -> None:
    edge, stage = buses.make("frontend"), buses.make("preprocessor")
    seen: list[Hop[Request]] = []
    stage.stage(Request, lambda request, hop: decide(request, hop) if request.attempt > 90 else seen.append(hop))
    client = JourneyClient(edge)
    await buses.meet()
    edge.heartbeat.table.lost_after_s = 0.3
    stage.heartbeat.stop()
    silent_s = 30.0 if returns else 0.8
    request = builders.preprocess_request()
    waiting = asyncio.create_task(client.send_request(request, b"{}", hop_budget_s=0.1, silent_s=silent_s))
    if returns:
        await eventually(lambda: len(client.held) == 1)
        await comes(buses, "preprocessor", "2")
        assert isinstance(await waiting, Decision)
    else:
        with pytest.raises(NoListener):
            await waiting
    assert (len(client.held), len(edge.bus.replies)) == (0, 0)


async def test_a_request_whose_stage_is_lost_after_its_last_try_does_not_wait_until_its_deadline(buses: Buses) -> None:
    edge, stage = buses.make("frontend"), buses.make("preprocessor")
    seen: list[Hop[Request]] = []
    stage.stage(Request, lambda _, hop: seen.append(hop))
    client = JourneyClient(edge)
    await buses.meet()
    stage.heartbeat.stop()
    edge.heartbeat.table.lost_after_s = 600.0
    waiting = asyncio.create_task(
        client.send_request(builders.preprocess_request(), b"{}", hop_budget_s=0.01, timeout_s=600.0, silent_s=0.0)
    )
    await eventually(lambda: len(seen) == TRIES)
    edge.heartbeat.table.lost_after_s = 0.1
    with pytest.raises(NoListener):
        await waiting
    assert (len(client.held), len(edge.bus.replies)) == (0, 0)


async def test_a_request_that_would_rather_fail_is_not_held(buses: Buses) -> None:
    edge, stage = buses.make("frontend"), buses.make("preprocessor")
    stage.stage(Request, decide)
    client = JourneyClient(edge)
    await buses.meet()
    await stage.close()
    with pytest.raises(NoListener):
        await client.send_request(builders.preprocess_request(), b"{}", gives_up=lambda stage: stage == "preprocessor")
    assert client.held.total == 0


async def test_a_client_that_hangs_up_is_not_held_any_more(buses: Buses) -> None:
    edge, stage = buses.make("frontend"), buses.make("preprocessor")
    stage.stage(Request, decide)
    client = JourneyClient(edge)
    await buses.meet()
    await stage.close()
    waiting = asyncio.create_task(client.send_request(builders.preprocess_request(), b"{}"))
    await eventually(lambda: len(client.held) == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (len(client.held), len(edge.bus.replies)) == (0, 0)


async def test_a_request_without_an_answer_is_sent_once_more(buses: Buses) -> None:
    stage, edge = buses.make("preprocessor"), buses.make("frontend")
    seen: list[int] = []

    def swallow_the_first(request: Request, hop: Hop[Request]) -> Decision | None:
        seen.append(request.attempt)
        return None if request.attempt == 1 else decide(request, hop)

    stage.stage(Request, swallow_the_first)
    client = JourneyClient(edge)
    await buses.meet()
    answer = await client.send_request(builders.preprocess_request(), b"{}", hop_budget_s=0.5)
    assert isinstance(answer, Decision)
    assert answer.attempt == 2
    assert seen == [1, 2]
    assert client.resent == 1


@apart
async def test_a_request_that_no_stage_ever_answers_is_sent_a_few_times_and_ends_at_its_timeout(
    buses: Buses, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine gives each try more time.
    monkeypatch.setattr(roster, "measured_slack", _no_slack)
    stage, edge = buses.make("preprocessor"), buses.make("frontend")
    seen: list[int] = []
    stage.stage(Request, lambda request, hop: seen.append(request.attempt))
    client = JourneyClient(edge)
    await buses.meet()
    with pytest.raises(NoReply):
        await client.send_request(builders.preprocess_request(), b"{}", hop_budget_s=0.001, timeout_s=1)
    # A try is dropped by a stage that reads it after its time.
    assert seen == sorted(set(seen))
    assert seen[-1] == TRIES
    assert len(edge.bus.replies) == 0


async def test_an_edge_that_would_rather_go_on_alone_ends_after_the_second_try(buses: Buses) -> None:
    stage, edge = buses.make("preprocessor"), buses.make("frontend")
    seen: list[int] = []
    stage.stage(Request, lambda request, hop: seen.append(request.attempt))
    client = JourneyClient(edge)
    await buses.meet()
    with pytest.raises(NoReply):
        await client.send_request(builders.preprocess_request(), b"{}", hop_budget_s=0.05, gives_up=lambda stage: True)
    assert seen == [1, 2]


@apart
async def test_a_re_sent_request_goes_around_the_replica_that_swallowed_it(buses: Buses) -> None:
    edge = buses.make("frontend")
    stuck, alive = buses.make("preprocessor", "stuck"), buses.make("preprocessor", "alive")
    stuck.stage(Request, lambda request, hop: None)
    alive.stage(Request, decide)
    client = JourneyClient(edge)
    await buses.meet()
    stuck.heartbeat.stop()  # as a stopped process: still in the queue group, beats no more
    answers = await asyncio.gather(
        *(client.send_request(builders.preprocess_request(), b"{}", hop_budget_s=0.4) for _ in range(30))
    )
    assert all(isinstance(answer, Decision) for answer in answers)
    await eventually(lambda: not edge.heartbeat.table.is_alive("preprocessor", "preprocessor-stuck", loop_time()))
    before = client.resent
    for _ in range(10):
        await client.send_request(builders.preprocess_request(), b"{}", hop_budget_s=0.4)
    assert client.resent == before


async def test_a_parked_request_waits_beyond_the_hop_budget(buses: Buses) -> None:
    stage, edge = buses.make("preprocessor"), buses.make("frontend")
    held: list[Hop[Request]] = []

    def park(request: Request, hop: Hop[Request]) -> Parked:
        held.append(hop)
        return hop.park("saturated")

    stage.stage(Request, park)
    client = JourneyClient(edge)
    await buses.meet()
    waiting = asyncio.create_task(client.send_request(builders.preprocess_request(), b"{}", hop_budget_s=0.5))
    await eventually(lambda: held)
    started = loop_time()
    await eventually(lambda: loop_time() - started > 0.7)
    assert not waiting.done()
    held[0].finish(decide(held[0].message, held[0]))
    assert isinstance(await waiting, Decision)
    assert len(held) == 1


@apart
async def test_a_request_parked_by_an_instance_that_fell_silent_is_sent_again(buses: Buses) -> None:
    edge = buses.make("frontend")
    holder = buses.make("preprocessor", "holder")
    holder.stage(Request, lambda request, hop: hop.park("saturated"))
    client = JourneyClient(edge)
    await buses.meet()
    waiting = asyncio.create_task(client.send_request(builders.preprocess_request(), b"{}"))
    await eventually(lambda: client.tally.handled == 1)
    holder.heartbeat.stop()
    other = buses.make("preprocessor", "other")
    other.stage(Request, decide)
    other.open()
    await other.bus.wait_connected()
    other.serve()
    answer = await waiting
    assert isinstance(answer, Decision)
    assert client.abandoned == 1


async def test_a_request_that_was_held_for_a_time_and_then_lost_is_sent_again(buses: Buses) -> None:
    stage, edge = buses.make("preprocessor"), buses.make("frontend")

    def lose_the_first(request: Request, hop: Hop[Request]) -> Parked | Decision:
        if request.attempt > 1:
            return decide(request, hop)
        return replace(hop.park("waiting for somebody"), held_ms=20)

    stage.stage(Request, lose_the_first)
    client = JourneyClient(edge)
    await buses.meet()
    answer = await client.send_request(builders.preprocess_request(), b"{}", hop_budget_s=0.5)
    assert isinstance(answer, Decision)
    assert answer.attempt == 2
    assert stage.heartbeat.ready


async def test_a_parked_request_ends_at_its_deadline(buses: Buses) -> None:
    stage, edge = buses.make("preprocessor"), buses.make("frontend")
    stage.stage(Request, lambda request, hop: hop.park("saturated"))
    client = JourneyClient(edge)
    await buses.meet()
    with pytest.raises(NoReply):
        await client.send_request(builders.preprocess_request(), b"{}", timeout_s=0.15)


async def test_a_client_that_hangs_up_leaves_nothing_behind(buses: Buses) -> None:
    stage, edge = buses.make("preprocessor"), buses.make("frontend")
    held: list[Hop[Request]] = []
    stage.stage(Request, lambda request, hop: held.append(hop))
    client = JourneyClient(edge)
    await buses.meet()
    waiting = asyncio.create_task(client.send_request(builders.preprocess_request(), b"{}"))
    await eventually(lambda: held)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(edge.bus.replies) == 0
    held[0].finish(decide(held[0].message, held[0]))
    await eventually(lambda: edge.bus.replies.late == 1)


async def test_a_malformed_reply_is_counted_and_the_real_one_still_counts(buses: Buses) -> None:
    stage, edge = buses.make("preprocessor"), buses.make("frontend")
    inboxes: list[str] = []
    stage.bus.link.subscribe(stage_subject("preprocessor"), lambda _s, reply, _h, _p: inboxes.append(reply))
    client = JourneyClient(edge)
    await buses.meet()
    waiting = asyncio.create_task(client.send_request(builders.preprocess_request(), b"{}"))
    await eventually(lambda: inboxes)
    stage.bus.link.publish(inboxes[0], b"{nonsense")
    stage.bus.link.publish(inboxes[0], builders.decision().encode())
    assert isinstance(await waiting, Decision)
    assert client.tally.malformed == 1


@apart
@pytest.mark.parametrize("more", [0, 1, 2 * 8 * 2**20])
async def test_a_body_over_the_servers_limit_is_read_at_the_edge_in_parts(buses: Buses, more: int) -> None:
    stage, edge = buses.make("preprocessor"), buses.make("frontend")
    await buses.meet()
    body = os.urandom(edge.bus.link.max_payload + more)
    held: list[bytes] = []
    content = ContentClient(stage)

    async def read(request: PreprocessRequest, hop: Hop[PreprocessRequest]) -> Decision:
        assert request.body_bytes == len(body)
        assert not hop.body
        held.append(await content.fetch_body(request.edge, request.request_id, original=True))
        return decide(request, hop)

    def answer(query: ContentQuery) -> bytes:
        assert query.at_most is not None
        part = body[query.offset : query.offset + query.at_most]
        return b"\n".join((Content(request_id=query.request_id, size=len(body)).encode(), part))

    stage.stage(PreprocessRequest, read)
    edge.bus.answer(ContentQuery, answer, edge.process.instance)
    client = JourneyClient(edge)
    await buses.meet()
    request = replace(builders.preprocess_request(), edge=edge.process.instance)
    assert isinstance(await client.send_request(request, body), Decision)
    assert held == [body]


@apart
async def test_a_request_waits_while_the_server_is_slow_to_read(buses: Buses, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, edge = buses.make("preprocessor"), buses.make("frontend")
    stage.stage(Request, decide)
    client = JourneyClient(edge)
    await buses.meet()
    publish, refused = edge.bus.link.publish, list[str]()

    def congested(subject: str, payload: bytes, reply: str = "", headers: bytes = b"") -> None:
        if subject == stage_subject("preprocessor") and not refused:
            refused.append(subject)
            raise BusCongested(2, 1)
        publish(subject, payload, reply, headers)

    monkeypatch.setattr(edge.bus.link, "publish", congested)
    assert isinstance(await client.send_request(builders.preprocess_request(), b"{}", hop_budget_s=0.05), Decision)
    refused.clear()
    with pytest.raises(BusCongested):
        await client.send_request(builders.preprocess_request(), b"{}", gives_up=lambda stage: False)


async def test_without_a_connection_the_edge_knows_at_once(buses: Buses) -> None:
    edge = buses.make("frontend")
    client = JourneyClient(edge)
    with pytest.raises(BusDisconnected):
        await client.send_request(builders.preprocess_request(), b"{}")


async def comes(buses: Buses, service: str, instance: str) -> None:
    """One more replica starts."""
    replica = buses.make(service, instance)
    if service == "preprocessor":
        replica.stage(Request, decide)
    replica.open()
    await replica.bus.wait_connected()
    replica.serve()


def picker_lives(service: Journeys) -> bool:
    return service.heartbeat.table.is_alive("profile-picker", "profile-picker-1", loop_time())


def _no_slack(due: float, now: float) -> float:
    return 0.0


def loop_time() -> float:
    return asyncio.get_running_loop().time()
