"""Writes OpenAI's chat completions: the whole document, or chunk by chunk."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from pointsman_apis.streams import DONE, event
from pointsman_contracts.response import Usage
from pointsman_providers.chat_messages import ToolCall


class Heading(NamedTuple):
    """The fields of the document and of every chunk."""

    id: str
    created: int
    model: str


def document(
    heading: Heading, text: str, reasoning: str, calls: Sequence[ToolCall], finish_reason: str, usage: Usage | None
) -> bytes:
    """A `chat.completion` with one choice."""
    message: dict[str, object] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": orjson.dumps(call.arguments).decode()},
            }
            for call in calls
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    return orjson.dumps(
        {
            "id": heading.id,
            "object": "chat.completion",
            "created": heading.created,
            "model": heading.model,
            "choices": [choice],
            "usage": None if usage is None else _usage(usage),
        }
    )


class Chunks:
    """Writes the chunks of one answer. The role goes out with the first content, so that an error before it is still
    an answer that never began."""

    def __init__(self, heading: Heading, *, include_usage: bool) -> None:
        self.heading: Heading = heading
        self._include_usage: Final = include_usage
        self._begun = False
        self._calls = -1
        self._bare = False

    def text(self, text: str) -> bytes:
        """A piece of the answer's text."""
        return self._chunk({"content": text})

    def reasoning(self, text: str) -> bytes:
        """A piece of the reasoning."""
        return self._chunk({"reasoning_content": text})

    def call(self, identity: str, name: str) -> bytes:
        """A tool call begins."""
        self._calls += 1
        self._bare = True
        function = {"name": name, "arguments": ""}
        entry = {"index": self._calls, "id": identity, "type": "function", "function": function}
        return self._chunk({"tool_calls": [entry]})

    def arguments(self, text: str) -> bytes:
        """A piece of the call's arguments."""
        self._bare = self._bare and not text
        return self._chunk({"tool_calls": [{"index": self._calls, "function": {"arguments": text}}]}) if text else b""

    def call_ends(self) -> bytes:
        """A tool call without arguments still has JSON for them."""
        return self.arguments("{}") if self._bare else b""

    def finish(self, reason: str) -> bytes:
        """The answer is complete."""
        return self._chunk({}, reason)

    def done(self, usage: Usage | None) -> bytes:
        """The end of the stream."""
        if not self._include_usage or usage is None:
            return DONE
        return event(orjson.dumps({**self._head(), "choices": [], "usage": _usage(usage)})) + DONE

    def _chunk(self, delta: dict[str, object], reason: str | None = None) -> bytes:
        if not self._begun:
            self._begun = True
            delta = {"role": "assistant", **({} if "content" in delta else {"content": ""}), **delta}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return event(orjson.dumps({**self._head(), "choices": [choice]}))

    def _head(self) -> dict[str, object]:
        heading = self.heading
        return {
            "id": heading.id,
            "object": "chat.completion.chunk",
            "created": heading.created,
            "model": heading.model,
        }


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
