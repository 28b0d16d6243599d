"""What engines say, and the configuration that follows."""

import pytest

from pointsman_cli.configuration import written
from pointsman_cli.engines import Served, configuration, pool_of, read_models
from pointsman_cli.words import CommandError
from pointsman_core.config import load
from pointsman_runtime.config_text import parse


def test_a_card_with_a_parent_is_an_adapter() -> None:
    cards = {"data": [{"id": "llama"}, {"id": "sql", "parent": "llama"}, {"id": 7}]}
    assert read_models("http://e:8000", cards) == Served("http://e:8000", ("llama",), ("sql",))


@pytest.mark.parametrize(
    "document", [None, [], {}, {"data": "x"}, {"data": []}, {"data": [{"id": "x", "parent": "y"}]}]
)
def test_an_answer_that_is_no_list_of_models_is_refused_with_the_url(document: object) -> None:
    with pytest.raises(CommandError, match="http://e:8000/v1/models"):
        read_models("http://e:8000", document)


def test_engines_of_the_same_models_make_one_pool() -> None:
    engines = [
        Served("http://a:1", ("llama", "mini"), ("sql",)),
        Served("http://b:1", ("mini", "llama"), ("fr",)),
        Served("http://c:1", ("qwen",), ()),
    ]
    config = parse(written(configuration(engines)))
    assert {name: pool.models for name, pool in config.pools.items()} == {
        "llama": ("llama", "mini", "fr", "sql"),
        "qwen": ("qwen",),
    }
    assert config.pools["llama"].loras == ("fr", "sql")
    assert [pool_of(engine, config) for engine in engines] == ["llama", "llama", "qwen"]


def test_an_engine_that_no_pool_wants_is_told_what_pools_want() -> None:
    config = load({"pools": {"llama": {"models": ["llama-8b"]}}})
    with pytest.raises(CommandError, match=r"serves qwen, which no pool .* has \(llama: llama-8b\)"):
        pool_of(Served("http://a:1", ("qwen",), ()), config)


def test_a_worker_is_named_by_host_and_port() -> None:
    assert [Served(url, (), ()).name for url in ("http://a:8000", "https://b.example")] == ["a:8000", "b.example"]
