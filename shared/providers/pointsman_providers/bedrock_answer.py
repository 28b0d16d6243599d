"""Converse's answers, whole or as AWS's event stream, as OpenAI's chat completions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from pydantic import JsonValue

from pointsman_apis.usage import token_count
from pointsman_contracts.response import SpecialTokens, Usage
from pointsman_core import lenient_json
from pointsman_providers import chat_answer
from pointsman_providers.call_ids import NO_NAMES
from pointsman_providers.chat_answer import AnswerCall, Chunks, Heading, Said, arguments_text, block_of
from pointsman_providers.error_status import status_of
from pointsman_providers.errors import BrokenAnswer, document, no_answer
from pointsman_providers.exchange import ProviderQuestion, StreamReader
from pointsman_providers.provider_events import Translator
from pointsman_providers.reported_error import ProviderError, read_error
from pointsman_providers.thoughts import Thought, ThoughtStream

if TYPE_CHECKING:
    from botocore.eventstream import EventStreamMessage

FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
"""OpenAI's `finish_reason` for each `stopReason`."""
_MALFORMED: Final = frozenset({"malformed_model_output", "malformed_tool_use"})
"""The stop reasons of answers that Bedrock itself couldn't read: a client would take one for a complete answer without
its tool call."""

Fields = Mapping[str, JsonValue]


class Converse:
    """Reads the answer to one call."""

    def __init__(self, question: ProviderQuestion, *, include_usage: bool, names: Mapping[str, str] = NO_NAMES) -> None:
        """`names`: the client's name of each tool that has another one for the provider."""
        self._model = question.model
        self._names = names
        self._heading = Heading(f"chatcmpl-{question.request_id}", question.now_s, question.asked)
        self._include_usage = include_usage
        self.usage: Usage | None = None
        self.reported: Usage | None = None
        """The usage for the client; None where a part of it isn't known."""

    def translate_whole(self, body: bytes) -> bytes:
        """Implements `AnswerReader.translate_whole`."""
        answer = document(body).fields
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[AnswerCall] = []
        details: list[JsonValue] = []
        match answer:
            case {"output": {"message": {"content": list(blocks)}}}:
                pass
            case _:
                raise no_answer(answer, "output")
        for block in blocks:
            match block:
                case {"text": str(text)}:
                    texts.append(text)
                case {"reasoningContent": {"reasoningText": {"text": str(text), **rest}}}:
                    thoughts.append(text)
                    if _text(rest.get("signature")):
                        details.append(self.detail(Thought(text, _text(rest.get("signature"))), len(details)))
                case {"reasoningContent": {"redactedContent": str(data)}}:
                    details.append(self.detail(Thought("", data, redacted=True), len(details)))
                case {"toolUse": {"name": str(name), **call}}:
                    told = self.told_name(name)
                    calls.append(AnswerCall(_text(call.get("toolUseId")), told, arguments_text(call.get("input"))))
                case _:
                    continue  # kinds that only a request in Bedrock's own words can ask for
        self.record_usage(answer.get("usage"))
        finish = _finish_reason(answer)
        said = Said("".join(texts), "".join(thoughts), calls, details)
        return chat_answer.document(self._heading, said, finish, self.reported)

    def detail(self, thought: Thought, index: int) -> JsonValue:
        """The entry of `reasoning_details` by which the thought comes back to this model."""
        return thought.detail(self._model, index)

    def told_name(self, name: str) -> str:
        """The client's name of a tool."""
        return self._names.get(name, name)

    def make_stream_reader(self) -> StreamReader:
        """Whether the client gets a stream of server-sent events."""
        return _ConverseStream(self, Chunks(self._heading, include_usage=self._include_usage))

    def record_usage(self, usage: JsonValue) -> None:
        if not isinstance(usage, dict):
            return
        fresh, output = token_count(usage.get("inputTokens")), token_count(usage.get("outputTokens"))
        read = token_count(usage.get("cacheReadInputTokens")) or 0
        written = token_count(usage.get("cacheWriteInputTokens")) or 0
        prompt = 0 if fresh is None else fresh + read + written
        # A count that can't be read is none.
        self.usage = Usage(
            prompt_tokens=prompt, completion_tokens=output or 0, cached_tokens=read, special=_written(written, usage)
        )
        self.reported = None if fresh is None or output is None else self.usage


def _finish_reason(fields: Fields) -> str:
    """OpenAI's word for why the answer ended. Raises BrokenAnswer where it is malformed."""
    reason = str(fields.get("stopReason"))
    if reason in _MALFORMED:
        message = f"The model's output can't be read: {reason}."
        error = ProviderError(status=502, kind=reason, type=None, message=message, param=None, more={})
        raise BrokenAnswer(f"stopped with {reason}", error)
    return FINISH.get(reason, "stop")


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


