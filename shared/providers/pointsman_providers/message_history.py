"""Makes the history of a request to `/v1/messages` one that Anthropic's own service takes.

Other services have this API too (vLLM, SGLang, Kimi, GLM): a client may continue there or here. Their ids, blank texts
and thinking without a signature are refused by Anthropic's. A body that needs no change stays byte for byte.
"""

from collections.abc import Sequence
from typing import Final, cast

import orjson
from pydantic import JsonValue

from pointsman_providers.call_ids import CallIds
from pointsman_providers.chat_history import Role, mended, merged
from pointsman_providers.tool_schema import object_schema

Block = dict[str, JsonValue]
_THOUGHT: Final = "(The assistant thought.)"
_THOUGHTS: Final = ("thinking", "redacted_thinking")


class _MessageBlocks:
    """Like `HistoryBlocks`, of Anthropic's messages."""

    def call_id(self, block: Block) -> str | None:
        return _text(block, "id") if block.get("type") == "tool_use" else None

    def result_id(self, block: Block) -> str | None:
        return _text(block, "tool_use_id") if block.get("type") == "tool_result" else None

    def with_id(self, block: Block, identity: str) -> Block:
        return {**block, "tool_use_id" if block.get("type") == "tool_result" else "id": identity}

    def text(self, text: str) -> Block:
        return {"type": "text", "text": text}

    def result(self, identity: str, text: str) -> Block:
        return {"type": "tool_result", "tool_use_id": identity, "content": text}

    def as_text(self, block: Block) -> Sequence[Block]:
        content = block.get("content")
        if isinstance(content, str):
            return [self.text(f"(Result of a tool: {content})")] if content.strip() else []
        return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


_BLOCKS: Final = _MessageBlocks()


def mended_messages(body: bytes, ids: CallIds) -> bytes:
    """The body as Anthropic takes it; the same bytes if it needs no change."""
    try:
        document: JsonValue = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    if not isinstance(document, dict):
        return body
    changes = {
        "messages": _messages(document.get("messages"), ids),
        "system": _system(document.get("system")),
        "tools": _tools(document.get("tools")),
    }
    changed = {name: value for name, value in changes.items() if value is not None}
    return orjson.dumps({**document, **changed}) if changed else body


def without_thoughts(body: bytes) -> bytes | None:
    """The body without the reasoning of earlier turns; None if it has none."""
    document: JsonValue = orjson.loads(body)
    messages = document.get("messages") if isinstance(document, dict) else None
    found = False
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(message, dict) and isinstance(content, list) and any(map(_is_thought, content)):
            found = True
            kept = [block for block in content if not _is_thought(block)]
            message["content"] = kept or [_BLOCKS.text(_THOUGHT)]
    return orjson.dumps(document) if found else None


def _messages(messages: JsonValue, ids: CallIds) -> JsonValue:
    """The new messages; None where they stay. Messages of an unknown form are left to the provider."""
    if not isinstance(messages, list):
        return None
    turns: list[tuple[Role, list[Block]]] = []
    for message in messages:
        match message:
            case {"role": "user" | "assistant" | "system" as role, "content": str(text)}:
                turns.append((role, [_BLOCKS.text(text)]))
            case {"role": "user" | "assistant" | "system" as role, "content": list(blocks)}:
                if not all(isinstance(block, dict) for block in blocks):
                    return None
                turns.append((role, cast("list[Block]", blocks)))
            case _:
                return None
    kept: list[tuple[Role, list[Block]]] = [(role, _kept(blocks)) for role, blocks in turns]
    found = mended(kept, _BLOCKS, ids)
    if not found or merged(turns) == found:
        return None
    return [{"role": role, "content": cast("list[JsonValue]", blocks)} for role, blocks in found]


def _kept(blocks: Sequence[Block]) -> list[Block]:
    """Without blank texts and unsigned thoughts. A cache mark moves to the block before."""
    found: list[Block] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "thinking" and not block.get("signature"):
            continue
        if kind == "text" and not _text(block, "text").strip():
            mark = block.get("cache_control")
            if mark is not None and found and found[-1].get("type") not in _THOUGHTS:
                found[-1] = {**found[-1], "cache_control": mark}
            continue
        content = block.get("content")
        if kind == "tool_result" and isinstance(content, list):
            parts = [part for part in content if not _is_blank(part)]
            found.append({**block, "content": parts} if len(parts) < len(content) else block)
        else:
            found.append(block)
    return found


def _system(system: JsonValue) -> JsonValue:
    if not isinstance(system, list):
        return None
    parts = [part for part in system if not _is_blank(part)]
    return parts if len(parts) < len(system) else None


def _tools(tools: JsonValue) -> JsonValue:
    found: list[JsonValue] = []
    for tool in tools if isinstance(tools, list) else []:
        match tool:
            case {"input_schema": dict(given)}:
                schema = object_schema(given)
                found.append(tool if schema is None else {**tool, "input_schema": dict(schema)})
            case _:
                found.append(tool)
    return found if found and found != tools else None


def _is_thought(block: JsonValue) -> bool:
    return isinstance(block, dict) and block.get("type") in _THOUGHTS


def _is_blank(part: JsonValue) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and not _text(part, "text").strip()


def _text(block: Block, name: str) -> str:
    value = block.get(name)
    return value if isinstance(value, str) else ""
