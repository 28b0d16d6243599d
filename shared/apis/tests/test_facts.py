"""The facts of a body for stages and rules."""

import orjson
import pytest
from pydantic import JsonValue

from pointsman_apis.fields import TOP_P, Document, FieldReader
from pointsman_apis.passthrough import PASSED, UNKNOWN
from pointsman_apis.requests import StructuredBody, parse
from pointsman_contracts.journey import FIELDS_LIMIT
from pointsman_core.refusal import Refusal


def body(path: str, **fields: JsonValue) -> StructuredBody:
    return parse(path, orjson.dumps({"model": "m", **fields}))


def chat(content: JsonValue = "hi", **fields: JsonValue) -> StructuredBody:
    return body("/v1/chat/completions", messages=[{"role": "user", "content": content}], **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ()),
        ({"tools": []}, ()),
        ({"tools": [{"type": "function"}]}, ("tools",)),
        ({"functions": [{"name": "f"}]}, ("tools",)),
        ({"response_format": {"type": "json_schema"}}, ("json",)),
        ({"response_format": {"type": "text"}}, ()),
        ({"guided_json": {}}, ("json",)),
        ({"reasoning_effort": "high"}, ("reasoning",)),
        ({"logprobs": True}, ("logprobs",)),
        ({"content": [{"type": "image_url", "image_url": {"url": "u"}}]}, ("vision",)),
        ({"content": [{"type": "input_audio"}, {"type": "input_audio"}, {"type": "file"}]}, ("audio", "file")),
    ],
)
def test_a_request_says_what_it_needs_of_a_model(fields: dict[str, JsonValue], expected: tuple[str, ...]) -> None:
    assert chat(**fields).features == expected


def test_responses_ask_for_json_in_their_text_format() -> None:
    assert body("/v1/responses", input="x", text={"format": {"type": "json_schema"}}).features == ("json",)


def test_the_newer_limit_on_output_wins() -> None:
    assert chat().max_output_tokens is None
    assert chat(max_tokens=5).max_output_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=9).max_output_tokens == 9
    assert body("/v1/responses", input="x", max_output_tokens=7).max_output_tokens == 7
    assert body("/v1/completions", prompt="x", max_tokens=0).max_output_tokens == 0
    assert body("/v1/embeddings", input="x").max_output_tokens == 0


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (chat(), 1),
        (chat(n=None), 1),
        (chat(n=4), 4),
        (body("/v1/completions", prompt=["a", "b", "c"], n=2), 6),
        (body("/v1/completions", prompt=["a", "b"], n=2, best_of=5), 10),
        (body("/v1/completions", prompt=[1, 2, 3]), 1),
        (body("/v1/embeddings", input=["a", "b"]), 1),
        (body("/v1/responses", input="x", n=3), 1),
    ],
)
def test_answers_are_counted_by_choices_and_prompts(asked: StructuredBody, expected: int) -> None:
    assert asked.view.answers == expected


def test_rules_read_numbers_flags_and_identifiers_but_nothing_that_people_wrote() -> None:
    fields, _ = FieldReader({}).read(
        {
            "model": "llama-3.1-8b",
            "temperature": 0.5,
            "stream": True,
            "tier": "gold",
            "prompt": "word",
            "input": "word",
            "stop": "END",
            "system": "kind",
            "note": "free text with blanks",
            "long": "x" * 129,
            "list": ["a"],
            "nothing": None,
        }
    )
    assert fields == {"model": "llama-3.1-8b", "temperature": 0.5, "stream": True, "tier": "gold"}


def test_a_body_of_a_thousand_fields_stays_within_a_journey() -> None:
    assert len(FieldReader({}).read({f"f{number}": number for number in range(1000)})[0]) == FIELDS_LIMIT


def test_each_body_of_the_same_members_is_read_by_its_own_values() -> None:
    reader = FieldReader({"top_p": TOP_P}, in_prompt={"tools"}, output_limits=("most", "max_tokens"))

    def document(tier: str, top_p: float) -> Document:
        return {"tier": tier, "top_p": top_p, "tools": [], "stop": ["END"], "max_tokens": 3, "none": None}

    first, shape = reader.read(document("gold", 0.5))
    assert first == {"tier": "gold", "top_p": 0.5, "max_tokens": 3}
    assert (shape.nested, shape.limit) == (("stop",), "max_tokens")
    again, same = reader.read(document("written by people", 1.0))
    assert again == {"top_p": 1.0, "max_tokens": 3}
    assert same is shape
    with pytest.raises(Refusal, match="top_p"):
        reader.read(document("gold", 1.5))
    with pytest.raises(Refusal, match="top_p"):
        reader.read({**document("gold", 0.5), "top_p": "much"})


def test_names_of_many_clients_are_forgotten_and_long_ones_never_kept() -> None:
    reader = FieldReader({})
    one, two = reader.read({"a": 1})[1], reader.read({"a": 2})[1]
    assert one is two
    for number in range(1000):
        reader.read({f"f{number}": number})
    assert reader.read({"a": 1})[1] is not one
    long: Document = {"x" * 65: 1, "b": 2}
    assert reader.read(long)[0] == {"b": 2}
    assert reader.read(long)[1] is not reader.read(long)[1]


def test_an_api_that_is_passed_through_has_no_output_limit_of_its_own() -> None:
    assert not [api.name for api in (*PASSED, UNKNOWN) if api.output_limits]
