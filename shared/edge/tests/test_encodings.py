"""Compressed bodies become what was compressed, and never more than the limit."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable, Mapping
from typing import Final, cast

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pointsman_core.refusal import Refusal
from pointsman_edge.taking_in.encodings import codings_of, decoded

brotli_compress: Final = cast("Callable[[bytes], bytes]", vars(brotli)["compress"])
ALL: Final = ("gzip", "zstd", "br", "deflate")
LIMIT: Final = 1000


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def in_frames(body: bytes) -> bytes:
    """Zstandard as streams write it: without the size, in two frames."""
    packer = zstandard.ZstdCompressor(write_content_size=False)
    return packer.compress(body[:9]) + packer.compress(body[9:])


PACKED: Final[Mapping[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip in two members": ("gzip", lambda body: gzip.compress(body[:7]) + gzip.compress(body[7:])),
    "zstd": ("zstd", zstandard.compress),
    "zstd in frames": ("zstd", in_frames),
    "br": ("br", brotli_compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without a header": ("deflate", raw_deflate),
}


@pytest.mark.parametrize("name", PACKED)
@given(body=st.binary(max_size=LIMIT) | st.integers(0, LIMIT).map(lambda size: b"ab" * (size // 2)))
def test_a_body_is_what_was_compressed(name: str, body: bytes) -> None:
    coding, pack = PACKED[name]
    assert decoded(pack(body), (coding,), LIMIT) == body


@pytest.mark.parametrize("name", PACKED)
def test_a_small_body_that_stands_for_a_large_one_is_refused_before_it_fills_the_memory(name: str) -> None:
    coding, pack = PACKED[name]
    packed = pack(bytes(40 * 2**20))
    tracemalloc.start()
    try:
        with pytest.raises(Refusal) as caught:
            decoded(packed, (coding,), 10**6)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (caught.value.status, caught.value.code) == (413, "body_too_large")
    assert most < 10 * 2**20


@pytest.mark.parametrize("name", ["gzip", "zstd", "br", "deflate"])
@given(st.data())
def test_a_body_that_is_cut_or_another_coding_is_refused(name: str, data: st.DataObject) -> None:
    coding, pack = PACKED[name]
    packed = pack(b'{"model": "m", "messages": []}' * 9)
    wrong = data.draw(
        st.integers(1, len(packed) - 1).map(lambda size: packed[:size]) | st.just(b'{"model": "m", "messages": []}')
    )
    with pytest.raises(Refusal) as caught:
        decoded(wrong, (coding,), LIMIT)
    assert (caught.value.status, caught.value.code) == (400, "invalid_encoding")
    assert coding in caught.value.message


def test_codings_on_top_of_each_other_are_taken_off_in_turn() -> None:
    body = b"hello"
    codings = codings_of("gzip , ZSTD", ALL)
    assert codings == ("gzip", "zstd")
    assert decoded(zstandard.compress(gzip.compress(body)), codings, LIMIT) == body


@pytest.mark.parametrize(("header", "codings"), [(None, ()), ("identity", ()), ("", ()), ("x-gzip", ("gzip",))])
def test_a_header_names_the_codings(header: str | None, codings: tuple[str, ...]) -> None:
    assert codings_of(header, ALL) == codings


@pytest.mark.parametrize("header", ["xz", "gzip, xz", "gzip, gzip, gzip", "\x00"])
def test_any_other_coding_is_refused_with_those_that_are_right(header: str) -> None:
    with pytest.raises(Refusal, match="gzip, zstd, br, deflate") as caught:
        codings_of(header, ALL)
    assert (caught.value.status, caught.value.code) == (415, "unsupported_encoding")
    with pytest.raises(Refusal, match="send it uncompressed"):
        codings_of("gzip", ())
