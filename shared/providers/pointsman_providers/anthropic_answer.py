"""Anthropic's messages, whole or streamed, as OpenAI's chat completions."""

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from pointsman_apis.streams import KEEP_ALIVE, StreamEvent
from pointsman_apis.usage import special_tokens, token_count
from pointsman_contracts.response import SpecialTokens, Usage
from pointsman_providers import chat_answer
from pointsman_providers.call_ids import NO_NAMES
from pointsman_providers.chat_answer import AnswerCall, Chunks, Heading, Said, arguments_text, block_of
from pointsman_providers.errors import document, no_answer
from pointsman_providers.exchange import ProviderQuestion, StreamReader
from pointsman_providers.provider_events import EventTranslator
from pointsman_providers.thoughts import Thought, ThoughtStream

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

    def __init__(self, question: ProviderQuestion, *, include_usage: bool, names: Mapping[str, str] = NO_NAMES) -> None:
        """`names`: the client's name of each tool that has another one for the provider."""
        self._question = question
        self._names = names
        self._include_usage = include_usage
        self.usage: Usage | None = None
        self.output_known = False
        """Whether the output's tokens were read last."""

    def translate_whole(self, body: bytes) -> bytes:
        """Implements `AnswerReader.translate_whole`."""
        message = document(body).fields
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[AnswerCall] = []
        details: list[JsonValue] = []
        blocks = message.get("content")
        if not isinstance(blocks, list):
            raise no_answer(message, "content")
        for block in blocks:
            match block:
                case {"type": "text", "text": str(text)}:
                    texts.append(text)
                case {"type": "thinking", "thinking": str(text), **rest}:
                    thoughts.append(text)
                    if _text(rest.get("signature")):
                        details.append(self.detail(Thought(text, _text(rest.get("signature"))), len(details)))
                case {"type": "redacted_thinking", "data": str(data)}:
                    details.append(self.detail(Thought("", data, redacted=True), len(details)))
                case {"type": "tool_use", "name": str(name), **call}:
                    told = self.told_name(name)
                    calls.append(AnswerCall(_text(call.get("id")), told, arguments_text(call.get("input"))))
                case _:
                    continue  # kinds that only a request in Anthropic's own words can ask for
        self.record_usage(message.get("usage"))
        finish = FINISH.get(str(message.get("stop_reason")), "stop")
        heading = self.make_heading(message)
        said = Said("".join(texts), "".join(thoughts), calls, details)
        return chat_answer.document(heading, said, finish, self.usage_for_client)

    def make_stream_reader(self) -> StreamReader:
        """Whether the client gets a stream of server-sent events."""
        return _MessageStream(self, Chunks(self.make_heading({}), include_usage=self._include_usage))

    def detail(self, thought: Thought, index: int) -> JsonValue:
        """The entry of `reasoning_details` by which the thought comes back to this model."""
        return thought.detail(self._question.model, index)

    def told_name(self, name: str) -> str:
        """The client's name of a tool."""
        return self._names.get(name, name)

    def make_heading(self, message: Fields) -> Heading:
        """The heading of the answer, with the id of this message."""
        identity = message.get("id")
        question = self._question
        name = identity if isinstance(identity, str) else f"chatcmpl-{question.request_id}"
        return Heading(name, question.now_s, question.asked)

    def record_usage(self, usage: JsonValue) -> None:
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
        prompt = 0 if fresh is None else fresh + (cached or 0) + (written or 0)
        output = token_count(usage.get("output_tokens"))
        cached = before.cached_tokens if cached is None else cached
        special = _special(usage, written, before.special)
        # The last event may repeat the prompt's count as zero, and a count that can't be read is none. Some services
        # count cached tokens among `input_tokens`, and tell them at the end alone (jeremychone/rust-genai #258).
        least = cached + (0 if special is None else special.cache_write)
        self.usage = Usage(
            prompt_tokens=max(prompt or before.prompt_tokens, least),
            completion_tokens=output or (0 if "output_tokens" in usage else before.completion_tokens),
            cached_tokens=cached,
            special=special,
        )
        self.output_known = output is not None

    @property
    def usage_for_client(self) -> Usage | None:
        """The usage for the client; None where a part of it isn't known."""
        return self.usage if self.output_known and self.usage is not None and self.usage.prompt_tokens else None


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def _special(usage: Fields, written: int | None, before: SpecialTokens | None) -> SpecialTokens | None:
    """The tokens with prices of their own, after a further report. A later count of cache writes holds, zero too
    (BerriAI/litellm #40845); the times for which they are kept, and the tier, may be told at the beginning alone."""
    if before is None:
        return special_tokens(usage)
    if written is None:
        return special_tokens(usage) or before
    told: dict[str, object] = {"service_tier": before.tier, **usage}
    if written == before.cache_write and "cache_creation" not in usage:
        told["cache_creation"] = {"ephemeral_1h_input_tokens": before.cache_write_1h}
    return special_tokens(told)


