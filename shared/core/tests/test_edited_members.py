"""A body edit changes the fields it names and no other byte."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_core.json_members import edit_fields

KEYS = st.text(max_size=4) | st.sampled_from(["model", "stream", 'a"b', "\\", "é", "\x00"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(body=st.dictionaries(KEYS, JSON, max_size=6), edits=st.dictionaries(KEYS, JSON | st.just(...), max_size=4),
       ascii_only=st.booleans(), indent=st.none() | st.integers(0, 2))  # fmt: skip
def test_an_edited_body_reads_as_the_edited_object(
    body: dict[str, object], edits: dict[str, object], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode()
    changed = edit_fields(text, {k: None if v is ... else json.dumps(v).encode() for k, v in edits.items()})
    expected = {k: v for k, v in (body | edits).items() if v is not ...}
    assert json.loads(changed) == expected


def test_every_byte_outside_the_edited_field_stays() -> None:
    body = b' { "x" : 1.50e+3 ,\n "model":"auto", "keep":[true,null,{"model":"inner"}] } '
    assert edit_fields(body, {"model": b'"llama"'}) == (
        b' { "x" : 1.50e+3 ,\n "model":"llama", "keep":[true,null,{"model":"inner"}] } '
    )


def test_a_repeated_key_is_changed_in_every_place() -> None:
    assert edit_fields(b'{"model":"a","m\\u006fdel":"b"}', {"model": b'"c"'}) == b'{"model":"c","m\\u006fdel":"c"}'


@pytest.mark.parametrize("body", [b"", b"[1]", b"3", b'{"a":1', b'"{}"'])
def test_something_else_than_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        edit_fields(body, {"a": b"1"})


def test_brackets_and_quotes_within_texts_are_no_structure() -> None:
    body = rb'{"a":{"t":"}\"]","u":["x]","{"]},"b":[["\\"],{},"\\\"["],"model":"m","c":{"model":"}"}}'
    assert edit_fields(body, {"model": b"1", "a": None}) == (rb'{"b":[["\\"],{},"\\\"["],"model":1,"c":{"model":"}"}}')
