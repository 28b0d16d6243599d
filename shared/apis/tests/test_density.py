"""Which bodies are too dense to decode."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_apis.requests import LOOK_ABOVE, check_density
from pointsman_core.refusal import Refusal


@pytest.mark.parametrize(
    "raw",
    [
        b"[" + b",".join([b"[]"] * 100_000) + b"]",
        b"[" + b",".join([b"{}"] * 100_000) + b"]",
        b"[" + b",".join([b"1"] * 300_000) + b"]",
        b"[" + b",".join([b'"a"'] * 300_000) + b"]",
        b"{" + b",".join([b'"a":[1]'] * 100_000) + b"}",
        b"[" * 200_000,
        b'"' + b"x" * LOOK_ABOVE + b'",' + b"1," * 300_000,
    ],
)
def test_a_dense_body_is_refused(raw: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        check_density(raw, 262_144)
    assert caught.value.code == "body_too_complex"


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 1000,
        b'{"a": "' + b"[],{}," * 200_000 + b'"}',
        b'{"a": "' + b'\\"[,' * 200_000 + b'"}',
        b'{"a": "' + b"[,{" * 200_000,
        b"[" + b",".join([b"1"] * 200_000) + b"]",
    ],
)
def test_a_long_text_is_not_dense_whatever_it_says(raw: bytes) -> None:
    check_density(raw, 262_144)


@given(
    st.recursive(
        st.integers(-(2**63), 2**64 - 1) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=30,
    )
)
def test_no_body_within_the_bounds_is_refused(value: JsonValue) -> None:
    values = containers = 0
    rest: list[JsonValue] = [value]
    while rest:
        item = rest.pop()
        values += 1
        if isinstance(item, list | dict):
            containers += 1
            rest += item.values() if isinstance(item, dict) else item
    padded = orjson.dumps([value, "[,{" * LOOK_ABOVE])
    check_density(padded, max(values + 4, 4 * (containers + 1)))
