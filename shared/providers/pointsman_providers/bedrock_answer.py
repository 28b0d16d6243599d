"""Converse's answers, whole or as AWS's event stream, as OpenAI's chat completions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from pydantic import JsonValue

from pointsman_contracts.response import Usage, token_count
from pointsman_providers import chat_answer
from pointsman_providers.chat_answer import Chunks, Heading
from pointsman_providers.chat_messages import ToolCall
from pointsman_providers.errors import BrokenAnswer, json_object
from pointsman_providers.exchange import ProviderQuestion, StreamReader

if TYPE_CHECKING:
    from botocore.eventstream import EventStreamMessage

FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "malformed_model_output": "stop",
    "malformed_tool_use": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
"""OpenAI's `finish_reason` for each `stopReason`."""

Fields = Mapping[str, JsonValue]


class Converse:
    """Reads the answer to one call."""

    def __init__(self, question: ProviderQuestion, *, include_usage: bool) -> None:
        self._heading = Heading(f"chatcmpl-{question.request_id}", question.now_s, question.asked)
        self._include_usage = include_usage
        self.usage: Usage | None = None

    def whole(self, body: bytes) -> bytes:
        """As `Answer.whole`."""
        answer = json_object(body)
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        match answer:
            case {"output": {"message": {"content": list(blocks)}}}:
                pass
            case _:
                raise BrokenAnswer("no message")
        for block in blocks:
            match block:
                case {"text": str(text)}:
                    texts.append(text)
                case {"reasoningContent": {"reasoningText": {"text": str(text)}}}:
                    thoughts.append(text)
                case {"toolUse": {"toolUseId": str(identity), "name": str(name), "input": dict(arguments)}}:
                    calls.append(ToolCall(identity, name, arguments))
                case _:
                    continue  # kinds that only a request in Bedrock's own words can ask for
        self.count(answer.get("usage"))
        finish = FINISH.get(str(answer.get("stopReason")), "stop")
        return chat_answer.document(self._heading, "".join(texts), "".join(thoughts), calls, finish, self.usage)

    def stream(self) -> StreamReader:
        """As `Answer.stream`."""
        return _ConverseStream(self, Chunks(self._heading, include_usage=self._include_usage))

    def count(self, usage: JsonValue) -> None:
        """Record usage."""
        if not isinstance(usage, dict):
            return
        fresh, output = token_count(usage.get("inputTokens")), token_count(usage.get("outputTokens"))
        if fresh is None or output is None:
            return
        read = token_count(usage.get("cacheReadInputTokens")) or 0
        written = token_count(usage.get("cacheWriteInputTokens")) or 0
        self.usage = Usage(prompt_tokens=fresh + read + written, completion_tokens=output, cached_tokens=read)


class _ConverseStream:
    """AWS's event stream: binary messages with checksums, read by AWS's own library."""

    def __init__(self, answer: Converse, chunks: Chunks) -> None:
        from botocore.eventstream import EventStreamBuffer  # only those who use Bedrock pay for it

        self._answer = answer
        self._chunks = chunks
        self._buffer = EventStreamBuffer()
        self._stopped = False
        self._done = False

    def feed(self, data: bytes) -> bytes:
        from botocore.eventstream import ParserError

        self._buffer.add_data(data)  # pyright: ignore[reportUnknownMemberType] - botocore has no types
        try:
            return b"".join(map(self._translate, self._buffer))
        except ParserError as error:
            raise BrokenAnswer(f"not an event stream: {type(error).__name__}") from None

    def end(self) -> bytes:
        if not self._stopped:
            raise BrokenAnswer("the stream ended early")
        return b"" if self._done else self._chunks.done(self._answer.usage)

    def _translate(self, message: "EventStreamMessage") -> bytes:
        headers = cast("Fields", message.headers)
        if headers.get(":message-type") != "event":
            raise BrokenAnswer(f"the provider ended the stream with {headers.get(':exception-type', 'an error')}")
        chunks = self._chunks
        match headers.get(":event-type"), json_object(cast("bytes", message.payload)):
            case "contentBlockStart", {"start": {"toolUse": {"toolUseId": str(identity), "name": str(name)}}}:
                return chunks.call(identity, name)
            case "contentBlockDelta", {"delta": {"text": str(text)}}:
                return chunks.text(text)
            case "contentBlockDelta", {"delta": {"reasoningContent": {"text": str(text)}}}:
                return chunks.reasoning(text)
            case "contentBlockDelta", {"delta": {"toolUse": {"input": str(text)}}}:
                return chunks.arguments(text)
            case "contentBlockStop", _:
                return chunks.call_ends()
            case "messageStop", fields:
                self._stopped = True
                return chunks.finish(FINISH.get(str(fields.get("stopReason")), "stop"))
            case "metadata", fields:
                self._done = True
                self._answer.count(fields.get("usage"))
                return chunks.done(self._answer.usage)
            case _:
                return b""  # the beginning, and kinds of events that may come
