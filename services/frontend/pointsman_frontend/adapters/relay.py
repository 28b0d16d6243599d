"""Passes an engine's answer on to the client."""

from typing import Final, Protocol

from pointsman_apis.api import Api
from pointsman_apis.asked_choices import AskedChoices, FollowedChoices
from pointsman_apis.beginning import may_give_up
from pointsman_apis.errors import SERVER_ERROR
from pointsman_apis.stream_ends import missing_end, whole_event
from pointsman_apis.streams import DONE, WholeEvents
from pointsman_apis.usage import UsageTail
from pointsman_core.refusal import Refusal
from pointsman_edge.sending.error_shape import refusal_of, shaped_events
from pointsman_edge.sending.unasked_ids import WithoutIds
from pointsman_edge.sending.unasked_usage import Passing, Rewriting
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_frontend.adapters.engine_connection import AnswerCutOff
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_frontend.domain.resuming.resuming import Failure, Resuming, before_failure
from pointsman_providers.errors import CUT_OFF
from pointsman_providers.reported_error import ProviderError

WHOLE: Final = 2**20
"""An answer up to this many bytes that isn't a stream goes out in one piece, so that one that is cut off becomes an
error with a status; a larger one passes as it arrives."""

_LONGEST_EVENT: Final = 2**24
"""Bytes. An event with the token ids of a long prompt must not pass in pieces."""
_ERROR: Final = 400
_BETWEEN: Final = b"\n\n"
_ERROR_MEMBER: Final = b'"error"'
_EVENT_STREAM: Final = b"text/event-stream"


def is_stream(content_type: bytes) -> bool:
    """Whether an answer of this content type is a stream of server-sent events."""
    return content_type.lower().startswith(_EVENT_STREAM)


class Answering(Protocol):
    """An answer that has begun: an engine's, or a provider's translated into the client's API."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Headers:
        """Lower-case names."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the answer ends with the bytes that were read last."""
        ...

    async def read(self) -> bytes:
        """The next bytes of the body as they arrived, b"" at its end. Raises AnswerCutOff."""
        ...


class ResponseWriter(Protocol):
    """Takes the answer for a client: `answer`, or `start`, `write` and `end`."""

    @property
    def started(self) -> bool:
        """Whether status and headers have left."""
        ...

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers; they may leave with the first bytes of the body."""
        ...

    async def write(self, data: bytes) -> None:
        """A piece of the body."""
        ...

    async def end(self, data: bytes = b"") -> None:
        """The last piece."""
        ...

    async def fail(self, event: bytes) -> None:
        """The last event of a stream that can't go on."""
        ...

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole response."""
        ...


async def relay_stream(
    engine: Answering,
    client: ResponseWriter,
    headers: Headers,
    usage: UsageTail,
    name: Rewriting | None,
    api: Api,
    begun: bytes,
    asked: AskedChoices,
    resuming: Resuming | None = None,
) -> ProviderError | None:
    """Pass events on as they arrive; `begun` was read. Returns the error that the stream ended with. Raises
    AnswerCutOff; what the client has then ends with a whole event. `resuming`: another engine may continue it."""
    await client.start(engine.status, [*headers, (b"x-accel-buffering", b"no")])
    has_ids = resuming is not None or isinstance(name, WithoutIds)
    events = WholeEvents(_LONGEST_EVENT) if has_ids else WholeEvents()
    error: ProviderError | None = None
    failure: Failure | None = None
    kept = None if resuming is None else resuming.kept
    keep_usual = None if kept is None else kept.keep_usual
    choices = asked.follow_stream() if asked.several else None
    last, data, broken = b"", begun, False
    while data:
        usage.follow_bytes(data)
        whole = data if not events.size and data.endswith(_BETWEEN) else events.complete_events(data)
        if choices is not None:
            whole = choices.pass_events(whole)
        elif whole.endswith(DONE):
            _check_end(asked, usage.end)
        usual = None if keep_usual is None else keep_usual(whole)
        if usual is not None:
            whole = usual
        elif whole:
            has_error = whole.find(_ERROR_MEMBER) >= 0
            if kept is not None:
                if has_error or may_give_up(whole):
                    whole, failure = before_failure(whole)
                whole = kept.keep_events(whole)
                if failure is not None:
                    await client.write(whole if name is None else name.rewrite_bytes(whole))
                    raise AnswerCutOff(failure.why, None if failure.error is None else refusal_of(failure.error))
            if has_error:
                whole, error = shaped_events(api, whole, error)
        if choices is not None and choices.fault:
            await client.write(whole if name is None else name.rewrite_bytes(whole))
            raise AnswerCutOff(choices.fault)
        if engine.complete:
            # It leaves with the end of the answer.
            last = whole
            break
        if whole:
            await client.write(whole if name is None else name.rewrite_bytes(whole))
        try:
            data = await engine.read()
        except AnswerCutOff:
            # An engine that breaks off behind its answer has answered.
            broken = True
            lacks = _lacks(api, usage.end, resuming, choices, broken=True)
            if error is None and lacks is None:
                raise
            if lacks or not api.last_data:
                events.rest()
            break
    if not last.endswith(DONE):
        _check_end(asked, usage.end)
    lacks = b"" if error is not None else _lacks(api, usage.end, resuming, choices, broken=broken)
    rest = events.rest()
    if resuming is not None:
        # An event without its end isn't one yet.
        rest = resuming.kept.keep_events(whole_event(rest)) if rest and lacks is not None else b""
    last = whole_event(last + rest)
    if lacks:
        last += lacks if resuming is None else resuming.usage_due() + lacks
    last = last if name is None else name.rewrite_bytes(last)
    if lacks is None:
        await client.write(last)
        raise AnswerCutOff("the stream ended early")
    await client.end(last)
    return error


def _check_end(asked: AskedChoices, end: bytes) -> None:
    """Raises AnswerCutOff where a stream with these last bytes has choices that weren't asked for."""
    fault = asked.fault_of_end(end)
    if fault:
        raise AnswerCutOff(fault)


