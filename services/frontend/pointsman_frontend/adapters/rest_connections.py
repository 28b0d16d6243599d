"""The requests of one attempt to have an engine continue a stream, one after the other."""

import dataclasses
from array import array
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from pointsman_contracts.reply import ChosenEndpoint
from pointsman_edge.sending.encoded_answer import ENCODINGS
from pointsman_edge.sending.moving_on import FAILED
from pointsman_frontend.adapters.decoded_answer import DecodedAnswer
from pointsman_frontend.adapters.engine_call import rest_call
from pointsman_frontend.adapters.engine_client import EngineClient
from pointsman_frontend.adapters.engine_connection import AnswerCutOff, EndpointFailed
from pointsman_frontend.adapters.outgoing import Outgoing
from pointsman_frontend.adapters.relay import Answering
from pointsman_frontend.domain.resuming.question import Question

_ERROR: Final = 400
_CONTENT_ENCODING: Final = b"content-encoding"
_LONGEST_LIST: Final = 2**20
"""Bytes of a list of models."""
_LONGEST_TOKENS: Final = 2**24
"""Bytes of a list of token ids."""


class RestConnections:
    """The connections of one attempt, one after the other."""

    def __init__(
        self, engines: EngineClient, request: Outgoing, endpoint: ChosenEndpoint, traceparent: str | None
    ) -> None:
        self._engines = engines
        self._request = request
        self._endpoint = endpoint
        self._traceparent = traceparent
        self._release: Callable[[], None] | None = None

    async def ask_rest(self, question: Question) -> Answering:
        """Send a question. Raises EndpointFailed, for every error too."""
        body = msgspec.json.encode(question.body)
        return await self._send(b"POST", question.path.encode("ascii"), body)

    async def ask_models(self) -> bytes:
        """The engine's list of models. Raises EndpointFailed."""
        return await self._read_document(await self._send(b"GET", b"/v1/models", b""), _LONGEST_LIST)

    async def ask_tokens(self, question: Mapping[str, object]) -> "array[int]":
        """The token ids of a text or of a chat. Raises EndpointFailed."""
        engine = await self._send(b"POST", b"/tokenize", msgspec.json.encode(question))
        document = await self._read_document(engine, _LONGEST_TOKENS)
        try:
            return array("I", msgspec.json.decode(document, type=_Tokens).tokens)
        except (msgspec.DecodeError, OverflowError):
            raise EndpointFailed(FAILED, "its token ids can't be read") from None

    async def _read_document(self, engine: Answering, longest: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            while data := await engine.read():
                pieces.append(data)
                size += len(data)
                if size > longest:
                    raise EndpointFailed(FAILED, f"its answer has more than {longest} bytes")
        except AnswerCutOff as cut:
            raise EndpointFailed(cut.outcome, str(cut)) from None
        return b"".join(pieces)

    async def _send(self, method: bytes, path: bytes, body: bytes) -> Answering:
        self.give_back()
        call = rest_call(self._request, self._endpoint, self._traceparent, method=method, path=path, body=body)
        limits = self._request.record.policy.engine
        # The client is within its answer.
        limits = dataclasses.replace(limits, first_byte_s=min(limits.first_byte_s, limits.idle_s))
        engine = await self._engines.send(call, limits)
        self._release = lambda: self._engines.release_connection(engine)
        if engine.status >= _ERROR:
            raise EndpointFailed(FAILED, f"answered {engine.status}", engine.status)
        encoding = dict(engine.headers).get(_CONTENT_ENCODING, b"")
        return DecodedAnswer(engine) if encoding.strip().lower() in ENCODINGS else engine

    def give_back(self) -> None:
        """Give the last connection back."""
        release, self._release = self._release, None
        if release is not None:
            release()


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Model(msgspec.Struct):
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = msgspec.field(default_factory=list[_Model])


def longest_sequence(document: bytes) -> int:
    """The longest sequence that a list of models names, in tokens. Raises EndpointFailed where it names none."""
    try:
        lengths = [each.max_model_len for each in msgspec.json.decode(document, type=_Models).data]
    except msgspec.DecodeError:
        lengths = []
    known = [length for length in lengths if length is not None and length > 0]
    if not known:
        raise EndpointFailed(FAILED, "doesn't say how long a sequence may be")
    return min(known)
