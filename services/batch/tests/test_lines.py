"""Input files are cut and checked alike, however their bytes arrive."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_batch.domain.lines import LineRefused, LineSplitter, LineTooLong, read_line
from pointsman_batch.domain.message_requests import line_of
from pointsman_batch.domain.request_array import ArrayRefused, RequestArray

ENDPOINT = "/v1/chat/completions"
TEXTS = st.text(alphabet=st.sampled_from('ab"\\[]{},: \u00e9\n'), max_size=12)
VALUES = st.recursive(
    TEXTS | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=5,
)
ELEMENTS = st.dictionaries(TEXTS, VALUES, max_size=3)
LINES = st.binary(max_size=20).map(lambda line: line.replace(b"\n", b" "))


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(cut, len(data)) for cut in cuts})
    return [data[begin:end] for begin, end in zip([0, *at], [*at, len(data)], strict=True)]


@given(lines=st.lists(LINES), cuts=st.lists(st.integers(0, 300)))
def test_lines_are_the_same_however_the_bytes_come(lines: list[bytes], cuts: list[int]) -> None:
    splitter = LineSplitter(100)
    found = [line for piece in pieces(b"\n".join(lines), cuts) for line in splitter.split_bytes(piece)]
    assert [*found, splitter.rest()] == (lines or [b""])


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    splitter = LineSplitter(10)
    assert not [*splitter.split_bytes(b"12345"), *splitter.split_bytes(b"12345")]
    with pytest.raises(LineTooLong):
        list(splitter.split_bytes(b"1"))


def test_a_line_that_is_too_long_is_named_by_its_place_in_the_file() -> None:
    splitter = LineSplitter(10)
    with pytest.raises(LineTooLong) as refused:
        list(splitter.split_bytes(b"1\n\n2\n12345678901"))
    assert refused.value.line == 4


@given(
    elements=st.lists(ELEMENTS, max_size=4),
    cuts=st.lists(st.integers(0, 400)),
    indent=st.sampled_from([None, 1]),
    others=st.booleans(),
)
def test_the_elements_of_a_document_are_the_same_however_the_bytes_come(
    elements: list[object], cuts: list[int], indent: int | None, others: bool
) -> None:
    document: dict[str, object] = {"requests": elements}
    if others:
        document = {"before": [{"requests": [{}]}], **document, "after": '{"requests": ['}
    data = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    array = RequestArray(10_000)
    found = [element for piece in pieces(data, cuts) for element in array.split_bytes(piece)]
    array.check_end()
    assert [json.loads(element) for element in found] == elements


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"requests": {}}', '{"requests": [1]}', '{"requests": [{}', "{]"])
def test_a_document_of_another_form_is_refused(text: str) -> None:
    array = RequestArray(100)
    assert not [each for each in array.split_bytes(text.encode()) if each != b"{}"]
    with pytest.raises(ArrayRefused):
        array.check_end()


@given(st.binary(max_size=60) | st.text().map(str.encode))
def test_no_line_raises_anything_but_its_refusal(data: bytes) -> None:
    with pytest.raises(LineRefused):
        read_line(data, 0, ENDPOINT)


def test_a_body_reaches_the_engine_as_it_was_written() -> None:
    body = b'{"model" : "m", "seed": 1.50, "messages":[]}'
    line = b'{"custom_id":"a","method":"POST","url":"%b","body":%b}' % (ENDPOINT.encode(), body)
    assert read_line(b"\xef\xbb\xbf" + line, 0, ENDPOINT).body == body


def test_a_message_request_becomes_a_line_that_is_taken() -> None:
    custom_id, line = line_of(b'{"custom_id": "a-1", "params": {"model": "m",\n "max_tokens": 1}}')
    read = read_line(line, 3, "/v1/messages")
    assert (custom_id, read.custom_id, read.model) == ("a-1", "a-1", "m")
    assert line.count(b"\n") == 1
