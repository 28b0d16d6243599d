"""Decodes bodies that clients send compressed (RFC 9110, section 8.4). A body never becomes longer than the limit:
a few kilobytes may stand for gigabytes."""

import io
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol, cast

import brotli
import zstandard

from pointsman_core.refusal import Refusal

MOST_CODINGS: Final = 2
"""Codings on top of each other."""
_WINDOW: Final = 8 * 2**20
"""Memory for the window of Zstandard, as browsers and RFC 8878 allow at least."""
_ALIASES: Final = {"x-gzip": "gzip"}


class _BrotliDecoder(Protocol):
    """Google's package has no types."""

    def process(self, data: bytes, *, output_buffer_limit: int) -> bytes: ...

    def can_accept_more_data(self) -> bool: ...

    def is_finished(self) -> bool: ...


_new_brotli_decoder: Final = cast("Callable[[], _BrotliDecoder]", vars(brotli)["Decompressor"])
_BrotliError: Final = cast("type[Exception]", vars(brotli)["error"])


class _Broken(Exception):
    """The body isn't what its header says."""


def codings_of(header: str | None, accepted: Collection[str]) -> tuple[str, ...]:
    """The codings of a body, in the order in which they were applied; none for `identity`. Raises Refusal 415 for one
    that isn't accepted."""
    if header is None:
        return ()
    names = [part.strip().lower() for part in header.split(",")]
    codings = [_ALIASES.get(name, name) for name in names if name not in ("", "identity")]
    if len(codings) > MOST_CODINGS or not set(codings) <= set(accepted):
        right = f"send it uncompressed, or as one of {', '.join(accepted)}" if accepted else "send it uncompressed"
        raise Refusal(415, f"The body's Content-Encoding isn't supported; {right}.", code="unsupported_encoding")
    return tuple(codings)


def decoded(body: bytes, codings: tuple[str, ...], limit: int) -> bytes:
    """The body without its codings. Raises Refusal: 400 when it isn't whole or of another coding, 413 when it has more
    than `limit` bytes."""
    for coding in reversed(codings):
        try:
            body = _DECODERS[coding](body, limit + 1)
        except (_Broken, zlib.error, _BrotliError, zstandard.ZstdError):
            raise Refusal(
                400,
                f"The body isn't whole, or isn't {coding} as its Content-Encoding says.",
                code="invalid_encoding",
            ) from None
        if len(body) > limit:
            raise Refusal(413, f"The body has more than {limit} bytes when it is decompressed.", code="body_too_large")
    return body


def _inflated(body: bytes, most: int, wbits: int) -> bytes:
    pieces: list[bytes] = []
    left = most
    # A gzip file may have several members.
    while body and left > 0:
        member = zlib.decompressobj(wbits)
        piece = member.decompress(body, left)
        pieces.append(piece)
        left -= len(piece)
        if left > 0 and not member.eof:
            raise _Broken
        body = member.unused_data if member.eof else b""
    return b"".join(pieces)


def _gzip(body: bytes, most: int) -> bytes:
    return _inflated(body, most, zlib.MAX_WBITS | 16)


def _deflate(body: bytes, most: int) -> bytes:
    try:
        return _inflated(body, most, zlib.MAX_WBITS)
    except zlib.error:
        # Some clients leave the zlib header out (RFC 9110, section 8.4.1.2).
        return _inflated(body, most, -zlib.MAX_WBITS)


def _zstd(body: bytes, most: int) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(
        io.BytesIO(body), read_across_frames=True
    )
    found = reader.read(most)
    if len(found) < most and zstandard.frame_content_size(body) > len(found):
        raise _Broken
    return found


def _brotli(body: bytes, most: int) -> bytes:
    decoder = _new_brotli_decoder()
    found = decoder.process(body, output_buffer_limit=most)
    pieces, size = [found], len(found)
    while size < most and not decoder.is_finished():
        if decoder.can_accept_more_data():
            raise _Broken
        found = decoder.process(b"", output_buffer_limit=most - size)
        pieces.append(found)
        size += len(found)
    return b"".join(pieces)


_DECODERS: Final[Mapping[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _gzip,
    "zstd": _zstd,
    "br": _brotli,
    "deflate": _deflate,
}
