"""Custom stages on the bus, on both transports."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_contracts.journey import BodyEdit, HeaderEdit, Journey, RequestFacts, Stage, StageReport, Target
from pointsman_contracts.message import Blob
from pointsman_contracts.reply import Answer, Decision, Parked, Rejection, read_reply
from pointsman_contracts.subjects import stage_subject
from pointsman_journey import elsewhere
from pointsman_journey.custom_answers import Servers, merged, rejected, understood
from pointsman_journey.hop import Hop
from pointsman_journey.journeys import Journeys
from pointsman_journey.routing_slip import unanswered
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses, apart
from pointsman_testing.nats_server import MAX_PAYLOAD

Document = dict[str, Any]
ALLOWED, DENIED = Stage(service="gate", on_error="allow", timeout_ms=400), Stage(service="gate", timeout_ms=400)


class World:
    """An edge, a scheduler that decides everything, and a stage `gate` that speaks nothing but JSON."""

    def __init__(self, buses: Buses) -> None:
        self.arrived: list[Journey] = []
        self.answers: list[Decision | Rejection | Parked | Answer] = []
        self.asked: list[Document] = []
        self._buses = buses
        self.edge = buses.make("frontend")
        self._asker = buses.make("frontend", "2")
        self._asker.bus.link.subscribe(
            "_INBOX.test", lambda subject, reply, headers, payload: self.answers.append(read_reply(payload))
        )
        self._scheduler = buses.make("scheduler")
        self._scheduler.stage(Journey, self._schedule)

    def gate(self, answer: Callable[[Document], Mapping[str, Any] | bytes | None]) -> None:
        """Run it with this answer; None says nothing."""
        service = self._buses.make("outsider")

        def receive(subject: str, reply: str, headers: bytes, payload: bytes) -> None:
            document = json.loads(payload)
            self.asked.append(document)
            said = answer(document)
            if said is not None:
                service.bus.link.publish(reply, said if isinstance(said, bytes) else json.dumps(said).encode(), "", b"")

        service.bus.link.subscribe(stage_subject("gate"), receive, queue="gate")

    async def outcome(self, stage: Stage = DENIED, **facts: Any) -> Decision | Rejection | Answer:
        """The edge's reply to a request through the gate."""
        await self._buses.meet()
        journey = builders.journey("scheduler", **facts)
        journey = replace(journey, itinerary=(stage, *journey.itinerary))
        self.edge.forward(journey, "_INBOX.test")
        await eventually(lambda: self.answers and not isinstance(self.answers[-1], Parked))
        last = self.answers[-1]
        assert not isinstance(last, Parked)
        return last

    def _schedule(self, journey: Journey, hop: Hop[Journey]) -> Decision:
        self.arrived.append(journey)
        return builders.decision(journey.request_id, level=journey.level, reasons=journey.reasons)


async def test_a_custom_stage_changes_the_request_and_it_goes_on(buses: Buses) -> None:
    world = World(buses)

    def answer(document: Document) -> Document:
        document["body"].append({"field": "max_tokens", "value": 7})
        document["trail"].append({"stage": "gate", "instance": "gate-1", "note": "capped"})
        return document

    world.gate(answer)
    assert isinstance(await world.outcome(), Decision)
    [journey] = world.arrived
    assert journey.body[-1] == BodyEdit(field="max_tokens", value=7)
    report = journey.trail[-1]
    assert (report.stage, report.instance, report.outcome, report.note) == ("gate", "gate-1", "passed", "capped")
    assert report.took_ms > 0


async def test_it_ends_a_request_in_its_own_words(buses: Buses) -> None:
    world = World(buses)
    world.gate(
        lambda document: {
            "kind": "rejection", "request_id": document["request_id"], "stage": "someone", "status": 403,
            "type": "invalid_request_error", "code": "closed", "message": "Come back tomorrow.",
        }
    )  # fmt: skip
    answer = await world.outcome(ALLOWED)
    assert isinstance(answer, Rejection)
    assert (answer.stage, answer.status, answer.message) == ("gate", 403, "Come back tomorrow.")
    assert answer.trail[-1].outcome == "rejected"
    assert world.arrived == []