class _ConverseStream(Translator["EventStreamMessage"]):
    """AWS's event stream: binary messages with checksums, read by AWS's own library."""

    def __init__(self, answer: Converse, chunks: Chunks) -> None:
        from botocore.eventstream import EventStreamBuffer  # only those who use Bedrock pay for it

        super().__init__()
        self._answer = answer
        self._chunks = chunks
        self._buffer = EventStreamBuffer()
        self._thoughts = ThoughtStream()
        self._reasons: JsonValue = None
        """The block of the reasoning that came last."""
        self._stopped = False

    @property
    def has_begun(self) -> bool:
        return self._chunks.begun

    @property
    def finished(self) -> bool:
        """Whether every part of the answer is here; the mark at its end, or a report of usage, may follow."""
        return self._stopped

    def translate_bytes(self, data: bytes) -> bytes:
        from botocore.eventstream import ParserError

        self._buffer.add_data(data)  # pyright: ignore[reportUnknownMemberType] - botocore has no types
        try:
            return self.translate_events(self._buffer)
        except ParserError as error:
            raise BrokenAnswer(f"not an event stream: {type(error).__name__}") from None

    def translate_end(self) -> bytes:
        if self.broken is not None:
            raise self.broken
        if not self._stopped:
            raise BrokenAnswer("the stream ended early")
        return b"" if self.ended else self._end()

    def _end(self) -> bytes:
        self.ended = True
        return self._chunks.write_end(self._answer.reported)

    def _translate(self, each: "EventStreamMessage") -> bytes:
        if self.ended:
            return b""
        headers = cast("Fields", each.headers)
        payload = cast("bytes", each.payload)
        if headers.get(":message-type") != "event":
            raise _error(headers, payload)
        chunks = self._chunks
        fields = document(payload).fields
        block = block_of(fields.get("contentBlockIndex"))
        match headers.get(":event-type"), fields:
            case "contentBlockStart", {"start": {"toolUse": {"name": str(name), **call}}}:
                told = self._answer.told_name(name)
                return self._signed() + chunks.write_call(block, _text(call.get("toolUseId")), told, call.get("input"))
            case "contentBlockDelta", {"delta": {"text": str(text)}}:
                return self._signed() + chunks.write_text(text)
            case "contentBlockDelta", {"delta": {"reasoningContent": dict(reasoning)}}:
                return self._reason(block, reasoning)
            case "contentBlockDelta", {"delta": {"toolUse": {"input": str(text)}}}:
                return chunks.write_arguments(block, text)
            case "contentBlockStop", _:
                return self._signed() + chunks.call_ends(block)
            case "messageStop", fields if not self._stopped:
                self._stopped = True
                return self._signed() + chunks.write_finish(_finish_reason(fields))
            case "metadata", fields:
                self._answer.record_usage(fields.get("usage"))
                # It may come before the end of the message.
                return self._end() if self._stopped else b""
            case _:
                return b""  # the beginning, and kinds of events that may come

    def _signed(self) -> bytes:
        """The block of reasoning that has ended; its own end may not be told (earendil-works/pi #8314)."""
        thought = self._thoughts.end_block()
        return b"" if thought is None else self._chunks.write_detail(self._answer.detail(thought, self._thoughts.count))

    def _reason(self, block: JsonValue, delta: Fields) -> bytes:
        signed = b"" if block == self._reasons else self._signed()
        self._reasons = block
        text, redacted = _text(delta.get("text")), _text(delta.get("redactedContent"))
        if redacted:
            self._thoughts.add_redacted(redacted)
        else:
            self._thoughts.add_text(text, _text(delta.get("signature")))
        return signed + self._chunks.write_reasoning(text)


def _error(headers: Fields, payload: bytes) -> BrokenAnswer:
    """For a message that is an exception or an error."""
    kind = headers.get(":exception-type") or headers.get(":error-code")
    try:
        value, _ = lenient_json.read(payload)
    except ValueError:
        value = None
    error = read_error(value)
    if isinstance(kind, str):
        error = error._replace(kind=kind, status=status_of(kind) or error.status)
    return BrokenAnswer(f"the provider ended the stream with {kind or 'an error'}", error)


def _written(tokens: int, usage: Fields) -> SpecialTokens | None:
    """The tokens that the cache keeps from now on; `cacheDetails` tells for how long."""
    if not tokens:
        return None
    details = usage.get("cacheDetails")
    hours = [
        token_count(each.get("inputTokens")) or 0
        for each in (details if isinstance(details, list) else ())
        if isinstance(each, dict) and each.get("ttl") == "1h"
    ]
    return SpecialTokens(cache_write=tokens, cache_write_1h=sum(hours))
