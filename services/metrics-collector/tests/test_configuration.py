"""Configurations that the metrics-collector refuses."""

import pytest

from pointsman_core.config import ConfigError, load
from pointsman_engines.dialect import ENGINES
from pointsman_metrics_collector.configuration import check


def _config(engine: str) -> dict[str, object]:
    entry = {"url": "http://127.0.0.1:8000", "engine": engine}
    return {"pools": {"p": {"models": ["m"], "discovery": "static", "engines": [entry]}}}


@pytest.mark.parametrize("engine", ["auto", *ENGINES, "opaque"])
def test_every_engine_with_a_dialect_can_be_configured(engine: str) -> None:
    check(load(_config(engine)))


def test_an_engine_without_a_dialect_is_refused_with_the_known_ones() -> None:
    words = r"pools\.p\.engines\.0\.engine: unknown kind of engine 'vlm'; did you mean 'vllm'"
    with pytest.raises(ConfigError, match=words):
        check(load(_config("vlm")))