def fitting(document: Document, size: int) -> bytes:
    """An answer of its own that is so many bytes, to which nothing can be added."""
    head = json.dumps({"kind": "answer", "request_id": document["request_id"], "stage": "gate"}).encode() + b"\n"
    return head + b"x" * (size - len(head))


def elsewhere_to(**target: str) -> Callable[[Document], Document]:
    return lambda document: {**document, "target": {"model": "m", **target}}


SERVERS = Servers({"p", "q"}, {"far"})


@pytest.mark.parametrize("target", [{"pool": "q"}, {"provider": "far"}])
async def test_a_target_that_a_stage_chose_is_in_the_body_and_in_the_headers_too(
    buses: Buses, target: dict[str, str]
) -> None:
    world = World(buses)
    world.edge.servers = SERVERS
    world.gate(lambda document: {**document, "target": {"model": "larger", **target}})
    outcome = await world.outcome(
        target=Target(model="small", pool="p"),
        model="auto",
        body=(BodyEdit(field="model", value="small"), BodyEdit(field="n", value=1)),
        headers=(HeaderEdit(name="x-model", value="small", tells="model"),),
    )
    assert isinstance(outcome, Decision)
    said = world.arrived[0] if world.arrived else outcome
    assert said.target == Target(model="larger", **target)
    assert said.body == (BodyEdit(field="n", value=1), BodyEdit(field="model", value="larger"))
    assert said.headers == (HeaderEdit(name="x-model", value="larger", tells="model"),)


@pytest.mark.parametrize("stage", [DENIED, ALLOWED])
@pytest.mark.parametrize("target", [{"pool": "nowhere"}, {"provider": "nowhere"}, {}])
async def test_a_target_that_is_nowhere_is_the_stages_failure(
    buses: Buses, stage: Stage, target: dict[str, str]
) -> None:
    world = World(buses)
    world.edge.servers = SERVERS
    world.gate(elsewhere_to(**target))
    outcome = await world.outcome(stage, target=Target(model="m", pool="p"))
    if stage is DENIED:
        assert isinstance(outcome, Rejection)
        assert (outcome.status, outcome.code) == (500, "stage_failed")
        assert outcome.message == "The stage gate chose a pool or provider that isn't configured."
    else:
        assert isinstance(outcome, Decision)
        assert (world.arrived[0].target, outcome.level) == (Target(model="m", pool="p"), "degraded")


