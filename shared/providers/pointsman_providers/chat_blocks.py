"""A chat's turns as strict providers take them, in parts."""

from collections.abc import Sequence
from typing import Final

import orjson

from pointsman_providers.call_ids import CallIds
from pointsman_providers.chat_history import mended
from pointsman_providers.chat_messages import ChatText, ChatTurn, Part, ToolCall, ToolResult, unsayable


class _ChatParts:
    """Like `HistoryBlocks`, of chats."""

    def call_id(self, block: Part) -> str | None:
        return block.id if isinstance(block, ToolCall) else None

    def result_id(self, block: Part) -> str | None:
        return block.id if isinstance(block, ToolResult) else None

    def with_id(self, block: Part, identity: str) -> Part:
        return block._replace(id=identity) if isinstance(block, ToolCall | ToolResult) else block

    def text(self, text: str) -> Part:
        return ChatText(text)

    def result(self, identity: str, text: str) -> Part:
        return ToolResult(identity, (ChatText(text),))

    def as_text(self, block: Part) -> Sequence[Part]:
        return _result_as_text(block, "a tool") if isinstance(block, ToolResult) else [block]


_PARTS: Final = _ChatParts()


def mended_turns(turns: Sequence[ChatTurn], ids: CallIds, who: str) -> list[ChatTurn]:
    """The turns as `who` takes them. Raises Refusal 400 where none of them says anything."""
    found = mended([(turn.role, turn.parts) for turn in turns], _PARTS, ids)
    if not found:
        raise unsayable("messages", who, "They must say something besides white space.")
    role, parts = found[-1]
    if role == "assistant" and isinstance(parts[-1], ChatText):
        # Of an answer that the model is to continue.
        parts[-1] = parts[-1]._replace(text=parts[-1].text.rstrip())
    return [ChatTurn("user" if role == "user" else "assistant", tuple(parts)) for role, parts in found]


def without_calls(turns: Sequence[ChatTurn]) -> list[ChatTurn]:
    """The turns with calls and results as text, for a request that offers no tools."""
    names: dict[str, str] = {}
    found: list[ChatTurn] = []
    for turn in turns:
        parts: list[Part] = []
        for part in turn.parts:
            if isinstance(part, ToolCall):
                names[part.id] = part.name
                arguments = orjson.dumps(part.arguments).decode()
                parts.append(ChatText(f"(Called the tool {part.name} with {arguments})", part.cache))
            elif isinstance(part, ToolResult):
                parts += _result_as_text(part, names.get(part.id, "a tool"))
            else:
                parts.append(part)
        found.append(ChatTurn(turn.role, tuple(parts)))
    return found


def has_calls(turns: Sequence[ChatTurn]) -> bool:
    """Whether the history has tool calls or results."""
    return any(isinstance(part, ToolCall | ToolResult) for turn in turns for part in turn.parts)


def _result_as_text(result: ToolResult, name: str) -> list[Part]:
    said = "\n".join(part.text for part in result.parts if isinstance(part, ChatText))
    media = [part for part in result.parts if not isinstance(part, ChatText)]
    return [ChatText(f"(Result of {name}: {said or 'nothing'})", result.cache), *media]