class _MessageStream(EventTranslator):
    def __init__(self, answer: Messages, chunks: Chunks) -> None:
        super().__init__()
        self._answer = answer
        self._chunks = chunks
        self._thoughts = ThoughtStream()
        self._finish: str | None = None
        """OpenAI's reason, once the provider has given one."""

    @property
    def has_begun(self) -> bool:
        return self._chunks.begun

    @property
    def finished(self) -> bool:
        return self._finish is not None

    def _end(self) -> bytes:
        self.ended = True
        return self._chunks.write_finish(self._finish or "stop") + self._chunks.write_end(self._answer.usage_for_client)

    def _translate(self, each: StreamEvent) -> bytes:
        if self.ended:
            return b""
        data = each.data.strip()
        if not data or data == b"[DONE]":  # some services with this API end streams as OpenAI does
            return each.comments
        message = document(data).fields
        if each.name == "error":
            raise no_answer(message, "type")
        chunks = self._chunks
        block = block_of(message.get("index"))
        match message:
            case {"type": "message_start", "message": dict(began)}:
                chunks.heading = self._answer.make_heading(began)
                self._answer.record_usage(began.get("usage"))
            case {"type": "content_block_start", "content_block": dict(begins)}:
                return self._begin(block, begins)
            case {"type": "content_block_delta", "delta": dict(delta)}:
                return self._go_on(block, delta)
            case {"type": "content_block_stop"}:
                thought = self._thoughts.end_block()
                signed = (
                    b"" if thought is None else chunks.write_detail(self._answer.detail(thought, self._thoughts.count))
                )
                return signed + chunks.call_ends(block)
            case {"type": "message_delta", "delta": dict(delta)}:
                reason = delta.get("stop_reason")
                if reason is not None:
                    self._finish = FINISH.get(str(reason), "stop")
                self._answer.record_usage(message.get("usage"))
            case {"type": "message_stop"}:
                return self._end()
            case {"type": "ping"}:
                return KEEP_ALIVE
            case _:
                pass  # the API may add kinds of events
        return b""

    def _begin(self, block: JsonValue, begins: dict[str, JsonValue]) -> bytes:
        match begins:
            case {"type": "tool_use", "name": str(name)}:
                told = self._answer.told_name(name)
                return self._chunks.write_call(block, _text(begins.get("id")), told, begins.get("input"))
            case {"type": "text", "text": str(text)}:
                return self._chunks.write_text(text)
            case {"type": "thinking", "thinking": str(text), **rest}:
                self._thoughts.add_text(text, _text(rest.get("signature")))
                return self._chunks.write_reasoning(text)
            case {"type": "redacted_thinking", "data": str(data)}:
                self._thoughts.add_redacted(data)
                return b""
            case _:
                return b""

    def _go_on(self, block: JsonValue, delta: dict[str, JsonValue]) -> bytes:
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                return self._chunks.write_text(text)
            case {"type": "thinking_delta", "thinking": str(text)}:
                self._thoughts.add_text(text, "")
                return self._chunks.write_reasoning(text)
            case {"type": "signature_delta", "signature": str(signature)}:
                self._thoughts.add_text("", signature)
                return b""
            case {"type": "input_json_delta", "partial_json": str(text)}:
                return self._chunks.write_arguments(block, text)
            case _:
                return b""
