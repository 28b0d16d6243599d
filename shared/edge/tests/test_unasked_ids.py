"""A client that didn't ask for token ids gets none, however an engine writes them and wherever the answer is split."""

import json
from typing import cast

from hypothesis import given
from hypothesis import strategies as some
from pydantic import JsonValue

from pointsman_apis.token_ids import without_ids
from pointsman_edge.sending.model_name import ModelName
from pointsman_edge.sending.unasked_ids import WithoutIds

NAMES: tuple[str, ...] = ("token_ids", "prompt_token_ids")
TEXTS = some.text(some.sampled_from('a"]}[,:{\\\n 7é'), max_size=8) | some.sampled_from(
    ('"token_ids":[7]', "token_ids", 'token_ids":[7', '\\"prompt_token_ids":[[7]]')
)


def as_json(value: object) -> JsonValue:
    return cast("JsonValue", value)


NUMBERS = some.integers(0, 2**31)
IDS = (some.lists(NUMBERS, max_size=6) | some.lists(some.lists(NUMBERS, max_size=3), max_size=3) | some.none()).map(
    as_json
)


def members(inner: some.SearchStrategy[JsonValue]) -> some.SearchStrategy[dict[str, JsonValue]]:
    plain: some.SearchStrategy[dict[str, JsonValue]] = some.dictionaries(
        some.sampled_from(("text", "index", "choices", "delta", "model")), inner, max_size=3
    )
    hidden: some.SearchStrategy[dict[str, JsonValue]] = some.dictionaries(some.sampled_from(NAMES), IDS, max_size=2)
    return some.builds(joined, plain, hidden)


def joined(first: dict[str, JsonValue], second: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return first | second


DOCUMENTS = members(
    some.recursive(
        TEXTS | some.integers(0, 99) | some.none(), lambda inner: members(inner) | some.lists(inner, max_size=3)
    )
)
WIDE = (" ,", " :\n")
FORMS = some.sampled_from(((",", ":"), (", ", ": "), WIDE))


def unasked(value: JsonValue) -> JsonValue:
    """As an engine answers that wasn't asked for ids."""
    if isinstance(value, dict):
        return {name: None if name in NAMES else unasked(each) for name, each in value.items()}
    return [unasked(each) for each in value] if isinstance(value, list) else value


def written(document: JsonValue, form: tuple[str, str]) -> bytes:
    return json.dumps(document, separators=form, ensure_ascii=False).encode()


@given(some.lists(some.tuples(DOCUMENTS, FORMS), min_size=1, max_size=3))
def test_events_have_no_ids(events: list[tuple[dict[str, JsonValue], tuple[str, str]]]) -> None:
    stream = b"".join(b"data: %b\r\r" % written(document, form) for document, form in events)
    passed = [json.loads(event[6:]) for event in without_ids(stream).split(b"\r\r")[:-1]]
    assert passed == [unasked(document) for document, _ in events]


@given(DOCUMENTS, FORMS, some.lists(some.integers(1, 90), max_size=9), some.booleans())
def test_a_document_that_passes_in_pieces_has_no_ids(
    document: dict[str, JsonValue], form: tuple[str, str], sizes: list[int], renamed: bool
) -> None:
    document |= {"choices": [{"token_ids": [*range(60)]}], "id": "x" * 90, "model": "served"}
    left = written(document, form)
    passing = WithoutIds(ModelName("served", "asked") if renamed else None).in_pieces()
    assert passing is not None
    got = b""
    for size in sizes:
        got += passing.rewrite_part(left[:size])
        left = left[size:]
    got += passing.rewrite_part(left) + passing.rest()
    expected = unasked(document)
    assert isinstance(expected, dict)
    if renamed and form != WIDE:
        expected["model"] = "asked"
    assert json.loads(got) == expected
