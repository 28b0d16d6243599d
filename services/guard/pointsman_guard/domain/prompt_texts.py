"""The texts of a request, whatever its API, with who says them; and how to put others in their place."""

from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from pointsman_guard.domain.checking import Finding, Text

Document = dict[str, object]

UNREADABLE_TOKENS: Final = "unreadable.tokens"
UNREADABLE_MEDIA: Final = "unreadable.media"
DETECTOR: Final = "reader"
"""Whose findings those are."""

_SPOKEN: Final = ("messages", "input", "prompt", "system", "instructions", "suffix", "tools", "functions", "prediction")
"""Members of a body that have texts for the model."""
_ROLES: Final[Mapping[str, str]] = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
    "user": "user",
}
_TYPES: Final[Mapping[str, str]] = {
    "function_call_output": "tool",
    "tool_result": "tool",
    "custom_tool_call_output": "tool",
    "mcp_call": "tool",
    "document": "tool",
    "search_result": "tool",
    "function_call": "assistant",
    "tool_use": "assistant",
    "reasoning": "assistant",
}
"""Who says a part of that type, whoever's message it stands in."""
_FIXED: Final[Mapping[str, str]] = {
    "system": "system",
    "instructions": "system",
    "tools": "system",
    "functions": "system",
    "prediction": "assistant",
}
"""Who says what isn't a message."""
_MEDIA: Final = frozenset(
    ("image_url", "input_image", "image", "input_audio", "audio", "video_url", "input_file", "file")
)
_NAMES: Final = frozenset(
    (
        *("type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "status", "signature", "encrypted_content"),
        *(
            "cache_control",
            "media_type",
            "file_id",
            "detail",
            "format",
            "image_url",
            "url",
            "data",
            "file_data",
            "model",
        ),
    )
)
"""Members that say how, not what."""


class Slot(NamedTuple):
    """One place in a body that holds a text."""

    text: Text
    holder: Document | list[object]
    key: str | int

    def put(self, text: str) -> None:
        """Put another text there."""
        if isinstance(self.holder, list):
            self.holder[cast("int", self.key)] = text
        else:
            self.holder[cast("str", self.key)] = text

    @property
    def field(self) -> str:
        """The member of the body's top level that it stands in."""
        return self.text.part.partition("[")[0].partition(".")[0]


def prompt_texts(body: Document) -> tuple[list[Slot], list[Finding]]:
    """The texts in the order in which they stand, and what can't be read."""
    reader = _Reader()
    for name in _SPOKEN:
        if name in body:
            reader.read(body, name, name, _FIXED.get(name, "user"))
    return reader.slots, reader.unreadable


class _Reader:
    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.unreadable: list[Finding] = []

    def read(self, holder: Document | list[object], key: str | int, path: str, role: str) -> None:
        value = holder[cast("int", key)] if isinstance(holder, list) else holder[cast("str", key)]
        if isinstance(value, str):
            if value:
                self.slots.append(Slot(Text(path, role, value), holder, key))
        elif isinstance(value, list):
            items = cast("list[object]", value)
            if items and all(isinstance(item, int) for item in items) and path.partition("[")[0] in ("prompt", "input"):
                self._unread(UNREADABLE_TOKENS)
                return
            for index in range(len(items)):
                self.read(items, index, f"{path}[{index}]", role)
        elif isinstance(value, dict):
            self._members(cast("Document", value), path, role)

    def _members(self, value: Document, path: str, role: str) -> None:
        kind = value.get("type")
        if isinstance(kind, str):
            role = _TYPES.get(kind, role)
            if kind in _MEDIA:
                self._unread(UNREADABLE_MEDIA)
        said = value.get("role")
        if isinstance(said, str):
            role = _ROLES.get(said, "user")
        for name in list(value):
            if name not in _NAMES:
                self.read(value, name, f"{path}.{name}", role)

    def _unread(self, category: str) -> None:
        if all(finding.category != category for finding in self.unreadable):
            self.unreadable.append(Finding(category, DETECTOR))
