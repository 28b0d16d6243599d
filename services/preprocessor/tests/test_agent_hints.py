"""Hints of agents: the priority that a request may get by them, and the length that they expect."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_contracts.journey import RequestFacts, StageReport
from pointsman_contracts.priority import BATCH_PRIORITY
from pointsman_core.config import load
from pointsman_plugins.preprocessing import Incoming
from pointsman_preprocessor.configuration import compile_pipeline
from pointsman_preprocessor.domain.pipeline import depart
from pointsman_preprocessor.domain.request_headers import HIGHEST_PRIORITY, read_headers
from pointsman_testing import builders

PIPELINE = compile_pipeline(load({}))
ALLOWED = {priority: compile_pipeline(load({"preprocessing": [{"use": "anonymous", "priority": priority}]}))
           for priority in (5, 10, 1000)}  # fmt: skip


def hinted(
    hints: JsonValue, headers: Mapping[str, str] | None = None, allowed: int = 0
) -> tuple[RequestFacts, str | None]:
    """The facts, and the note of the hints."""
    envelope = builders.preprocess_request(path="/v1/completions", headers=dict(headers or {}), request_id="r-1")
    document = {"model": "m", "prompt": "hi", "nvext": {"agent_hints": hints}}
    incoming = Incoming(envelope, parse(envelope.path, json.dumps(document).encode()), read_headers(envelope.headers))
    pipeline = ALLOWED[allowed] if allowed else PIPELINE
    assert pipeline.run(incoming) is None
    journey = depart(incoming, pipeline.build_facts(incoming), StageReport(stage="preprocessor", instance="i"))
    notes = [each.note for each in journey.trail if each.stage == "preprocessor/agent-hints"]
    return journey.request, notes[0] if notes else None


@given(st.integers(-(2**40), 2**40), st.sampled_from([0, 5, 10, 1000]))
def test_a_hint_lowers_a_priority_freely_and_raises_it_as_far_as_the_sender_may(wish: int, allowed: int) -> None:
    facts, note = hinted({"priority": wish}, allowed=allowed)
    assert facts.priority == max(-HIGHEST_PRIORITY, min(wish, allowed))
    assert (note is not None) == (wish > allowed)


def test_the_header_goes_before_the_body() -> None:
    assert hinted({"priority": 2}, {"x-dynamo-request-priority": "4"}, allowed=5)[0].priority == 4


@pytest.mark.parametrize(
    ("headers", "priority"), [({"x-pointsman-priority": "3"}, 3), ({"x-priority": "batch"}, BATCH_PRIORITY)]
)
def test_a_hint_does_not_change_the_priority_that_a_proxy_or_a_batch_has_set(
    headers: Mapping[str, str], priority: int
) -> None:
    assert hinted({"priority": 5}, headers, allowed=10)[0].priority == priority


def test_the_expected_length_is_told_beside_the_clients_own_limit() -> None:
    facts, note = hinted({"osl": 700})
    assert (facts.hinted_output_tokens, facts.max_output_tokens, note) == (700, None, None)
    assert hinted({"osl": 2**60})[0].hinted_output_tokens == 2**24


@pytest.mark.parametrize(
    "hints",
    [
        None,
        7,
        [],
        {"priority": "high", "osl": "many"},
        {"priority": True, "osl": False},
        {"priority": 1.5, "osl": 0.5},
        {"osl": -1},
        {"osl": [1]},
    ],
)
def test_a_hint_of_a_wrong_form_counts_for_nothing(hints: JsonValue) -> None:
    facts, note = hinted(hints)
    assert (facts.priority, facts.hinted_output_tokens) == (0, None)
    assert (note is not None) == isinstance(hints, dict)
    assert hinted({}, {"x-dynamo-request-priority": "soon"}, allowed=5)[0].priority == 0
