"""The answers of engines, and the configuration that follows."""

import aiohttp
import pytest

from pointsman_cli.config.configuration import written
from pointsman_cli.engines.engines import EngineModels, ask, configuration, pool_of
from pointsman_cli.words import CommandError
from pointsman_core.config import SchedulingProfile, load
from pointsman_runtime.configuring.config_text import parse
from pointsman_testing.scripted_engine import Received, ScriptedEngine

METRICS = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"


async def an_engine(models: bytes, metrics: bytes | None = METRICS, status: int = 200) -> ScriptedEngine:
    async def answer(request: Received) -> None:
        if request.path == "/v1/models":
            await request.answer(models, status=status)
        else:
            await request.answer(metrics or b"", status=404 if metrics is None else 200, content_type="text/plain")

    return ScriptedEngine(answer)


async def test_a_card_with_a_parent_is_an_adapter_and_v1_is_no_part_of_the_url() -> None:
    cards = b'{"data": [{"id": "llama"}, {"id": "sql", "parent": "llama"}]}'
    async with await an_engine(cards) as engine, aiohttp.ClientSession() as http:
        assert await ask([f"{engine.url}/v1/"], http, None) == [EngineModels(engine.url, ("llama",), ("sql",))]


@pytest.mark.parametrize("metrics", [None, b"unheard_of:requests_processing 0\n", b"<html>"])
async def test_an_engine_without_metrics_that_are_known_is_opaque(metrics: bytes | None) -> None:
    async with await an_engine(b'{"data": [{"id": "llama"}]}', metrics) as engine, aiohttp.ClientSession() as http:
        (served,) = await ask([engine.url], http, None)
        assert served.opaque
        config = parse(written(configuration([served])))
        (listed,) = config.pools["llama"].engines
        assert (listed.url, listed.engine, listed.health) == (engine.url, "opaque", "/v1/models")
        assert pool_of(served, config) is None


@pytest.mark.parametrize(
    "document", [b"[]", b"<html>", b"{}", b'{"data": []}', b'{"data": [{"id": "x", "parent": "y"}]}']
)
async def test_an_answer_that_is_no_list_of_models_is_refused_with_the_url(document: bytes) -> None:
    async with await an_engine(document) as engine, aiohttp.ClientSession() as http:
        with pytest.raises(CommandError, match=f"{engine.url}/v1/models"):
            await ask([engine.url], http, None)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "'' isn't the URL of an engine"),
        ("127.0.0.1:8000", "isn't the URL of an engine"),
        ("nats://127.0.0.1:8000", "isn't the URL of an engine"),
        ("http://127.0.0.1:9", "http://127.0.0.1:9 can't be asked for its models: connection refused"),
    ],
)
async def test_an_engine_that_can_not_be_asked_is_reported_with_the_reason(url: str, words: str) -> None:
    async with aiohttp.ClientSession() as http:
        with pytest.raises(CommandError, match=words):
            await ask([url], http, None)


def test_engines_of_the_same_models_make_one_pool() -> None:
    engines = [
        EngineModels("http://a:1", ("llama", "mini"), ("sql",)),
        EngineModels("http://b:1", ("mini", "llama"), ("fr",)),
        EngineModels("http://c:1", ("qwen",), ()),
    ]
    config = parse(written(configuration(engines)))
    assert {name: pool.models for name, pool in config.pools.items()} == {
        "llama": ("llama", "mini", "fr", "sql"),
        "qwen": ("qwen",),
    }
    assert config.pools["llama"].loras == ("fr", "sql")
    assert [pool_of(engine, config) for engine in engines] == ["llama", "llama", "qwen"]


def test_engines_that_have_a_model_in_common_make_one_pool() -> None:
    engines = [
        EngineModels("http://a:1", ("llama", "qwen"), ()),
        EngineModels("http://b:1", ("gemma",), ()),
        EngineModels("http://c:1", ("llama", "mistral"), ()),
        EngineModels("http://d:1", ("mistral", "phi"), ()),
    ]
    config = parse(written(configuration(engines)))
    assert {name: pool.models for name, pool in config.pools.items()} == {
        "llama": ("llama", "mistral", "phi", "qwen"),
        "gemma": ("gemma",),
    }
    (profile,) = config.scheduling["default"].profiles.values()
    assert [use.use for use in profile.filters] == [*(use.use for use in SchedulingProfile().filters), "serves"]
    assert [pool_of(engine, config) for engine in engines] == ["llama", "gemma", "llama", "llama"]


def test_an_engine_joins_the_pool_with_most_of_its_models() -> None:
    config = load({"pools": {"one": {"models": ["a"]}, "both": {"models": ["b", "c"]}}})
    assert pool_of(EngineModels("http://a:1", ("a", "b", "c"), ()), config) == "both"


def test_an_engine_that_can_join_no_pool_is_reported_with_the_requirements() -> None:
    config = load(
        {
            "pools": {
                "llama": {"models": ["llama-8b"]},
                "far": {"models": ["qwen"], "discovery": "static", "engines": ["http://b:1"]},
            }
        }
    )
    with pytest.raises(CommandError, match=r"serves qwen, .* \(llama: llama-8b; far: qwen, by `discovery: static`\)"):
        pool_of(EngineModels("http://a:1", ("qwen",), ()), config)
    with pytest.raises(CommandError, match="no metrics of an engine"):
        pool_of(EngineModels("http://a:1", ("llama-8b",), (), opaque=True), config)


def test_a_worker_is_named_by_host_and_port() -> None:
    assert [EngineModels(url, (), ()).name for url in ("http://a:8000", "https://b.example")] == ["a:8000", "b.example"]
