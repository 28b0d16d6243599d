"""The stage on a bus: from the edge's message to the profile-picker's journey."""

from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import orjson
import pytest
from prometheus_client import CollectorRegistry
from pydantic import JsonValue

from pointsman_contracts.journey import BodyEdit, HeaderEdit, Journey, PreprocessRequest
from pointsman_contracts.reply import Answer, Decision, Parked, Rejection, read_reply
from pointsman_contracts.subjects import stage_subject
from pointsman_core.config import Config
from pointsman_core.refusal import Refusal
from pointsman_hosting.configuration import Configuration
from pointsman_journey.hop import Hop
from pointsman_journey.journeys import Journeys
from pointsman_plugins.preprocessing import Incoming, RequestProcessor
from pointsman_preprocessor.configuration import compile_pipeline
from pointsman_preprocessor.domain.pipeline import Pipeline, registry
from pointsman_preprocessor.handlers import Handlers
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses

INBOX: Final = "_INBOX.test"
CHAT: Final[dict[str, JsonValue]] = {"model": "m", "messages": [{"role": "user", "content": "canary-7c1f"}]}

CONFIG: Final = """
pools: {p: {models: [m], block_tokens: 16}}
rewrites: [{match: gpt-*, to: m}]
preprocessing: [model-to-header, {use: field-to-header, field: model, header: x-model}]
"""


class World:
    """An edge, a preprocessor and a profile-picker that keeps what it gets."""

    def __init__(
        self, buses: Buses, compiled: Callable[[Config, int], Pipeline] = compile_pipeline, text: str = CONFIG
    ) -> None:
        self.registry = CollectorRegistry()
        self.edge: Journeys = buses.make("frontend")
        self.journeys: list[Journey] = []
        self.answers: list[Decision | Rejection | Parked | Answer] = []
        configuration = Configuration(compiled, self.registry)
        assert configuration.offer_revision(1, text)
        self.threads = ThreadPoolExecutor(max_workers=1)
        handlers = Handlers(configuration, self.registry, thread_above=10_000, max_values=50_000, threads=self.threads)
        buses.make("preprocessor").stage(PreprocessRequest, handlers.preprocess)
        buses.make("profile-picker").stage(Journey, self._keep)
        self.edge.bus.link.subscribe(INBOX, lambda _s, _r, _h, payload: self.answers.append(read_reply(payload)))

    def _keep(self, journey: Journey, hop: Hop[Journey]) -> None:
        del hop
        self.journeys.append(journey)

    def send(self, body: bytes, **changes: object) -> PreprocessRequest:
        request = builders.preprocess_request(**changes)
        self.edge.bus.link.publish(stage_subject("preprocessor"), request.encode() + b"\n" + body, INBOX)
        return request


@pytest.fixture
async def world(buses: Buses) -> AsyncIterator[World]:
    made = World(buses)
    await buses.meet()
    yield made
    made.threads.shutdown()


async def test_a_large_body_that_its_edge_does_not_hand_over_is_a_503(world: World) -> None:
    world.send(b"", body_bytes=10)
    await eventually(lambda: world.answers)
    (answer,) = world.answers
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.code) == (503, "content_unavailable")


@pytest.mark.requirement("S4-10", "S4-20", "S1-24")
async def test_a_chat_arrives_at_the_profile_picker_as_facts(world: World) -> None:
    request = world.send(orjson.dumps(CHAT), headers={"authorization": "Bearer s3cret", "x-session-id": "s"})
    await eventually(lambda: world.journeys)
    journey = world.journeys[0]
    assert journey.request_id == request.request_id
    assert journey.model == "m"
    assert journey.request.headers == {"x-session-id": "s"}
    assert journey.request.api == "chat.completions"
    assert journey.request.session == "s"
    assert journey.request.block_tokens == 16
    assert [report.stage for report in journey.trail] == ["preprocessor"]
    assert b"canary" not in journey.encode()
    assert b"s3cret" not in journey.encode()


