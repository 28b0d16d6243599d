"""Anthropic's messages, whole or streamed, as OpenAI's chat completions."""

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from pointsman_apis.streams import StreamEvent
from pointsman_contracts.response import Usage, token_count
from pointsman_providers import chat_answer
from pointsman_providers.chat_answer import Chunks, Heading
from pointsman_providers.chat_messages import ToolCall
from pointsman_providers.errors import BrokenAnswer, json_object
from pointsman_providers.exchange import ProviderQuestion, StreamReader
from pointsman_providers.provider_events import ProviderEvents

FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""OpenAI's `finish_reason` for each `stop_reason`."""

Fields = Mapping[str, JsonValue]


class Messages:
    """Reads the answer to one call."""

    def __init__(self, question: ProviderQuestion, *, include_usage: bool) -> None:
        self._question = question
        self._include_usage = include_usage
        self.usage: Usage | None = None

    def whole(self, body: bytes) -> bytes:
        """As `Answer.whole`."""
        message = json_object(body)
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        blocks = message.get("content")
        for block in blocks if isinstance(blocks, list) else []:
            match block:
                case {"type": "text", "text": str(text)}:
                    texts.append(text)
                case {"type": "thinking", "thinking": str(text)}:
                    thoughts.append(text)
                case {"type": "tool_use", "id": str(identity), "name": str(name), "input": dict(arguments)}:
                    calls.append(ToolCall(identity, name, arguments))
                case _:
                    continue  # kinds that only a request in Anthropic's own words can ask for
        self.count(message.get("usage"))
        finish = FINISH.get(str(message.get("stop_reason")), "stop")
        heading = self.heading(message)
        return chat_answer.document(heading, "".join(texts), "".join(thoughts), calls, finish, self.usage)

    def stream(self) -> StreamReader:
        """As `Answer.stream`."""
        return _MessageStream(self, Chunks(self.heading({}), include_usage=self._include_usage))

    def heading(self, message: Fields) -> Heading:
        """The heading of the answer, with the id of this message."""
        identity = message.get("id")
        question = self._question
        name = identity if isinstance(identity, str) else f"chatcmpl-{question.request_id}"
        return Heading(name, question.now_s, question.asked)

    def count(self, usage: JsonValue) -> None:
        """Record usage: a stream reports prompt tokens at its beginning, and the output so far until its end."""
        if not isinstance(usage, dict):
            return
        before = self.usage or Usage()
        cached, written = (
            token_count(usage.get("cache_read_input_tokens")),
            token_count(usage.get("cache_creation_input_tokens")),
        )
        fresh = token_count(usage.get("input_tokens"))
        # `input_tokens` are those after the last cache breakpoint; OpenAI's `prompt_tokens` are all.
        prompt = None if fresh is None else fresh + (cached or 0) + (written or 0)
        output = token_count(usage.get("output_tokens"))
        self.usage = Usage(
            prompt_tokens=before.prompt_tokens if prompt is None else prompt,
            completion_tokens=before.completion_tokens if output is None else output,
            cached_tokens=before.cached_tokens if cached is None else cached,
        )


class _MessageStream:
    def __init__(self, answer: Messages, chunks: Chunks) -> None:
        self._answer = answer
        self._chunks = chunks
        self._events = ProviderEvents()
        self._finish = "stop"
        self._ended = False

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._translate, self._events.feed(data)))

    def end(self) -> bytes:
        rest = b"".join(map(self._translate, self._events.end()))
        if not self._ended:
            raise BrokenAnswer("the stream ended early")
        return rest

    def _translate(self, each: StreamEvent) -> bytes:
        chunks = self._chunks
        message = json_object(each.data)
        match message:
            case {"type": "message_start", "message": dict(began)}:
                chunks.heading = self._answer.heading(began)
                self._answer.count(began.get("usage"))
            case {
                "type": "content_block_start",
                "content_block": {"type": "tool_use", "id": str(i), "name": str(name)},
            }:
                return chunks.call(i, name)
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}}:
                return chunks.text(text)
            case {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": str(text)}}:
                return chunks.reasoning(text)
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": str(text)}}:
                return chunks.arguments(text)
            case {"type": "content_block_stop"}:
                return chunks.call_ends()
            case {"type": "message_delta", "delta": dict(delta)}:
                reason = delta.get("stop_reason")
                self._finish = FINISH.get(str(reason), "stop")
                self._answer.count(message.get("usage"))
            case {"type": "message_stop"}:
                self._ended = True
                return chunks.finish(self._finish) + chunks.done(self._answer.usage)
            case {"type": "error"}:
                raise BrokenAnswer("the provider ended the stream with an error")
            case _:
                pass  # pings, signatures, and what may come: the API may add kinds of events
        return b""
