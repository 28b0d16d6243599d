"""JSON objects that have a member twice."""

import json
from typing import cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_core.json_members import duplicate_member, has_duplicate_member

NAMES = st.one_of(st.sampled_from(["a", "b", ":", "é", '"', "\\u003a"]), st.text(max_size=3))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), NAMES)


class Members(list[tuple[str, object]]):
    """An object with its members in order, some perhaps twice."""


VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(st.tuples(NAMES, inner), max_size=4).map(lambda each: Members(each))
    ),
    max_leaves=12,
)


def written(value: object, ascii_only: bool, space: str) -> str:
    if isinstance(value, Members):
        inner = (
            f"{written(name, ascii_only, '')}{space}:{space}{written(member, ascii_only, space)}"
            for name, member in value
        )
        return "{" + f"{space},".join(inner) + "}"
    if isinstance(value, list):
        items = [written(item, ascii_only, space) for item in cast("list[object]", value)]
        return f"[{f',{space}'.join(items)}]"
    text = json.dumps(value, ensure_ascii=ascii_only)
    return text.replace(":", "\\u003a") if ascii_only and space else text


def twice(value: object) -> bool:
    if isinstance(value, Members):
        names = [name for name, _ in value]
        return len(names) != len(set(names)) or any(twice(member) for _, member in value)
    return isinstance(value, list) and any(twice(item) for item in cast("list[object]", value))


@given(VALUES, st.booleans(), st.sampled_from(["", " ", "\n\t"]))
def test_a_member_that_occurs_twice_is_found_however_the_text_is_written(
    value: object, ascii_only: bool, space: str
) -> None:
    raw = written(value, ascii_only, space).encode("utf-8", "surrogatepass")
    try:
        document: object = orjson.loads(raw)
    except orjson.JSONDecodeError:  # a surrogate alone
        return
    assert has_duplicate_member(raw, document) is twice(value)
    assert has_duplicate_member(memoryview(raw), document) is twice(value)
    assert (duplicate_member(raw) is not None) is twice(value)


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b'{"a": 1, "b": [{"c": 1, "c": 2}]}', "c"),
        (b'{"a":1,"\\u0061":2}', "a"),
        (b'{"x\\u003a": {}, "x:": 1e400000}', "x:"),
        (b'{"a": {"a": {"a": 1}}, "b": ":"}', None),
    ],
)
def test_the_member_is_named(raw: bytes, name: str | None) -> None:
    assert duplicate_member(raw) == name
