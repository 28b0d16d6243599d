"""Writes answers as each API's services do, from parts that mean the same in all of them.

Parts of a stream: `role`, `=text`, `~thought`, `finish`, `usage`, `done`, `comment`, `ping`, bytes as they are, and
tuples for calls of tools.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pointsman_testing.provider_messages import aws_message

Part = str | bytes | tuple[Any, ...]
Json = dict[str, Any]

TEXT: Final = ("Hello", " far")
STREAM: Final[tuple[Part, ...]] = ("role", "=Hello", "= far", "finish", "usage", "done")
"""An answer without quirks."""
NAME: Final = "far-1-2026"
COUNTS: Final = ("5", "3")
"""Tokens of the prompt and of the answer, as they are written."""


@dataclass(frozen=True)
class Form:
    """How one API writes answers."""

    name: str
    whole: Callable[[tuple[str, str] | None, Sequence[Part]], bytes]
    """A document with this usage (None: without any) and these parts."""
    part: Callable[[Part, tuple[str, str]], bytes]
    """One part of a stream."""
    content_type: str = "text/event-stream"


def stream(form: Form, parts: Sequence[Part], counts: tuple[str, str]) -> list[bytes]:
    """The pieces of a stream."""
    return [part if isinstance(part, bytes) else form.part(part, counts) for part in parts]


def _counted(document: Json, counts: tuple[str, str] | None, prompt: str, completion: str, at: str = "usage") -> bytes:
    """The document, with counts that needn't be JSON of a number."""
    if counts is None:
        return json.dumps(document).encode()
    usage = f'"{at}": {{"{prompt}": {counts[0]}, "{completion}": {counts[1]}}}'
    return f"{json.dumps(document)[:-1]}, {usage}}}".encode()


def event(data: bytes, name: str = "") -> bytes:
    """One event of a stream."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + data + b"\n\n"


def _aside(part: Part) -> bytes | None:
    """A comment."""
    return b": PROCESSING\n\n" if part == "comment" else None


# OpenAI's chat completions.


def _chat_head(kind: str) -> Json:
    return {"id": "c-1", "object": kind, "created": 1, "model": NAME}


def chat_chunk(delta: Json, reason: str | None = None, **more: Any) -> bytes:
    """A chunk with one choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason, **more}
    return event(json.dumps({**_chat_head("chat.completion.chunk"), "choices": [choice]}).encode())


def _chat_part(part: Part, counts: tuple[str, str]) -> bytes:
    match part:
        case "role":
            return chat_chunk({"role": "assistant", "content": ""})
        case ("call", index, identity, name):
            call = {"index": index, "id": identity, "type": "function", "function": {"name": name, "arguments": ""}}
            return chat_chunk({"tool_calls": [call]})
        case ("args", index, text):
            return chat_chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        case ("end", reason):
            return chat_chunk({}, {"tools": "tool_calls"}.get(reason, reason))
        case "finish":
            return chat_chunk({}, "stop")
        case "usage":
            document: Json = {**_chat_head("chat.completion.chunk"), "choices": []}
            return event(_counted(document, counts, "prompt_tokens", "completion_tokens"))
        case "done":
            return event(b"[DONE]")
        case "ping":
            return b": ping\n\n"
        case str(text) if text.startswith("="):
            return chat_chunk({"content": text[1:]})
        case str(text) if text.startswith("~"):
            return chat_chunk({"reasoning_content": text[1:]})
        case _:
            return _aside(part) or b""


def _texts(parts: Sequence[Part]) -> str:
    return "".join(part[1:] for part in parts if isinstance(part, str) and part.startswith("="))


def _calls(parts: Sequence[Part]) -> list[tuple[str, str, str]]:
    """Id, name and arguments of each call."""
    begun = [part for part in parts if part[0] == "call"]
    return [
        (str(identity), str(name), "".join(str(part[2]) for part in parts if part[0] == "args" and part[1] == index))
        for _, index, identity, name in begun
    ]


def _chat_whole(counts: tuple[str, str] | None, parts: Sequence[Part]) -> bytes:
    message: Json = {"role": "assistant", "content": _texts(parts)}
    calls = _calls(parts)
    if calls:
        message["tool_calls"] = [
            {"id": identity, "type": "function", "function": {"name": name, "arguments": given or "{}"}}
            for identity, name, given in calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    document = {**_chat_head("chat.completion"), "choices": [choice]}
    return _counted(document, counts, "prompt_tokens", "completion_tokens")


# Anthropic's messages.


def named(document: Json) -> bytes:
    """An event with its type as name."""
    return event(json.dumps(document).encode(), str(document["type"]))


def _message(content: list[Json], reason: str | None) -> Json:
    head: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": NAME}
    return {**head, "content": content, "stop_reason": reason, "stop_sequence": None}


def _message_part(part: Part, counts: tuple[str, str]) -> bytes:
    match part:
        case "role":
            begin = _counted(_message([], None), (counts[0], "1"), "input_tokens", "output_tokens")
            start = event(b'{"type": "message_start", "message": ' + begin + b"}", "message_start")
            block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
            return start + named(block)
        case ("call", index, identity, name):
            block: Json = {"type": "tool_use", "id": identity, "name": name, "input": {}}
            return named({"type": "content_block_start", "index": index + 1, "content_block": block})
        case ("args", index, text):
            delta = {"type": "input_json_delta", "partial_json": text}
            return named({"type": "content_block_delta", "index": index + 1, "delta": delta})
        case ("end", reason):
            return _message_end({"tools": "tool_use"}.get(str(reason), str(reason)), counts)
        case "finish":
            return named({"type": "content_block_stop", "index": 0}) + _message_end("end_turn", counts)
        case "done":
            return named({"type": "message_stop"})
        case "ping":
            return named({"type": "ping"})
        case str(text) if text.startswith("="):
            delta = {"type": "text_delta", "text": text[1:]}
            return named({"type": "content_block_delta", "index": 0, "delta": delta})
        case str(text) if text.startswith("~"):
            delta = {"type": "thinking_delta", "thinking": text[1:]}
            return named({"type": "content_block_delta", "index": 0, "delta": delta})
        case _:
            return _aside(part) or b""


def _message_end(reason: str, counts: tuple[str, str]) -> bytes:
    document = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}}
    text = f'{json.dumps(document)[:-1]}, "usage": {{"output_tokens": {counts[1]}}}}}'
    return event(text.encode(), "message_delta")


