"""Vectors reach a client in the form that it asked for."""

import json
from array import array
from base64 import b64decode

from hypothesis import example, given
from hypothesis import strategies as st

from pointsman_edge.sending.model_name import renaming
from pointsman_edge.sending.packed_vectors import with_packed_vectors

ASKS = b'{"model":"e","input":["a"],"encoding_format": "base64"}'
VECTORS = st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5))


def answer(vectors: list[list[float]], indent: int | None) -> bytes:
    data = [{"object": "embedding", "index": at, "embedding": each} for at, each in enumerate(vectors)]
    document = {"object": "list", "model": "served", "data": data, "usage": {"prompt_tokens": 3}}
    return json.dumps(document, indent=indent).encode()


def unpacked(body: bytes) -> list[list[float]]:
    return [array("f", b64decode(each["embedding"])).tolist() for each in json.loads(body)["data"]]


@given(VECTORS, st.sampled_from([None, 1]), st.lists(st.integers(1, 40)))
@example(vectors=[[0.0]], indent=None, cuts=[1, 1, 1, 18, 40, 40])
def test_lists_become_base64_wherever_the_answer_is_cut(
    vectors: list[list[float]], indent: int | None, cuts: list[int]
) -> None:
    rewriting = with_packed_vectors(ASKS, renaming("served", "auto"))
    assert rewriting is not None
    body = answer(vectors, indent)
    whole = rewriting.rewrite_bytes(body)
    assert unpacked(whole) == vectors
    assert json.loads(whole)["model"] == "auto"
    passing = rewriting.in_pieces()
    assert passing is not None
    pieces: list[bytes] = []
    for cut in cuts:
        pieces.append(passing.rewrite_part(body[:cut]))
        body = body[cut:]
    pieces += (passing.rewrite_part(body), passing.rest())
    assert b"".join(pieces) == whole


def test_vectors_in_base64_pass_in_pieces_and_unchanged() -> None:
    rewriting = with_packed_vectors(ASKS, None)
    assert rewriting is not None
    body = b'{"data":[{"object":"embedding","embedding":"AAAA' + b"A" * 4000 + b'"}]}'
    passing = rewriting.in_pieces()
    assert passing is not None
    assert len(passing.rewrite_part(body[:2000])) > 1900
    assert rewriting.rewrite_bytes(body) == body


def test_numbers_beyond_32_bits_and_broken_lists_stay_as_they_are() -> None:
    rewriting = with_packed_vectors(ASKS, None)
    assert rewriting is not None
    for body in (b'{"embedding":[1e999,-]}', b'{"embedding":[]}', b'{"embedding":[[1.0],[2.0]]}'):
        assert rewriting.rewrite_bytes(body) == body


def test_a_client_that_asks_for_numbers_gets_them() -> None:
    assert with_packed_vectors(b'{"input":"\\"encoding_format\\":\\"base64\\""}', None) is None
    assert with_packed_vectors(b'{"encoding_format":"float"}', None) is None