def _lacks(
    api: Api, end: bytes, resuming: Resuming | None, choices: FollowedChoices | None, *, broken: bool
) -> bytes | None:
    """The part of its end that an answer lacks (`missing_end`), judged by the whole answer where that is known."""
    if choices is not None and choices.lacks_a_choice():
        return None
    lacks = missing_end(api, end, broken=broken)
    # A stream of choices says by its last bytes that it is whole. To read all of it takes a third of a request's time.
    if resuming is None or (api.last_data and not lacks):
        return lacks
    return None if resuming.lacks_a_choice() else lacks or b""


async def relay_document(
    engine: Answering, client: ResponseWriter, headers: Headers, usage: UsageTail, name: Rewriting | None, body: bytes
) -> None:
    """Pass a document on. `body`: what is read of it already, which is all of it or more than `WHOLE`. Raises
    AnswerCutOff; then `client.started` says whether a part of it has left."""
    usage.follow_bytes(body)
    if len(body) <= WHOLE:
        status = engine.status
        if name is not None:
            body = name.rewrite_bytes(body) if status < _ERROR else name.put_in_error(body)
        await client.answer(status, headers, body)
        return
    passing = name.in_pieces() if name is not None else None
    if passing is None:
        await _relay_large(engine, client, headers, usage, body)
    else:
        await _relay_renamed(engine=engine, client=client, headers=headers, usage=usage, begun=body, name=passing)


async def gathered(engine: Answering, begun: bytes) -> bytes:
    """The start of the body that can be sent at once. Raises AnswerCutOff."""
    pieces = [begun]
    size = len(begun)
    while size <= WHOLE and (data := await engine.read()):
        pieces.append(data)
        size += len(data)
    return b"".join(pieces)


async def relay_pieces(
    engine: Answering, client: ResponseWriter, headers: Headers, usage: UsageTail, begun: bytes
) -> None:
    """Pass a body on as it arrives and as it is. Raises AnswerCutOff."""
    usage.follow_bytes(begun)
    await _relay_large(engine, client, headers, usage, begun)


async def _relay_large(
    engine: Answering, client: ResponseWriter, headers: Headers, usage: UsageTail, begun: bytes
) -> None:
    length = [header for header in engine.headers if header[0] == b"content-length"]
    await client.start(engine.status, [*headers, *length[:1]])
    await client.write(begun)
    while data := await engine.read():
        usage.follow_bytes(data)
        await client.write(data)
    await client.end()


async def _relay_renamed(
    engine: Answering, client: ResponseWriter, headers: Headers, usage: UsageTail, begun: bytes, name: Passing
) -> None:
    # In chunks: the length with the other name is only known at the end.
    await client.start(engine.status, headers)
    await client.write(name.rewrite_part(begun))
    while data := await engine.read():
        usage.follow_bytes(data)
        if passed := name.rewrite_part(data):
            await client.write(passed)
    await client.end(name.rest())


async def end_cut_off(record: RequestRecord, client: ResponseWriter, status: int, cut: AnswerCutOff) -> None:
    """End an answer that was cut off in the words of its API. Raises Refusal while none of it has left."""
    message = f"The engine stopped before its answer was complete; request id {record.request_id}."
    refusal = cut.refusal or Refusal(502, message, type=SERVER_ERROR, code=CUT_OFF)
    if not client.started:
        record.end("cut_off", refusal.status, str(cut), refusal.told_code)
        raise refusal
    record.end("cut_off", status, str(cut), refusal.told_code)
    if record.stream:
        await client.fail(record.api.error_event(refusal))
    # A document that has partly left can only stay unfinished; the server then closes the connection.