@pytest.mark.requirement("S0-8")
async def test_without_any_processor_the_picker_sees_the_whole_request_all_the_same(buses: Buses) -> None:
    world = World(buses, text="pools: {p: {models: [m]}}\npreprocessing: []\n")
    await buses.meet()
    headers = {"x-session-id": "s", "x-team": "red"}
    world.send(orjson.dumps(CHAT | {"temperature": 0.5}), headers=headers)
    await eventually(lambda: world.journeys)
    facts = world.journeys[0].request
    assert (world.journeys[0].model, facts.api, facts.session) == ("m", "chat.completions", "s")
    assert facts.headers == headers
    assert facts.fields["temperature"] == 0.5
    assert facts.prompt_tokens > 0
    world.threads.shutdown()


async def test_bad_input_is_answered_and_the_next_request_works(world: World) -> None:
    world.send(b'{"model": "m", "messages": [{"role": "user", "content": "canary-7c1f')
    await eventually(lambda: world.answers)
    answer = world.answers[0]
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.stage, answer.code) == (400, "preprocessor", "invalid_json")
    assert "canary" not in answer.encode().decode()
    world.send(orjson.dumps(CHAT))
    await eventually(lambda: world.journeys)


async def test_a_large_body_takes_the_same_way_through_a_thread(world: World) -> None:
    large = CHAT | {"messages": [{"role": "user", "content": "word " * 20_000}]}
    world.send(orjson.dumps(large))
    await eventually(lambda: world.journeys)
    assert world.journeys[0].request.prompt_tokens > 20_000
    world.send(orjson.dumps(large)[:-2])
    await eventually(lambda: world.answers)


@pytest.mark.requirement("S4-17")
async def test_each_request_is_decoded_once(world: World) -> None:
    for _ in range(5):
        world.send(orjson.dumps(CHAT))
    world.send(b"{}")
    await eventually(lambda: len(world.journeys) == 5 and world.answers)
    assert world.registry.get_sample_value("pointsman_json_decodes_total") == 6
    assert (
        world.registry.get_sample_value("pointsman_preprocess_refused_total", {"code": "missing_required_parameter"})
        == 1
    )


async def test_a_body_of_too_many_values_is_refused_before_it_is_decoded(world: World) -> None:
    world.send(b'{"model": "m", "prompt": [' + b",".join([b"1"] * 100_000) + b"]}", path="/v1/completions")
    answer = (await eventually(lambda: world.answers))[0]
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.code) == (400, "body_too_complex")
    assert "50,000" in answer.message


@pytest.mark.parametrize("text", ["", "x" * 20_000])
async def test_a_body_that_nests_too_deep_is_refused_and_not_failed(world: World, text: str) -> None:
    deep = b"[" * 300 + b"]" * 300
    chat = b'{"model": "m", "messages": [{"role": "user", "content": "%s"}], "tools": [{"parameters": %s}]}'
    world.send(chat % (text.encode(), deep))
    answer = (await eventually(lambda: world.answers))[0]
    assert isinstance(answer, Rejection)
    assert (answer.status, answer.code) == (400, "body_too_complex")


class Saying(RequestProcessor):
    """Says something in the answer, and refuses when it is asked to."""

    type_name = "saying"

    def process(self, incoming: Incoming) -> None:
        incoming.set_answer_header("X-Left", "7")
        if incoming.field("refuse"):
            raise Refusal(429, "No.")


async def test_headers_for_the_answer_go_with_the_journey_and_with_the_refusal(buses: Buses) -> None:
    def compiled(config: Config, revision: int) -> Pipeline:
        del revision
        return Pipeline(config, registry((Saying,)))

    world = World(buses, compiled, "preprocessing: [saying]")
    await buses.meet()
    world.send(orjson.dumps(CHAT))
    world.send(orjson.dumps(CHAT | {"refuse": True}))
    await eventually(lambda: world.journeys and world.answers)
    left = (HeaderEdit(name="x-left", value="7"),)
    assert world.journeys[0].answer_headers == left
    assert isinstance(world.answers[0], Rejection)
    assert world.answers[0].answer_headers == left
    assert world.answers[0].model == CHAT["model"]
    world.threads.shutdown()


