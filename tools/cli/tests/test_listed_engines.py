"""Engines that are added to a configuration and removed from it."""

import pytest

from pointsman_cli.engines.engines import EngineModels
from pointsman_cli.engines.listed_engines import added, removed
from pointsman_cli.words import CommandError
from pointsman_core.config import Config
from pointsman_runtime.configuring.config_text import parse

TEXT = """
pools:
  llama: {models: [llama, sql], loras: [sql]}
  listed: {models: [qwen], discovery: static, engines: ["http://a:1"]}
  pods: {models: [phi], discovery: kubernetes, kubernetes: {selector: {app: x}, ports: [8000]}}
"""
CONFIG = parse(TEXT)


def engine(url: str, *models: str, opaque: bool = False) -> EngineModels:
    return EngineModels(url, models, (), opaque)


def urls(config: Config, pool: str) -> list[str]:
    return [each.url for each in config.pools[pool].engines]


def test_an_engine_joins_the_pool_with_its_model_beside_agents_or_other_engines() -> None:
    for model, pool, after in (("llama", "llama", ["http://b:1"]), ("qwen", "listed", ["http://a:1", "http://b:1"])):
        change = added(TEXT, CONFIG, engine("http://b:1", model), None)
        assert (change.pool, change.new, urls(parse(change.text), pool)) == (pool, False, after)


def test_an_engine_of_a_new_model_gets_a_pool_which_goes_with_it() -> None:
    change = added(TEXT, CONFIG, engine("http://b:1", "mistral", opaque=True), None)
    config = parse(change.text)
    assert (change.pool, change.new) == ("mistral", True)
    [entry] = config.pools["mistral"].engines
    assert (entry.url, entry.engine) == ("http://b:1", "opaque")
    back = removed(change.text, config, "http://b:1")
    assert (back.new, parse(back.text)) == (True, CONFIG)


def test_removing_leaves_the_others_and_a_pool_of_agents_stays() -> None:
    both = parse(text := added(TEXT, CONFIG, engine("http://b:1", "qwen"), None).text)
    assert urls(parse(removed(text, both, "http://a:1").text), "listed") == ["http://b:1"]
    beside = parse(text := added(TEXT, CONFIG, engine("http://b:1", "llama"), None).text)
    assert parse(removed(text, beside, "b:1").text) == CONFIG, "by the worker's name too"


@pytest.mark.parametrize(
    ("new", "pool", "words"),
    [
        (engine("http://a:1", "qwen"), None, "is listed in the pool listed already"),
        (engine("http://b:1", "phi"), None, "finds its engines by `discovery: kubernetes`"),
        (engine("http://b:1", "llama"), "lama", "did you mean 'llama'"),
        (engine("http://b:1", "llama"), "pods", "discovery: kubernetes"),
    ],
)
def test_an_engine_that_can_not_be_added_is_refused_with_the_reason(
    new: EngineModels, pool: str | None, words: str
) -> None:
    with pytest.raises(CommandError, match=words):
        added(TEXT, CONFIG, new, pool)


def test_an_engine_that_is_not_listed_is_refused_with_the_nearest() -> None:
    with pytest.raises(CommandError, match=r"lists no engine http://a:2; did you mean 'http://a:1'"):
        removed(TEXT, CONFIG, "http://a:2")
