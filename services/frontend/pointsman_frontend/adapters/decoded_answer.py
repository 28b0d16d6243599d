"""The answer of an engine that encodes it though the gateway asks for none of that, decoded."""

from typing import Final

from pointsman_edge.sending.encoded_answer import AnswerDecoder, BadEncoding
from pointsman_frontend.adapters.engine_connection import AnswerCutOff
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_frontend.adapters.relay import Answering

_GONE: Final = (b"content-encoding", b"content-length")


class DecodedAnswer:
    """Like `Answering`, of another one."""

    def __init__(self, engine: Answering) -> None:
        self._engine = engine
        self._decoder = AnswerDecoder()
        self.status = engine.status
        self.headers: Headers = [header for header in engine.headers if header[0] not in _GONE]

    @property
    def complete(self) -> bool:
        """Whether the answer ends with the bytes that were read last."""
        return self._engine.complete and not self._decoder.left

    async def read(self) -> bytes:
        """The next bytes of the body as they arrived, b"" at its end."""
        while True:
            data = self._decoder.left or await self._engine.read()
            if not data:
                return b""
            try:
                decoded = self._decoder.decode_part(data)
            except BadEncoding as bad:
                raise AnswerCutOff(str(bad)) from None
            if decoded or self.complete:
                return decoded