def _message_whole(counts: tuple[str, str] | None, parts: Sequence[Part]) -> bytes:
    blocks: list[Json] = [{"type": "text", "text": text}] if (text := _texts(parts)) else []
    calls = _calls(parts)
    blocks += [
        {"type": "tool_use", "id": identity, "name": name, "input": json.loads(given or "{}")}
        for identity, name, given in calls
    ]
    message = _message(blocks, "tool_use" if calls else "end_turn")
    return _counted(message, counts, "input_tokens", "output_tokens")


# AWS Bedrock's Converse.


def _converse_part(part: Part, counts: tuple[str, str]) -> bytes:
    match part:
        case "role":
            return aws_message("messageStart", {"role": "assistant"})
        case ("call", index, identity, name):
            start: Json = {"toolUse": {"toolUseId": identity, "name": name}}
            return aws_message("contentBlockStart", {"contentBlockIndex": index + 1, "start": start})
        case ("args", index, text):
            delta: Json = {"toolUse": {"input": text}}
            return aws_message("contentBlockDelta", {"contentBlockIndex": index + 1, "delta": delta})
        case ("end", reason):
            return aws_message("messageStop", {"stopReason": {"tools": "tool_use"}.get(str(reason), str(reason))})
        case "finish":
            stop = aws_message("contentBlockStop", {"contentBlockIndex": 0})
            return stop + aws_message("messageStop", {"stopReason": "end_turn"})
        case "usage":
            usage = f'{{"usage": {{"inputTokens": {counts[0]}, "outputTokens": {counts[1]}}}}}'
            return aws_message("metadata", usage.encode())
        case str(text) if text.startswith("="):
            return aws_message("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": text[1:]}})
        case str(text) if text.startswith("~"):
            delta = {"reasoningContent": {"text": text[1:]}}
            return aws_message("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta})
        case _:
            return b""


def _converse_whole(counts: tuple[str, str] | None, parts: Sequence[Part]) -> bytes:
    content: list[Json] = [{"text": text}] if (text := _texts(parts)) else []
    calls = _calls(parts)
    content += [
        {"toolUse": {"toolUseId": identity, "name": name, "input": json.loads(given or "{}")}}
        for identity, name, given in calls
    ]
    output = {"message": {"role": "assistant", "content": content}}
    document = {"output": output, "stopReason": "tool_use" if calls else "end_turn"}
    return _counted(document, counts, "inputTokens", "outputTokens")


# OpenAI's responses.


def _response(text: str, status: str) -> Json:
    content: list[Json] = [{"type": "output_text", "text": text, "annotations": []}]
    item: Json = {"id": "m-1", "type": "message", "role": "assistant", "status": status, "content": content}
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": NAME, "status": status}
    return {**head, "output": [item] if text else []}


def _response_part(part: Part, counts: tuple[str, str]) -> bytes:
    match part:
        case "role":
            return b"".join(
                named({"type": kind, "response": _response("", "in_progress")})
                for kind in ("response.created", "response.in_progress")
            )
        case "done":
            inner = _counted(_response("".join(TEXT), "completed"), counts, "input_tokens", "output_tokens")
            return event(b'{"type": "response.completed", "response": ' + inner + b"}", "response.completed")
        case "ping":
            return b": ping\n\n"
        case str(text) if text.startswith("="):
            place = {"item_id": "m-1", "output_index": 0, "content_index": 0}
            return named({"type": "response.output_text.delta", **place, "delta": text[1:]})
        case _:
            return _aside(part) or b""


def _response_whole(counts: tuple[str, str] | None, parts: Sequence[Part]) -> bytes:
    return _counted(_response(_texts(parts), "completed"), counts, "input_tokens", "output_tokens")


FORMS: Final = {
    form.name: form
    for form in (
        Form("chat", _chat_whole, _chat_part),
        Form("messages", _message_whole, _message_part),
        Form("converse", _converse_whole, _converse_part, "application/vnd.amazon.eventstream"),
        Form("responses", _response_whole, _response_part),
    )
}
