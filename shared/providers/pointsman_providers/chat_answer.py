"""Writes OpenAI's chat completions: the whole document, or chunk by chunk."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson
from pydantic import JsonValue

from pointsman_apis.streams import DONE, event
from pointsman_contracts.response import Usage
from pointsman_core.lenient_json import write


class Heading(NamedTuple):
    """The fields of the document and of every chunk."""

    id: str
    created: int
    model: str


class AnswerCall(NamedTuple):
    """A tool call in an answer."""

    id: str
    name: str
    arguments: str
    """JSON."""


class Said(NamedTuple):
    """The parts of a whole answer."""

    text: str
    reasoning: str
    calls: Sequence[AnswerCall]
    details: Sequence[JsonValue] = ()
    """Entries of `reasoning_details`."""


def document(heading: Heading, said: Said, finish_reason: str, usage: Usage | None) -> bytes:
    """A `chat.completion` with one choice."""
    text, reasoning, calls, details = said
    message: dict[str, object] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if details:
        message["reasoning_details"] = list(details)
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id or f"call_{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(calls)
        ]
    finish_reason = _true_reason(finish_reason, calls=bool(calls))
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    return write(
        {
            "id": heading.id,
            "object": "chat.completion",
            "created": heading.created,
            "model": heading.model,
            "choices": [choice],
            "usage": None if usage is None else _usage(usage),
        }
    )


class _Call:
    """A tool call whose arguments come in pieces, as a whole at its beginning, or not at all."""

    __slots__ = ("given", "number", "open")

    def __init__(self, number: int, given: str) -> None:
        self.number = number
        self.given = given
        """The arguments that came with its beginning; they count if no others come."""
        self.open = True


class Chunks:
    """Writes the chunks of one answer. The role goes out with the first content, so that an error before it is still
    an answer that never began."""

    def __init__(self, heading: Heading, *, include_usage: bool) -> None:
        self.heading: Heading = heading
        self._include_usage: Final = include_usage
        self.begun = False
        """Something of the answer has gone out."""
        self._calls: dict[object, _Call] = {}
        """By the blocks that they are."""

    def write_text(self, text: str) -> bytes:
        """A piece of the answer's text."""
        return self._chunk({"content": text}) if text else b""

    def write_reasoning(self, text: str) -> bytes:
        """A piece of the reasoning."""
        return self._chunk({"reasoning_content": text}) if text else b""

    def write_detail(self, entry: JsonValue) -> bytes:
        """An entry of `reasoning_details`, which a client sends back with the answer."""
        return self._chunk({"reasoning_details": [entry]})

    def write_call(self, block: object, identity: str, name: str, given: JsonValue = None) -> bytes:
        """The tool call that a block is begins. `given`: its arguments, if they come with it."""
        number = len(self._calls)
        call = self._calls[block] = _Call(number, arguments_text(given))
        function = {"name": name, "arguments": ""}
        entry = {"index": call.number, "id": identity or f"call_{number}", "type": "function", "function": function}
        return self._chunk({"tool_calls": [entry]})

    def write_arguments(self, block: object, text: str) -> bytes:
        """A piece of the arguments of a block's call; of the last one that began, if the provider doesn't say of
        which."""
        call = self._calls.get(block) or (next(reversed(self._calls.values()), None) if block is None else None)
        if call is None or not text:
            return b""
        call.given = ""
        return self._arguments(call, text)

    def call_ends(self, block: object) -> bytes:
        """The block is complete. A call without arguments still has JSON for them."""
        call = self._calls.get(block)
        if call is None or not call.open:
            return b""
        call.open = False
        return self._arguments(call, call.given) if call.given else b""

    def write_finish(self, reason: str) -> bytes:
        """The answer is complete."""
        rest = b"".join(map(self.call_ends, list(self._calls)))
        return rest + self._chunk({}, _true_reason(reason, calls=bool(self._calls)))

    def write_end(self, usage: Usage | None) -> bytes:
        """The end of the stream."""
        if not self._include_usage or usage is None:
            return DONE
        return event(orjson.dumps({**self._head(), "choices": [], "usage": _usage(usage)})) + DONE

    def _arguments(self, call: _Call, text: str) -> bytes:
        return self._chunk({"tool_calls": [{"index": call.number, "function": {"arguments": text}}]})

    def _chunk(self, delta: dict[str, object], reason: str | None = None) -> bytes:
        if not self.begun:
            self.begun = True
            delta = {"role": "assistant", **({} if "content" in delta else {"content": ""}), **delta}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return event(write({**self._head(), "choices": [choice]}))

    def _head(self) -> dict[str, object]:
        heading = self.heading
        return {
            "id": heading.id,
            "object": "chat.completion.chunk",
            "created": heading.created,
            "model": heading.model,
        }


def _true_reason(reason: str, *, calls: bool) -> str:
    """The `finish_reason` that fits the answer. Some services say `end_turn` of an answer that calls tools (bifrost
    #5206), or `tool_use` of one that calls none (strands-env #252)."""
    if reason == "stop" and calls:
        return "tool_calls"
    return "stop" if reason == "tool_calls" and not calls else reason


def block_of(index: JsonValue) -> int | None:
    """The block that an event names; None where it names none."""
    return index if isinstance(index, int) else None


def arguments_text(given: JsonValue) -> str:
    """Arguments as OpenAI writes them: JSON in a text. Some services send them so, or none."""
    if isinstance(given, str):
        return given or "{}"
    return write({} if given is None else given).decode()


def _usage(usage: Usage) -> dict[str, object]:
    details = {"cached_tokens": usage.cached_tokens}
    if usage.special is not None and usage.special.cache_write:
        # By OpenRouter's name; OpenAI's API has none.
        details["cache_write_tokens"] = usage.special.cache_write
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": details,
    }
