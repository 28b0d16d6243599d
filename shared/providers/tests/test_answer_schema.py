"""Schemas of structured answers, and counts that a stream tells twice, as Anthropic's API has them."""

from typing import Any

import orjson
import pytest

from pointsman_apis.streams import named_event
from pointsman_core.config import Provider
from pointsman_providers.answer_schema import answer_schema
from pointsman_providers.kinds import KINDS
from pointsman_testing.provider_messages import ask

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 1, "description": "Years."},
        "names": {"type": "array", "items": {"type": "string", "pattern": "^x"}, "maxItems": 3, "minItems": 2},
        "minimum": {"oneOf": [{"type": "object", "properties": {}}, {"type": "null"}]},
    },
    "$defs": {"even": {"type": "number", "multipleOf": 2}},
}
TAKEN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "description": "Years. (minimum: 1)"},
        "names": {
            "type": "array",
            "items": {"type": "string", "description": '(pattern: "^x")'},
            "description": "(maxItems: 3; minItems: 2)",
        },
        "minimum": {"anyOf": [{"type": "object", "properties": {}, "additionalProperties": False}, {"type": "null"}]},
    },
    "$defs": {"even": {"type": "number", "description": "(multipleOf: 2)"}},
    "additionalProperties": False,
}


@pytest.mark.parametrize("kind", ["anthropic", "bedrock"])
def test_keywords_that_anthropic_refuses_are_told_in_words(kind: str) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    provider = Provider(kind="bedrock", region="eu-north-1") if kind == "bedrock" else Provider(kind="anthropic")
    body = orjson.loads(KINDS[kind].format(provider).translate_request(ask(response_format=form)).body)
    if kind == "anthropic":
        assert body["output_config"]["format"]["schema"] == TAKEN
    else:
        structure = body["outputConfig"]["textFormat"]["structure"]
        assert orjson.loads(structure["jsonSchema"]["schema"]) == TAKEN


def test_a_schema_that_anthropic_takes_stays_as_it_is() -> None:
    assert answer_schema(TAKEN) is TAKEN


START = {"input_tokens": 5, "cache_creation_input_tokens": 7, "output_tokens": 1}
HOURS = {**START, "cache_creation": {"ephemeral_1h_input_tokens": 7, "ephemeral_5m_input_tokens": 0}}
REPORTS: list[tuple[dict[str, Any], dict[str, Any], tuple[int, int, int, int]]] = [
    (START, {"input_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 0}, (12, 7, 0, 0)),
    (START, {"input_tokens": 5, "cache_creation_input_tokens": 7}, (12, 0, 7, 0)),
    (START, {}, (12, 0, 7, 0)),
    (HOURS, {"input_tokens": 5, "cache_creation_input_tokens": 7}, (12, 0, 7, 7)),
    ({"input_tokens": 3602}, {"cache_read_input_tokens": 3604, "cache_creation_input_tokens": 0}, (3604, 3604, 0, 0)),
    ({"input_tokens": 0}, {"input_tokens": 11}, (11, 0, 0, 0)),
]


@pytest.mark.parametrize(("first", "last", "counts"), REPORTS)
def test_the_last_counts_of_a_stream_hold(
    first: dict[str, Any], last: dict[str, Any], counts: tuple[int, int, int, int]
) -> None:
    answer = KINDS["anthropic"].format(Provider(kind="anthropic")).translate_request(ask(stream=True)).answer
    read = answer.make_stream_reader()
    message: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "usage": first}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {**last, "output_tokens": 3}},
        {"type": "message_stop"},
    ]
    for event in events:
        read.translate_bytes(named_event(event))
    usage = answer.usage
    assert usage is not None
    special = usage.special
    written = (0, 0) if special is None else (special.cache_write, special.cache_write_1h)
    assert (usage.prompt_tokens, usage.cached_tokens, *written) == counts
