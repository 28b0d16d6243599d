"""The stages before scheduling, one after the other on one bus, with the configurations of people."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import orjson
import pytest
import yaml
from prometheus_client import CollectorRegistry
from pydantic import JsonValue

from pointsman_contracts.journey import BodyEdit, HeaderEdit, Journey, PreprocessRequest, Target
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.reply import Answer, Decision, Parked, Rejection, read_reply
from pointsman_contracts.subjects import ANY, stage_subject
from pointsman_embedding.embedders import Embedders
from pointsman_hosting.configuration import Configuration
from pointsman_journey.content_client import ContentClient
from pointsman_journey.hop import Hop
from pointsman_model_selector import handlers as selecting
from pointsman_model_selector.configuration import compile_all
from pointsman_model_selector.prompt_embedding import PromptEmbedder
from pointsman_preprocessor import handlers as preprocessing
from pointsman_preprocessor.configuration import compile_pipeline
from pointsman_profile_picker import handlers as picking
from pointsman_profile_picker.configuration import compile_routing
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses

REFERENCE: Final = (Path(__file__).resolve().parent.parent / "examples/reference-profiles.yaml").read_text()
INBOX: Final = "_INBOX.test"
MESSAGES: Final[list[JsonValue]] = [{"role": "user", "content": "hello"}]


class Gateway:
    """Preprocessor, profile-picker and model-selector, and schedulers of every pool that keep what they get."""

    def __init__(self, buses: Buses, config: str, *stages: str) -> None:
        self.registry = CollectorRegistry()
        self.journeys: list[Journey] = []
        self.answers: list[Answer | Decision | Parked | Rejection] = []
        self.edge = buses.make("frontend")
        pipelines = Configuration(compile_pipeline, self.registry)
        routings = Configuration(compile_routing, CollectorRegistry())
        selectors = Configuration(compile_all, CollectorRegistry())
        for configuration in (pipelines, routings, selectors):
            assert configuration.offer_revision(1, config)
        preprocess = preprocessing.Handlers(
            pipelines, self.registry, thread_above=1 << 20, max_values=1000, threads=ThreadPoolExecutor(1)
        )
        pick = picking.Handlers(routings, CollectorRegistry())
        selector = buses.make("model-selector")
        embedder = PromptEmbedder(Embedders("none"), ContentClient(selector), CollectorRegistry())
        select = selecting.Handlers(selectors, CollectorRegistry(), time_every=1000, embedder=embedder)
        buses.make("preprocessor").stage(PreprocessRequest, preprocess.preprocess)
        picker = buses.make("profile-picker")
        picker.stage(Journey, pick.pick)
        picker.bus.listen(PoolSnapshot, pick.snapshot, ANY, keep="latest")
        selector.stage(Journey, select.select)
        selector.bus.listen(PoolSnapshot, select.snapshot, ANY, keep="latest")
        selector.bus.listen(ModelStatistics, select.statistics, ANY, keep="latest")
        buses.make("scheduler").stage(Journey, self._keep)
        for stage in stages:
            buses.make(stage).stage(Journey, lambda journey, hop: hop.advance())
        self.edge.bus.link.subscribe(INBOX, lambda _s, _r, _h, payload: self.answers.append(read_reply(payload)))

    def _keep(self, journey: Journey, hop: Hop[Journey]) -> None:
        del hop
        self.journeys.append(journey)

    def pools_are(self, saturation: float, at_ms: int = 1) -> None:
        for pool, models in (("llama-8b", ("llama-8b", "llama-8b-sql")), ("llama-70b", ("llama-70b",))):
            snapshot = PoolSnapshot(
                pool=pool, source="c", sequence=at_ms, at_ms=at_ms, saturation=saturation, models=models
            )
            self.edge.bus.publish(snapshot, pool)

    async def send(self, model: str, headers: dict[str, str] | None = None, **fields: JsonValue) -> Journey:
        """The journey as the scheduler got it."""
        self.journeys.clear()
        request = builders.preprocess_request(headers=headers or {})
        body = orjson.dumps({"model": model, "messages": MESSAGES} | fields)
        self.edge.bus.link.publish(stage_subject("preprocessor"), request.encode() + b"\n" + body, INBOX)
        await eventually(lambda: self.journeys or self.answers)
        assert not self.answers, self.answers
        return self.journeys[0]


def chosen(journey: Journey) -> tuple[str | None, str]:
    """Profile and model."""
    assert journey.target is not None
    return journey.profile, journey.target.model


def stages(journey: Journey) -> list[str]:
    """Where the journey has been."""
    return [report.stage for report in journey.trail]


@pytest.fixture
async def gateway(buses: Buses) -> Gateway:
    made = Gateway(buses, REFERENCE)
    await buses.meet()
    made.pools_are(0.2)
    return made


@pytest.mark.requirement("S0-20", "S0-19", "S0-1", "S0-71", "S1-16", "S1-19")
async def test_a_request_that_names_a_model_is_not_selected_for(gateway: Gateway) -> None:
    journey = await gateway.send("llama-70b")
    assert chosen(journey) == ("standard", "llama-70b")
    assert journey.target == Target(model="llama-70b", pool="llama-70b")
    assert stages(journey) == ["preprocessor", "profile-picker"]
    assert not [edit for edit in journey.body if edit.field == "model"]


@pytest.mark.requirement("S0-20", "S0-40", "S0-51", "S0-12", "S0-78", "S1-17", "S1-19", "S1-45")
async def test_auto_is_given_the_cheapest_model_that_fits(gateway: Gateway) -> None:
    journey = await gateway.send("auto/own", stream=True)
    assert chosen(journey) == ("auto", "llama-8b")
    assert stages(journey) == ["preprocessor", "profile-picker", "model-selector"]
    assert BodyEdit(field="model", value="llama-8b") in journey.body
    assert BodyEdit(field="stream_options", value={"include_usage": True}, unasked=True) in journey.body
    assert HeaderEdit(name="x-gateway-model-name", value="llama-8b", tells="model") in journey.headers
    assert journey.model == "auto/own"


@pytest.mark.requirement("S0-20", "S0-73", "S0-74", "S0-47")
async def test_a_header_asks_for_the_best_or_for_the_cheapest_model(gateway: Gateway) -> None:
    assert chosen(await gateway.send("auto/own", {"x-priority": "high"})) == ("priority", "llama-70b")
    assert chosen(await gateway.send("auto/own", {"x-priority": "batch"})) == ("batch", "llama-8b")


async def test_a_header_takes_no_named_model_away(gateway: Gateway) -> None:
    assert chosen(await gateway.send("llama-70b", {"x-priority": "batch"})) == ("batch", "llama-70b")


@pytest.mark.requirement("S0-76", "S0-25")
async def test_external_models_are_chosen_only_while_every_own_pool_is_saturated(gateway: Gateway) -> None:
    assert (await gateway.send("auto/own")).profile == "auto"
    gateway.pools_are(1.3, at_ms=2)

    async def overflows() -> Decision | None:
        gateway.journeys.clear()
        gateway.answers.clear()
        request = builders.preprocess_request()
        body = orjson.dumps({"model": "auto", "messages": MESSAGES})
        gateway.edge.bus.link.publish(stage_subject("preprocessor"), request.encode() + b"\n" + body, INBOX)
        await eventually(lambda: gateway.journeys or gateway.answers)
        answer = gateway.answers[0] if gateway.answers else None
        return answer if isinstance(answer, Decision) and answer.profile == "overflow" else None

    decided = await eventually(overflows)
    assert decided is not None
    assert (decided.target.provider, decided.target.model) == ("openai", "gpt-large")
    assert [endpoint.worker for endpoint in decided.endpoints] == ["openai"]


@pytest.mark.requirement("S0-2", "S0-34", "S1-3")
async def test_one_profile_behaves_like_no_profiles_at_all(buses: Buses) -> None:
    chain = {"pools": {"p": {"models": ["m"]}}}
    explicit = chain | {
        "profiles": {"only": {"request": ["scheduler"]}},
        "profile-picker": {"use": "single", "profile": "only"},
    }
    gateways = [Gateway(buses, yaml.safe_dump(chain))]
    await buses.meet()
    first = await gateways[0].send("m")
    await buses.close()
    other = Buses(buses.new_link)
    try:
        gateways.append(Gateway(other, yaml.safe_dump(explicit)))
        await other.meet()
        second = await gateways[1].send("m")
    finally:
        await other.close()
    for journey in (first, second):
        assert stages(journey) == ["preprocessor", "profile-picker"]
        assert [stage.service for stage in journey.itinerary] == ["scheduler"]
    assert first.target == second.target
    assert first.request.blocks == second.request.blocks
    assert first.body == second.body == ()


@pytest.mark.requirement("S0-13", "S0-16", "S0-41", "S1-52")
async def test_stages_before_and_after_selection_run_on_their_side_of_it(buses: Buses) -> None:
    config: dict[str, object] = {
        "pools": {"p": {"models": ["m"]}},
        "stages": {"before": {}, "after": {}},
        "selectors": {"s": {}},
        "profiles": {"only": {"request": ["before", "model-selector/s", "after", "scheduler"]}},
    }
    gateway = Gateway(buses, yaml.safe_dump(config), "before", "after")
    await buses.meet()
    journey = await gateway.send("auto")
    assert stages(journey) == ["preprocessor", "profile-picker", "before", "model-selector", "after"]


@pytest.mark.requirement("S0-7", "S4-17")
async def test_the_body_is_decoded_once_on_the_whole_way(gateway: Gateway) -> None:
    for number in range(3):
        await gateway.send("auto/own", user=f"u{number}")
    assert gateway.registry.get_sample_value("pointsman_json_decodes_total") == 3


@pytest.mark.requirement("S0-10")
async def test_everything_that_each_profile_needs_is_configured_once(gateway: Gateway) -> None:
    for headers in ({}, {"x-priority": "high"}, {"x-priority": "batch"}):
        journey = await gateway.send("llama-70b", headers | {"authorization": "Bearer s3cret"})
        assert HeaderEdit(name="authorization") in journey.headers


@pytest.mark.requirement("S0-15", "S0-23")
async def test_the_picker_runs_once_for_a_request(gateway: Gateway) -> None:
    journey = await gateway.send("auto/own")
    assert stages(journey).count("profile-picker") == 1
    assert journey.profile == "auto"


@pytest.mark.requirement("S0-50")
async def test_the_selector_reads_what_preprocessing_produced(buses: Buses) -> None:
    config = {
        "pools": {"p": {"models": ["m", "n"]}},
        "preprocessing": [{"use": "identity-headers", "fields": {"models": "x-pointsman-models"}}],
        "models": {"m": {"pool": "p", "groups": ["acme"]}, "n": {"pool": "p"}},
        "selectors": {"s": {"filters": ["allowed"]}},
        "profiles": {"only": {"request": ["model-selector/s", "scheduler"]}},
    }
    gateway = Gateway(buses, yaml.safe_dump(config))
    await buses.meet()
    for _ in range(5):
        assert chosen(await gateway.send("auto", {"x-pointsman-models": "group:acme"})) == ("only", "m")


@pytest.mark.requirement("S1-15")
async def test_a_header_alone_may_settle_the_pool(buses: Buses) -> None:
    """Rules on headers stand for the rules of an HTTP route; no rule is the default profile, or an error."""
    config: dict[str, object] = {
        "pools": {"a": {"models": ["small"]}, "b": {"models": ["large"]}},
        "selectors": {"a": {"models": ["small"]}, "b": {"models": ["large"]}},
        "profiles": {name: {"request": [f"model-selector/{name}", "scheduler"]} for name in ("a", "b")},
        "profile-picker": {
            "use": "rules",
            "rules": [
                {"when": f'headers["x-gateway-model-name"] == "{model}"', "profile": pool}
                for model, pool in (("small", "a"), ("large", "b"))
            ],
        },
    }
    gateway = Gateway(buses, yaml.safe_dump(config))
    await buses.meet()
    for model, pool in (("small", "a"), ("large", "b")):
        journey = await gateway.send("whatever", {"x-gateway-model-name": model})
        assert journey.target == Target(model=model, pool=pool)
    with pytest.raises(AssertionError):
        await gateway.send("whatever", {"x-gateway-model-name": "other"})
    [refused] = gateway.answers
    assert isinstance(refused, Rejection)
    assert (refused.stage, refused.code) == ("profile-picker", "no_profile")


async def test_the_blocks_of_a_request_for_auto_fit_the_pool_that_is_chosen(buses: Buses) -> None:
    """A prefix that a pool holds is found whether its model was named or selected."""
    config: dict[str, object] = {
        "pools": {
            "a": {"models": ["small"], "block_tokens": 64},
            "b": {"models": ["large"], "block_tokens": 16},
        },
        "selectors": {"s": {"models": ["large"]}},
        "profiles": {"named": {"request": ["scheduler"]}, "auto": {"request": ["model-selector/s", "scheduler"]}},
        "profile-picker": {
            "use": "rules",
            "rules": [{"when": 'model == "auto"', "profile": "auto"}],
            "default": "named",
        },
        "rewrites": [{"match": "alias", "to": "auto"}, {"match": "other", "to": "large"}],
    }
    gateway = Gateway(buses, yaml.safe_dump(config))
    await buses.meet()
    long: list[JsonValue] = [{"role": "user", "content": "a prompt of many blocks " * 40}]
    facts = [(await gateway.send(name, messages=long)).request for name in ("large", "auto", "alias", "other")]
    assert len(facts[0].blocks) >= 8 * 10
    for each in facts:
        assert (each.block_tokens, each.blocks, each.other_chains) == (16, facts[0].blocks, ())


@pytest.mark.requirement("S1-20")
async def test_a_rewritten_name_takes_the_way_of_its_model(buses: Buses) -> None:
    rewrites: list[object] = [
        {"match": "gpt-*", "to": {"llama-70b": 1, "llama-8b": 1}, "sticky": "session"},
        {"match": "gpt-auto", "to": "auto/own"},
        {"match": "own-8b", "to": "llama-8b"},
    ]
    gateway = Gateway(buses, yaml.safe_dump(yaml.safe_load(REFERENCE) | {"rewrites": rewrites}))
    await buses.meet()
    gateway.pools_are(0.2)
    journey = await gateway.send("gpt-auto")
    assert chosen(journey) == ("auto", "llama-8b")
    assert [edit for edit in journey.body if edit.field == "model"] == [BodyEdit(field="model", value="llama-8b")]
    assert journey.model == "gpt-auto"
    journey = await gateway.send("own-8b")
    assert chosen(journey) == ("standard", "llama-8b")
    assert HeaderEdit(name="x-gateway-model-name", value="llama-8b", tells="model") in journey.headers
    models = {number: chosen(await gateway.send("gpt-4", {"x-session-id": f"s{number % 8}"})) for number in range(16)}
    assert {profile for profile, _ in models.values()} == {"standard"}
    assert {model for _, model in models.values()} == {"llama-70b", "llama-8b"}
    assert all(models[number] == models[number + 8] for number in range(8))


async def test_a_prompt_goes_to_the_model_that_is_described_as_good_at_it_and_stays_where_it_was(buses: Buses) -> None:
    config: dict[str, object] = {
        "pools": {"p": {"models": ["coder", "writer"]}},
        "models": {
            "coder": {"pool": "p", "strengths": "programming, Python, debugging"},
            "writer": {"pool": "p", "strengths": "creative writing, stories, poems"},
        },
        "selectors": {"s": {"scorers": ["semantic-match"]}},
        "profiles": {"only": {"request": ["model-selector/s", "scheduler"]}},
    }
    gateway = Gateway(buses, yaml.safe_dump(config))
    await buses.meet()
    for text, model in (("Debug this Python loop", "coder"), ("Write a story", "writer")):
        asked: list[JsonValue] = [{"role": "user", "content": text}]
        journey = await gateway.send("auto", messages=asked)
        assert chosen(journey) == ("only", model)
        assert (journey.trail[-1].note or "").endswith("semantic-match: lexical")
        assert text.split()[-1].encode() not in journey.encode()


KEY: Final = "sk-canary-1"
ALLOWED: Final[JsonValue] = {
    "sha256": hashlib.sha256(KEY.encode()).hexdigest(), "tenant": "t", "models": ["m", "sql"],
}  # fmt: skip
CONTROL: Final[list[JsonValue]] = [
    {"use": "api-key-auth", "keys": [ALLOWED]},
    {"use": "request-limit", "per": ["tenant"], "rate": "3/h"},
]


@pytest.mark.requirement("S1-2")
@pytest.mark.parametrize("control", [True, False])
async def test_model_routing_scheduling_and_control_compose_and_control_can_be_off(buses: Buses, control: bool) -> None:
    """The duties of an inference gateway: bases and adapters routed to their pools, who may use what and how often,
    and a journey that the scheduler of the pool ends."""
    document = {
        "pools": {"p": {"models": ["m", "sql"], "loras": ["sql"]}, "q": {"models": ["other"]}},
        "preprocessing": CONTROL if control else [],
    }
    gateway = Gateway(buses, yaml.safe_dump(document))
    await buses.meet()
    known = {"authorization": f"Bearer {KEY}"}
    base, adapter = await gateway.send("m", known), await gateway.send("sql", known)
    assert (base.target, adapter.target) == (
        Target(model="m", pool="p"),
        Target(model="sql", pool="p", lora="sql", base="m"),
    )
    assert [stage.service for stage in base.itinerary] == ["scheduler"]
    tenant = base.request.attributes.get("identity")
    assert (tenant is not None) == control
    ended: list[int] = []
    for headers, model in (({}, "m"), (known, "other"), (known, "m"), (known, "m")):
        try:
            await gateway.send(model, headers)
        except AssertionError:
            answer = gateway.answers.pop()
            assert isinstance(answer, Rejection)
            ended.append(answer.status)
    # A forbidden request may or may not count against the limit.
    assert ended in ([[401, 403, 429], [401, 403, 429, 429]] if control else [[]])