FAILURES: dict[str, tuple[Callable[[Document], Mapping[str, Any] | bytes | None] | None, int]] = {
    "nobody": (None, 503),
    "silence": (lambda document: None, 504),
    "nonsense": (lambda document: b"{]", 500),
    "an empty answer": (lambda document: b"", 500),
    "another request's journey": (lambda document: {**document, "request_id": "other"}, 500),
    "a journey too large to go on": (
        lambda document: {**document, "request": {**document["request"], "attributes": {"tag": "x" * 70_000}}},
        500,
    ),
    "an answer too large to go on": (lambda document: fitting(document, MAX_PAYLOAD), 500),
    "a decision": (lambda document: json.loads(builders.decision(document["request_id"]).encode()), 500),
    "a rejection that is none": (
        lambda document: {
            "kind": "rejection",
            "request_id": document["request_id"],
            "stage": "gate",
            "status": 200,
            "message": "fine",
        },
        500,
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
@apart
async def test_a_stage_that_may_fail_is_skipped_and_the_decision_says_so(buses: Buses, failure: str) -> None:
    world = World(buses)
    answer, _ = FAILURES[failure]
    if answer is not None:
        world.gate(answer)
    decision = await world.outcome(ALLOWED)
    assert isinstance(decision, Decision)
    assert decision.level == "degraded"
    assert decision.reasons[0].startswith("gate ")
    assert world.arrived[0].trail[-1].outcome == "skipped"


@pytest.mark.parametrize("failure", FAILURES)
@apart
async def test_a_stage_that_may_not_fail_ends_the_request(buses: Buses, failure: str) -> None:
    world = World(buses)
    answer, status = FAILURES[failure]
    if answer is not None:
        world.gate(answer)
    rejection = await world.outcome(DENIED)
    assert isinstance(rejection, Rejection)
    assert rejection.status == status
    assert "gate" in rejection.message
    assert world.arrived == []


@pytest.mark.parametrize(
    ("failure", "counted"), [("a journey too large to go on", (0, 2, 0)), ("a rejection that is none", (0, 0, 2))]
)
@apart
async def test_a_stages_reply_is_counted_once_by_its_outcome(
    buses: Buses, caplog: pytest.LogCaptureFixture, failure: str, counted: tuple[int, int, int]
) -> None:
    world = World(buses)
    world.gate(FAILURES[failure][0] or (lambda document: document))
    for _ in range(2):
        world.answers.clear()
        await world.outcome(ALLOWED)
    (tally,) = [each for each in world.edge.bus.hub.tallies if each.name == "custom-stage.gate"]
    assert (tally.handled, tally.failed, tally.malformed) == counted
    assert [record.message for record in caplog.records if record.message != "degraded"] == []
    assert len(caplog.records) == 1


async def test_the_edge_hears_that_a_slow_stage_is_waited_for(buses: Buses) -> None:
    world = World(buses)
    world.gate(lambda document: None)
    await world.outcome(ALLOWED)
    [parked] = [answer for answer in world.answers if isinstance(answer, Parked)]
    assert (parked.stage, parked.instance) == ("frontend", world.edge.process.instance)
    assert 0 < (parked.held_ms or 0) <= 400


async def test_a_stage_made_with_the_runtime_is_asked_as_any_other(buses: Buses) -> None:
    world = World(buses)
    gate: Journeys = buses.make("gate")
    gate.stage(Journey, lambda journey, hop: hop.advance(note="fine", headers=()))
    assert isinstance(await world.outcome(), Decision)
    assert [(report.stage, report.note) for report in world.arrived[0].trail][-1] == ("gate", "fine")


@given(st.sampled_from(["profile", "itinerary", "response", "model", "revision", "edge", "deadline_ms", "attempt"]))
def test_a_stage_cannot_change_what_a_request_is_or_which_way_it_goes(field: str) -> None:
    journey = builders.journey("gate", "scheduler", profile="standard")
    other = builders.journey(
        "elsewhere", profile="free", model="other", revision=99, edge="e", attempt=9, deadline_ms=1, received_ms=1
    ).changed(response=(Stage(service="x"),))
    result = merged(journey, replace(journey, **{field: getattr(other, field)}), 1.0)
    expected = journey.itinerary[1:] if field == "itinerary" else getattr(journey, field)
    assert getattr(result, field) == expected


LEFT = HeaderEdit(name="x-ratelimit-remaining-requests", value="7")


def test_a_stage_adds_to_the_answers_headers_and_loses_none_by_not_knowing_them() -> None:
    journey = builders.journey("gate", "scheduler", answer_headers=(LEFT, HeaderEdit(name="x-a", value="1")))
    unaware = merged(journey, replace(journey, answer_headers=()), 1.0)
    assert unaware.answer_headers == journey.answer_headers
    own = (HeaderEdit(name="X-A", value="2"),)
    assert merged(journey, replace(journey, answer_headers=own), 1.0).answer_headers == (LEFT, *own)
    ended = Rejection(request_id=journey.request_id, stage="gate", status=403, type="t", message="No.")
    assert rejected(journey, ended, 1.0).answer_headers == journey.answer_headers
    assert rejected(journey, ended, 1.0).model == unanswered(journey, "gate").model == journey.model


def test_a_stage_that_ends_a_journey_forwards_the_answers_headers() -> None:
    journey = builders.journey("scheduler", target=Target(model="m", provider="p"), answer_headers=(LEFT,))
    assert elsewhere.decision(journey).answer_headers == (LEFT,)
    assert unanswered(journey, "profile-picker").answer_headers == (LEFT,)


@given(st.binary(max_size=200) | st.text(max_size=50).map(str.encode))
def test_no_answer_breaks_the_asker(payload: bytes) -> None:
    assert understood(payload, builders.journey("gate")) is None


def test_a_forged_trail_is_replaced_by_the_true_one() -> None:
    before = StageReport(stage="profile-picker", instance="p")
    journey = builders.journey("gate", "scheduler", trail=(before,))
    forged = StageReport(stage="scheduler", instance="s", outcome="rejected", took_ms=0.0, note="n" * 10_000)
    result = merged(journey, replace(journey, trail=(forged, forged)), 2.0)
    assert result.trail[0] == before
    assert (result.trail[1].stage, result.trail[1].outcome, result.trail[1].took_ms) == ("gate", "passed", 2.0)
    assert len(result.trail[1].note or "") == 512


async def test_a_custom_stage_ends_the_journey_with_an_answer_of_its_own(buses: Buses) -> None:
    world = World(buses)
    body = b'{"choices":[]}'

    def answer(document: Document) -> bytes:
        said = {"kind": "answer", "request_id": document["request_id"], "stage": "somebody", "model": "another"}
        return json.dumps(said | {"response": [{"service": "mine"}]}).encode() + b"\n" + body

    world.gate(answer)
    kept = (Stage(service="guard"),)
    outcome = await world.outcome(response=kept, answer_headers=(HeaderEdit(name="x-left", value="7"),))
    assert isinstance(outcome, Answer)
    assert (outcome.body, outcome.stage, outcome.model) == (body, "gate", "llama-8b")
    assert (outcome.response, outcome.answer_headers) == (kept, (HeaderEdit(name="x-left", value="7"),))
    assert [report.outcome for report in outcome.trail] == ["answered"]
    assert world.arrived == []


@pytest.mark.parametrize(("chosen", "settled"), [("mine", True), ("other", False)])
async def test_a_stage_cannot_lead_to_a_model_that_the_identity_may_not_use(
    buses: Buses, chosen: str, settled: bool
) -> None:
    world = World(buses)
    world.gate(lambda document: {**document, "target": {"model": chosen, "pool": "p"}})
    facts = RequestFacts(api="completions", attributes={"identity": {"models": ["mine"]}})
    outcome = await world.outcome(request=facts)
    if settled:
        assert isinstance(outcome, Decision)
    else:
        assert isinstance(outcome, Rejection)
        assert (outcome.status, outcome.code) == (403, "model_not_allowed")


async def test_a_stage_built_on_an_older_contract_may_leave_the_target_as_it_is(buses: Buses) -> None:
    world = World(buses)
    world.gate(
        lambda document: {
            **document,
            "target": {"model": "sql-7", "pool": "p"},
            "alternatives": [{"model": "sql-8", "pool": "p"}],
        }
    )
    facts = RequestFacts(api="completions", attributes={"identity": {"models": ["sql"]}})
    settled = Target(model="sql-7", pool="p", base="llama-8b")
    alternative = Target(model="sql-8", pool="p", base="llama-8b")
    outcome = await world.outcome(request=facts, target=settled, alternatives=(alternative,))
    assert isinstance(outcome, Decision)
    [journey] = world.arrived
    assert (journey.target, journey.alternatives) == (settled, (alternative,))


def test_a_stage_cannot_name_the_sender_of_a_request() -> None:
    journey = builders.journey(
        "gate", request=RequestFacts(api="completions", attributes={"identity": {"tenant": "a"}})
    )
    other = RequestFacts(api="completions", attributes={"identity": {"tenant": "b"}, "tag": 1})
    result = merged(journey, replace(journey, request=other), 1.0)
    assert result.request.attributes == {"identity": {"tenant": "a"}, "tag": 1}


def test_of_a_body_that_a_stage_changed_there_is_no_fingerprint() -> None:
    journey = builders.journey("gate", request=RequestFacts(api="completions", fingerprint=Blob(b"1")))
    assert merged(journey, journey, 1.0).request.fingerprint == b"1"
    colder = replace(journey, body=(BodyEdit(field="temperature", value=0),))
    assert merged(journey, colder, 1.0).request.fingerprint == b""
