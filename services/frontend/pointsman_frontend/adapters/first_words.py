"""Reads the beginning of an engine's answer before anything of it leaves: until it says something, another endpoint may
take the request."""

import time
from collections.abc import Callable
from typing import Final

from pointsman_apis.api import Api
from pointsman_apis.asked_choices import AskedChoices
from pointsman_apis.beginning import gives_up, may_give_up
from pointsman_apis.errors import SERVER_ERROR
from pointsman_apis.streams import lenient_document, without_mark
from pointsman_core.refusal import Refusal
from pointsman_edge.sending.error_shape import SaysNothing, error_in_place, is_silent, refusal_of
from pointsman_edge.sending.first_events import FirstEvents, InPlaceOfAnswer
from pointsman_edge.sending.moving_on import EMPTY, FAILED, failure_of
from pointsman_frontend.adapters.engine_connection import AnswerCutOff, EndpointFailed
from pointsman_frontend.adapters.kept_answer import AnsweredError, KeptAnswer
from pointsman_frontend.adapters.relay import WHOLE, Answering, gathered
from pointsman_frontend.adapters.relay import is_stream as labelled_stream
from pointsman_providers.exchange import FIRST_BYTES, first_bytes, is_stream
from pointsman_providers.reported_error import ProviderError

SecondOpinion = Callable[[float], bool]
"""Whether another endpoint is asked about an answer without a word, at this monotonic time."""

_ERROR: Final = 400
_GAVE_UP: Final = "the engine aborted the request"
_JSON: Final = [(b"content-type", b"application/json")]


async def beginning(
    engine: Answering,
    api: Api,
    content_type: bytes,
    thinking: Callable[[], None],
    *,
    moves: bool,
    doubts: SecondOpinion | None = None,
) -> tuple[bytes, bool]:
    """The beginning of an answer, and whether it is a stream, whatever it is labelled. `thinking` is called when
    something comes that says nothing. Raises EndpointFailed for a stream that says nothing, or an error; nothing of it
    has left then. `moves`: another endpoint can begin the request. `doubts`: whether it is to, where the stream has no
    word. Raises AnswerCutOff."""
    stream = labelled_stream(content_type)
    if engine.status >= _ERROR or (api.passed and not stream):
        return await engine.read(), stream
    begun = await engine.read()
    if stream is begun.startswith(b"{"):
        begun, stream = await looked_at(engine, content_type, begun)
    if stream:
        begun = await first_events(engine, begun, api, thinking, moves=moves, doubts=doubts)
    return begun, stream


async def first_events(
    engine: Answering,
    begun: bytes,
    api: Api,
    thinking: Callable[[], None],
    *,
    moves: bool = False,
    doubts: SecondOpinion | None = None,
) -> bytes:
    """The bytes of a stream up to its first event that says something. `begun`: those that were read. `moves`, `doubts`
    as above. Raises EndpointFailed for a stream that ends before, or with an error."""
    first = FirstEvents()
    held: list[bytes] = []
    data = begun or await _read(engine)
    while data:
        held.append(data)
        try:
            says = first.feed(data, last=engine.complete, past_finish=doubts is not None)
        except InPlaceOfAnswer as failed:
            raise _failed(api, failed.error) from None
        if says and first.is_noise and doubts is not None and doubts(time.monotonic()):
            raise EndpointFailed(EMPTY, "its answer is one character, over and over")
        if says and moves and first.is_given_up:
            raise EndpointFailed(FAILED, _GAVE_UP)
        if says and not (moves and first.is_empty):
            return b"".join(held)
        if says:
            break
        thinking()
        data = await _read(engine)
    if first.finished:
        _doubt(engine, b"".join(held), doubts)
        return b"".join(held)
    raise EndpointFailed(FAILED, "the stream ended before it said anything")


async def whole_body(
    engine: Answering, begun: bytes, api: Api, *, moves: bool, asked: AskedChoices, doubts: SecondOpinion | None = None
) -> bytes:
    """The start of the body that can be sent at once. `moves`, `doubts` as above; `asked`: the choices that it must
    have. Raises EndpointFailed for an error in place of an answer, and AnswerCutOff."""
    body = begun if engine.complete else await gathered(engine, begun)
    if len(body) <= WHOLE:
        body = without_mark(body)
    try:
        error = error_in_place(api, body) if len(body) <= WHOLE else None
    except SaysNothing as nothing:
        if moves:
            raise EndpointFailed(FAILED, str(nothing)) from None
        return body
    if error is not None:
        raise _failed(api, error)
    if moves and may_give_up(body) and gives_up(lenient_document(body) or {}):
        raise EndpointFailed(FAILED, _GAVE_UP)
    fault = asked.fault_of_whole(body) if len(body) <= WHOLE else ""
    if fault:
        raise _wrong_choices(api, engine.status, fault)
    if doubts is not None and is_silent(body):
        _doubt(engine, body, doubts)
    return body


def _doubt(engine: Answering, body: bytes, doubts: SecondOpinion | None) -> None:
    """Raises AnsweredError where another endpoint is to say whether the request has no other answer than this one,
    which has no word."""
    if doubts is not None and doubts(time.monotonic()):
        kept = KeptAnswer(engine.status, engine.headers, body)
        raise AnsweredError(EMPTY, engine.status, kept, "its answer has no word")


async def looked_at(engine: Answering, content_type: bytes, data: bytes) -> tuple[bytes, bool]:
    """The first bytes of an answer, and whether it is a stream of events, whatever its content type says. `data`: the
    bytes that are read already. Raises AnswerCutOff."""
    while len(first_bytes(data)) < FIRST_BYTES and not engine.complete and (more := await engine.read()):
        data += more
    return data, is_stream(content_type.decode("latin-1"), data)


async def _read(engine: Answering) -> bytes:
    try:
        return await engine.read()
    except AnswerCutOff as cut:
        raise EndpointFailed(cut.outcome, str(cut)) from None


def _wrong_choices(api: Api, status: int, fault: str) -> AnsweredError:
    """The failure of an engine whose answer has other choices than its request asked for."""
    message = f"The engine's answer isn't one to the request: {fault}."
    refusal = Refusal(502, message, type=SERVER_ERROR, code="engine_failed")
    return AnsweredError(FAILED, status, KeptAnswer(refusal.status, [*_JSON], api.error(refusal)), fault)


def _failed(api: Api, error: ProviderError) -> AnsweredError:
    """The failure of an engine that sent an error with status 200. It is the client's answer if no other endpoint does
    better."""
    refusal = refusal_of(error)
    outcome = failure_of(error.status) or FAILED
    return AnsweredError(outcome, error.status, KeptAnswer(refusal.status, [*_JSON], api.error(refusal)))
