"""Reads answers as the clients of each API do, and nothing more leniently."""

import json
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
_GIVEN = "="
"""Before arguments that came with the beginning of their block."""


@dataclass
class Read:
    """An answer, as its client understands it."""

    text: str = ""
    thought: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    marks: int = 0
    """Marks at the end of a stream."""
    ended: bool = False
    """A reason was given for the end."""
    error: str = ""
    """The event, or the document, that says that there is no answer."""
    models: set[str] = field(default_factory=set[str])


def whole(api: str, body: bytes) -> Read:
    """A document."""
    document: Json = json.loads(body)
    if document.get("error") or document.get("type") == "error":
        return Read(error=json.dumps(document))
    read = Read(models={str(document.get("model"))}, ended=True)
    if api == "chat":
        message: Json = document["choices"][0]["message"]
        read.text, read.thought = message.get("content") or "", message.get("reasoning_content") or ""
        calls: list[Json] = message.get("tool_calls") or []
        for call in calls:
            read.calls.append((call["function"]["name"], json.loads(call["function"]["arguments"])))
            if not call["id"]:
                raise AssertionError("a call without id")
    elif api == "messages":
        for block in document["content"]:
            _block(read, block)
    else:
        read.text = "".join(part["text"] for item in document["output"] for part in item.get("content", []))
    return read


def _block(read: Read, block: Json) -> None:
    match block:
        case {"type": "text", "text": text}:
            read.text += text
        case {"type": "thinking", "thinking": text}:
            read.thought += text
        case {"type": "tool_use", "name": name, "input": given}:
            read.calls.append((name, given))
        case _:
            pass


def stream(api: str, body: bytes) -> Read:
    """Events: only those between two empty lines count."""
    read = Read()
    text = body.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    *events, rest = text.split("\n\n")
    if rest.strip():
        raise AssertionError(f"an event without end: {rest[-80:]!r}")
    pieces: dict[Any, list[str]] = {}
    names: dict[Any, str] = {}
    for event in events:
        lines = [line[5:].removeprefix(" ") for line in event.split("\n") if line.startswith("data:")]
        data = "\n".join(lines)
        if not data:
            continue
        if data == "[DONE]":
            read.marks += 1
            continue
        document: Json = json.loads(data)
        if document.get("error") or document.get("type") == "error":
            read.error = data
            continue
        if read.marks:
            continue  # behind the mark
        {"chat": _chat, "messages": _message, "responses": _response}[api](read, document, names, pieces)
    read.calls += [
        (name, json.loads("".join(pieces[place]).removeprefix(_GIVEN) or "{}")) for place, name in names.items()
    ]
    return read


def _chat(read: Read, document: Json, names: dict[Any, str], pieces: dict[Any, list[str]]) -> None:
    if document.get("model"):
        read.models.add(document["model"])
    choices: list[Json] = document.get("choices") or []
    for choice in choices:
        delta: Json = choice.get("delta") or {}
        read.text += delta.get("content") or ""
        read.thought += delta.get("reasoning_content") or ""
        calls: list[Json] = delta.get("tool_calls") or []
        for call in calls:
            place = call.get("index", 0)
            if call["function"].get("name"):
                names[place], pieces[place] = call["function"]["name"], []
                if not call["id"]:
                    raise AssertionError("a call without id")
            pieces[place].append(call["function"].get("arguments") or "")
        read.ended = read.ended or choice.get("finish_reason") is not None


def _message(read: Read, document: Json, names: dict[Any, str], pieces: dict[Any, list[str]]) -> None:
    place = document.get("index")
    match document:
        case {"type": "message_start", "message": message}:
            read.models.add(message["model"])
        case {"type": "content_block_start", "content_block": {"type": "tool_use", "name": name} as block}:
            names[place], pieces[place] = name, []
            if block["input"]:
                pieces[place].append(f"{_GIVEN}{json.dumps(block['input'])}")
        case {"type": "content_block_start", "content_block": block}:
            _block(read, block)
        case {"type": "content_block_delta", "delta": {"text": text}}:
            read.text += text
        case {"type": "content_block_delta", "delta": {"thinking": text}}:
            read.thought += text
        case {"type": "content_block_delta", "delta": {"partial_json": text}}:
            if pieces[place] and pieces[place][0].startswith(_GIVEN):
                pieces[place].clear()  # the deltas count, where there are some
            pieces[place].append(text)
        case {"type": "message_delta"}:
            read.ended = True
        case {"type": "message_stop"}:
            read.marks += 1
        case _:
            pass


def _response(read: Read, document: Json, names: dict[Any, str], pieces: dict[Any, list[str]]) -> None:
    if isinstance(document.get("response"), dict):
        read.models.add(document["response"]["model"])
    match document:
        case {"type": "response.output_text.delta", "delta": text}:
            read.text += text
        case {"type": "response.completed" | "response.incomplete" | "response.failed"}:
            read.marks += 1
            read.ended = True
        case _:
            pass
