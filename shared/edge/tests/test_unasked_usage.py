"""The usage that only the gateway wanted never shows."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_contracts.journey import BodyEdit
from pointsman_edge.sending.model_name import renaming
from pointsman_edge.sending.unasked_usage import WithoutUsage, without_unasked_usage

USAGE = {"prompt_tokens": 3, "completion_tokens": 5}
TEXTS = st.text(max_size=20) | st.just('{"choices":[],"usage":{}}')


def event(document: object, end: str) -> bytes:
    return f"data: {json.dumps(document)}{end}".encode()


@given(st.lists(TEXTS, max_size=5), st.sampled_from(["\n\n", "\r\n\r\n"]), st.integers(min_value=0, max_value=5))
def test_every_byte_but_the_usage_event_stays(texts: list[str], end: str, where: int) -> None:
    others = [event({"choices": [{"delta": {"content": text}}], "usage": None}, end) for text in texts]
    others.append(f"data: [DONE]{end}".encode())
    with_usage = [*others[:where], event({"choices": [], "usage": USAGE}, end), *others[where:]]
    assert WithoutUsage(None).rewrite_bytes(b"".join(with_usage)) == b"".join(others)


@pytest.mark.parametrize(
    "document",
    [
        '{"choices": [], "prompt_filter_results": []}',
        '{"choices": [], "usage": null}',
        '{"choices": [{"index": 0}], "usage": {"prompt_tokens": 3}}',
    ],
)
def test_an_event_that_has_more_than_usage_stays(document: str) -> None:
    data = f"data: {document}\n\n".encode()
    assert WithoutUsage(None).rewrite_bytes(data) == data


def test_it_is_done_only_where_the_gateway_asked_and_beside_what_else_is_to_do() -> None:
    name = renaming("served", "asked")
    asked = BodyEdit(field="stream_options", value={"include_usage": True})
    assert without_unasked_usage((asked,), name) is name
    unasked = without_unasked_usage((replace(asked, unasked=True),), name)
    assert unasked is not None
    both = b'data: {"model":"served","choices":[{}]}\n\n' + event({"choices": [], "usage": USAGE}, "\n\n")
    assert unasked.rewrite_bytes(both) == b'data: {"model":"asked","choices":[{}]}\n\n'
    assert unasked.put_in_error(b'{"message":"no served"}') == b'{"message":"no asked"}'