@pytest.mark.requirement("S1-20")
async def test_a_rewritten_model_is_reported_beside_the_one_asked_for(world: World) -> None:
    world.send(orjson.dumps(CHAT | {"model": "gpt-4o"}))
    await eventually(lambda: world.journeys)
    journey = world.journeys[0]
    assert (journey.model, journey.rewritten, journey.wanted) == ("gpt-4o", "m", "m")
    assert journey.body == (BodyEdit(field="model", value="m"),)
    assert {edit.value for edit in journey.headers} == {"m"}
    assert journey.trail[0].note == "rewrite gpt-*: m"
    assert journey.request.block_tokens == 16
    labels = {"rule": "gpt-*", "model": "m"}
    assert world.registry.get_sample_value("pointsman_model_rewrites_total", labels) == 1
    world.journeys.clear()
    world.send(orjson.dumps(CHAT))
    await eventually(lambda: world.journeys)
    journey = world.journeys[0]
    assert (journey.rewritten, journey.body, journey.trail[0].note) == (None, (), None)


async def test_an_identity_is_found_without_a_body_and_without_any_other_processor(buses: Buses) -> None:
    world = World(
        buses,
        text="""
preprocessing:
  - {use: anonymous, tenant: public, models: ["group:own", other]}
  - {use: request-limit, per: [tenant], rate: 0/s}
pools: {p: {models: [m]}}
models: {m: {pool: p, groups: [own]}}
""",
    )
    await buses.meet()
    world.send(b"", method="GET", path="/v1/models")
    [answer] = await eventually(lambda: world.answers)
    assert isinstance(answer, Answer)
    told = orjson.loads(answer.body)
    assert (answer.status, told["models"], told["identity"]["tenant"]) == (200, ["m", "other"], "public")
    world.send(b"", method="GET", path="/v1/models", headers={"x-api-key": "canary-41"})
    await eventually(lambda: len(world.answers) == 2)
    refused = world.answers[1]
    assert isinstance(refused, Rejection)
    assert (refused.status, refused.code) == (401, "invalid_api_key")
    assert [edit.name for edit in refused.answer_headers] == ["www-authenticate"]
    world.threads.shutdown()


FORM: Final = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\0\xff\r\n--b--\r\n'
)
KIND: Final = {"content-type": "multipart/form-data; boundary=b"}


async def test_a_request_that_passes_becomes_facts_without_a_prefix_and_without_a_fingerprint(buses: Buses) -> None:
    world = World(buses, text="pools: {p: {models: [m]}, q: {models: [whisper]}}\npreprocessing: []\n")
    await buses.meet()
    world.send(FORM % b"whisper", path="/v1/audio/transcriptions", headers=KIND)
    world.send(b"", path="/pools/q/tokenizer_info", method="GET")
    world.send(b'{"model": "m", "query": "canary-7c1f", "documents": ["b"]}', path="/v1/rerank")
    world.send(b"", path="/v1/responses/resp_1", method="GET", model="m")
    await eventually(lambda: len(world.journeys) == 4)
    found = {journey.request.api: journey for journey in world.journeys}
    assert {name: journey.model for name, journey in found.items()} == {
        "audio.transcriptions": "whisper", "tokenizer_info": "whisper", "rerank": "m", "responses.retrieve": "m",
    }  # fmt: skip
    assert found["rerank"].request.prompt_tokens == 4
    for journey in world.journeys:
        assert (journey.request.blocks, journey.request.fingerprint) == (b"", b"")
        assert journey.request.max_output_tokens == 0
        assert b"canary" not in journey.encode()
    world.threads.shutdown()


async def test_limits_hold_for_what_passes_as_for_a_chat(buses: Buses) -> None:
    text = "pools: {p: {models: [m]}}\npreprocessing: [{use: request-limit, per: [], rate: 1/min}]\n"
    world = World(buses, text=text)
    await buses.meet()
    world.send(b'{"model": "m", "query": "a", "documents": ["b"]}', path="/v1/rerank", request_id="r1")
    world.send(b'{"text": "a"}', path="/generate", request_id="r2")
    # The two travel by different subjects, in no order.
    await eventually(lambda: world.answers and world.journeys)
    (answer,) = world.answers
    assert isinstance(answer, Rejection)
    assert (answer.status, len(world.journeys)) == (429, 1)
    world.threads.shutdown()
