"""The answer of an engine or provider that encodes it though the gateway asks for none of that: nothing else could read
it."""

import zlib
from typing import Final

ENCODINGS: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})
"""Encodings that are undone."""
IDENTITY: Final = b"identity"
MOST: Final = 2**20
"""Bytes that are decoded at once."""
_MOST_OF_A_PIECE: Final = 2**25
"""A piece of at most some 64 KiB that becomes more than this is made to fill memory."""
_ANY_HEADER: Final = 32 + zlib.MAX_WBITS


class BadEncoding(Exception):
    """The bytes aren't in the encoding that they are said to have."""


class AnswerDecoder:
    """Undoes the encoding of one answer."""

    __slots__ = ("_inner",)

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_ANY_HEADER)

    @property
    def left(self) -> bytes:
        """Bytes that `part` was given and didn't decode yet."""
        return self._inner.unconsumed_tail

    def decode_part(self, data: bytes) -> bytes:
        """At most `MOST` bytes of what `data` becomes. Raises BadEncoding."""
        try:
            return self._inner.decompress(data, MOST)
        except zlib.error:
            raise BadEncoding("sent what isn't in the encoding that it named") from None

    def decode_bytes(self, data: bytes) -> bytes:
        """All that `data` becomes. Raises BadEncoding."""
        parts = [self.decode_part(data)]
        while self.left:
            parts.append(self.decode_part(self.left))
            if len(parts) * MOST > _MOST_OF_A_PIECE:
                raise BadEncoding(f"sent bytes that decode to more than {_MOST_OF_A_PIECE}")
        return b"".join(parts)
