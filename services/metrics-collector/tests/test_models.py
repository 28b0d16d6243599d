"""Completions are put down to models by the names of the configuration."""

import pytest

from pointsman_contracts.journey import Target
from pointsman_contracts.message import read_fields
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.response import Attempt, ResponseCompleted, Usage
from pointsman_core.config import load
from pointsman_metrics_collector.domain.models import WINDOW_S, ModelNames, ModelWindow

CONFIG = load(
    {
        "pools": {"llama": {"models": ["sql-lora"]}, "any": {}},
        "providers": {"o": {"kind": "openai", "base_url": "https://o"}},
        "models": {
            "llama-3": {"pool": "llama", "served_as": "meta/llama-3"},
            "gpt": {"provider": "o", "served_as": "gpt-large"},
        },
    }
)
NAMES = ModelNames(CONFIG, lambda pool, model: (pool, model) == ("any", "reported"))


def completed(**changes: object) -> ResponseCompleted:
    fields: dict[str, object] = {
        "request_id": "r",
        "source": "edge-1",
        "sequence": 1,
        "at_ms": 0,
        "pool": "llama",
        "model": "auto",
        "target": Target(model="meta/llama-3", pool="llama"),
        "status": 200,
        "outcome": "ok",
        "stream": True,
        "ttft_ms": 100.0,
        "duration_ms": 1090.0,
        "usage": Usage(prompt_tokens=10, completion_tokens=100),
    }
    return read_fields(ResponseCompleted, fields | changes)


@pytest.mark.parametrize(
    ("changes", "pool", "model"),
    [
        ({}, "llama", "llama-3"),
        ({"target": Target(model="sql-lora", pool="llama", lora="sql-lora")}, "llama", "sql-lora"),
        ({"target": Target(model="gpt-large", provider="o"), "pool": "-"}, "-", "gpt"),
        ({"target": Target(model="reported", pool="any"), "pool": "any"}, "any", "reported"),
        ({"target": Target(model="reported", pool="llama")}, "llama", "other"),
        ({"target": None, "pool": "-", "model": "llama-3"}, "-", "llama-3"),
        ({"target": None, "pool": "-", "model": "from-a-client-7f3a"}, "-", "other"),
        ({"target": None, "pool": "-", "model": None}, "-", "other"),
        ({"pool": "unheard-of"}, "other", "llama-3"),
    ],
)
def test_a_completion_counts_under_configured_names(changes: dict[str, object], pool: str, model: str) -> None:
    message = completed(**changes)
    assert NAMES.find_served(message) == (pool, model)


def statistics(window: ModelWindow, now: float) -> ModelStatistics:
    return window.build_statistics("llama-3", now, source="c-1", sequence=1, at_ms=0)


def test_statistics_are_means_over_what_ended_well_and_counts_over_everything() -> None:
    window = ModelWindow()
    window.add_completion(completed(), 1000.0)
    window.add_completion(completed(ttft_ms=300.0, duration_ms=300.0, usage=Usage(completion_tokens=1)), 1001.0)
    window.add_completion(completed(stream=False, ttft_ms=900.0, usage=Usage(completion_tokens=49)), 1002.0)
    window.add_completion(completed(usage=None, ttft_ms=None), 1003.0)
    for outcome in ("engine_error", "cut_off", "timeout", "client_gone", "rejected"):
        window.add_completion(completed(outcome=outcome, ttft_ms=99999.0), 1004.0)
    assert statistics(window, 1005.0) == ModelStatistics(
        model="llama-3",
        source="c-1",
        sequence=1,
        at_ms=0,
        window_s=WINDOW_S,
        requests=9,
        errors=3,
        ttft_ms=200.0,
        itl_ms=10.0,
        output_tokens=50.0,
    )


def test_statistics_are_of_each_answer_where_a_request_had_several() -> None:
    window = ModelWindow()
    window.add_completion(completed(answers=4, usage=Usage(completion_tokens=400)), 1000.0)
    found = statistics(window, 1001.0)
    assert (found.requests, found.output_tokens, found.itl_ms) == (1, 100.0, 10.0)


def test_completions_leave_the_window_after_five_minutes() -> None:
    window = ModelWindow()
    for second in range(0, 400, 10):
        window.add_completion(completed(), 1000.0 + second)
    assert statistics(window, 1390.0).requests == 30
    assert statistics(window, 1390.0 + WINDOW_S / 2).requests == 15
    empty = statistics(window, 1400.0 + WINDOW_S)
    assert (empty.requests, empty.ttft_ms, empty.itl_ms, empty.output_tokens) == (0, None, None, None)


@pytest.mark.requirement("S0-53")
def test_a_provider_that_asks_for_a_pause_or_has_little_quota_left_is_known_for_it() -> None:
    window = ModelWindow()
    window.record_limit(
        Attempt(worker="o", outcome="limited", status=429, limited_until_ms=39_000, remaining=0.0), 9_000, 100.0
    )
    window.record_limit(Attempt(worker="o", outcome="answered", status=200, remaining=0.25), 19_000, 110.0)
    told = window.build_statistics("gpt", 111.0, source="c", sequence=1, at_ms=8_000)
    assert (told.limited_until_ms, told.remaining) == (27_000, 0.25)
    later = window.build_statistics("gpt", 171.0, source="c", sequence=2, at_ms=9_000)
    assert (later.limited_until_ms, later.remaining) == (None, None)


def test_a_shorter_pause_that_comes_later_does_not_end_a_longer_one() -> None:
    window = ModelWindow()
    for until_ms in (9_000, 5_000):
        window.record_limit(Attempt(worker="o", outcome="limited", status=429, limited_until_ms=until_ms), 4_000, 100.0)
    assert window.build_statistics("gpt", 100.0, source="c", sequence=1, at_ms=6_000).limited_until_ms == 11_000


def test_a_model_that_hands_a_request_on_has_failed_it_unless_it_only_asked_for_a_pause() -> None:
    window = ModelWindow()
    for outcome in ("failed", "refused", "limited", "unsupported"):
        window.count_failed(Attempt(worker="o", outcome=outcome), 100.0)
    told = window.build_statistics("gpt", 101.0, source="c", sequence=1, at_ms=0)
    assert (told.requests, told.errors) == (4, 2)
