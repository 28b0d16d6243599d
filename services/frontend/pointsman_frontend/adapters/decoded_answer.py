"""The answer of an engine that encodes it though the gateway asks for none of that: nothing could read it."""

import zlib
from typing import Final

from pointsman_frontend.adapters.engine_connection import AnswerCutOff
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_frontend.adapters.relay import Answering

DECODED: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})
"""Encodings that are undone."""
_ANY_HEADER: Final = 32 + zlib.MAX_WBITS
_MOST: Final = 2**20
"""Bytes that are decoded at once."""
_GONE: Final = (b"content-encoding", b"content-length")


class DecodedAnswer:
    """As `Answering`, of another one."""

    def __init__(self, engine: Answering) -> None:
        self._engine = engine
        self._decoder = zlib.decompressobj(_ANY_HEADER)
        self.status = engine.status
        self.headers: Headers = [header for header in engine.headers if header[0] not in _GONE]

    @property
    def complete(self) -> bool:
        """As `Answering.complete`."""
        return self._engine.complete and not self._decoder.unconsumed_tail

    async def read(self) -> bytes:
        """As `Answering.read`."""
        while True:
            data = self._decoder.unconsumed_tail or await self._engine.read()
            if not data:
                return b""
            try:
                decoded = self._decoder.decompress(data, _MOST)
            except zlib.error:
                raise AnswerCutOff("sent what isn't in the encoding that it named") from None
            if decoded or self.complete:
                return decoded
