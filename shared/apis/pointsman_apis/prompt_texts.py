"""The texts of a request, whatever its API, with the role that says each; and how to put others in their place."""

from collections.abc import Mapping
from typing import Final, NamedTuple, cast

import orjson

from pointsman_apis.forms import is_form, read_again

Document = dict[str, object]

TOKENS: Final = "tokens"
MEDIA: Final = "media"
"""Kinds of content that has no readable text."""

SPOKEN: Final = (
    *("messages", "input", "prompt", "system", "instructions", "suffix", "tools", "functions", "prediction"),
    *("documents", "response_format", "text", "chat_template", "chat_template_kwargs"),
)
"""Members of a body that have texts for the model."""
_WHOLE: Final = frozenset(
    (
        *("tools", "functions", "documents", "input", "arguments", "parameters", "input_schema"),
        *("response_format", "text", "chat_template_kwargs"),
    )
)
"""Members whose objects have whatever names their author chose: schemas, what a tool is called with, documents."""
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
"""The role that says a part of that type, in any message."""
_FIXED: Final[Mapping[str, str]] = {
    "system": "system",
    "instructions": "system",
    # Descriptions of tools come from other servers.
    "tools": "tool",
    "functions": "tool",
    "response_format": "system",
    "text": "system",
    "chat_template": "system",
    "chat_template_kwargs": "system",
    "prediction": "assistant",
    "documents": "tool",
}
"""Who says what isn't a message."""
_MEDIA: Final = frozenset(
    (
        *("image_url", "input_image", "image", "image_embeds", "image_pil", "input_audio", "audio", "audio_url"),
        *("audio_embeds", "video_url", "video_embeds", "input_file", "file", "computer_screenshot"),
    )
)
"""Types of parts, the members that hold them, and what an engine takes for such a part when it has no type.
Source: vLLM `entrypoints/chat_utils.py` (`MM_PARSER_MAP`, `_parse_chat_message_content_mm_part`)."""
_KNOWN: Final = frozenset(
    (
        *_MEDIA,
        *_TYPES,
        *("text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "prompt_embeds", "content"),
        *("message", "item_reference", "summary_text", "reasoning_text", "function", "custom", "custom_tool_call"),
        *("base64", "url", "ephemeral", "server_tool_use", "web_search_tool_result", "web_search_result"),
        *("code_interpreter_call", "logs", "computer_call_output", "image_generation_call", "mcp_list_tools"),
    )
)
"""Types of messages and parts with known members. Of any other type every member is read."""
_HOLDERS: Final = frozenset((*_MEDIA, "function", "function_call", "custom", "source", "cache_control"))
"""Members that hold objects without a type of their own."""
_NAMES: Final = frozenset(
    (
        *("type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "status", "signature", "encrypted_content"),
        *("media_type", "file_id", "detail", "format", "image_url", "url", "data", "file_data", "model"),
        *("image_embeds", "image_pil", "audio_embeds", "video_embeds"),
    )
)
"""Members of what is known that say how, not what."""
_FILES: Final = "\0files"
"""Stands for the files of a form; no member has such a name."""
_BASE64: Final = frozenset({"image_data", "audio_data", "video_data", "b64_json", "mask"})
_IDS: Final = frozenset({"input_ids", "tokens", "token_ids", "prompt_token_ids", "input_embeds"})
"""Members that hold tokens, or vectors in their place, in APIs without a module of their own."""
_SCHEMA_TYPES: Final = frozenset(
    (
        *("object", "array", "string", "number", "integer", "boolean", "null", "function", "custom", "ephemeral"),
        *("json_schema", "json_object", "text"),
    )
)


class PromptSlot(NamedTuple):
    """One place in a body that holds a text."""

    part: str
    """Path in the body, e.g. `messages[0].content`."""
    role: str
    """`system`, `user`, `assistant` or `tool`."""
    text: str
    holder: Document | list[object]
    key: str | int

    def replace_text(self, text: str) -> None:
        """Put another text there."""
        if isinstance(self.holder, list):
            self.holder[cast("int", self.key)] = text
        else:
            self.holder[cast("str", self.key)] = text

    @property
    def top_level_field(self) -> str:
        """The member of the body's top level that it stands in."""
        return self.part.partition("[")[0].partition(".")[0]


class PromptTexts(NamedTuple):
    """The texts of a body."""

    slots: list[PromptSlot]
    """In the order in which they stand."""
    unread: list[str]
    """`TOKENS`, `MEDIA` or both, where the body has such content beside the texts."""


def body_members(body: bytes) -> Document:
    """The members of a body: of a JSON object, or the text members of a form; none where there is no body. A form's
    files are one member. Raises ValueError for anything else."""
    if not body:
        return {}
    if is_form(body):
        form = read_again(body)
        files: Document = {_FILES: MEDIA} if form.files else {}
        return {**{field.name: field.value for field in form.fields}, **files}
    document = cast("object", orjson.loads(body))
    if not isinstance(document, dict):
        raise ValueError("the body is not a JSON object")  # noqa: TRY004 - as orjson says it of what isn't JSON
    return cast("Document", document)


def prompt_texts(body: Document, *, everything: bool = False) -> PromptTexts:
    """Read the members of a body. `everything`: any member may hold a text for the model."""
    reader = _Reader()
    for name in filter(body.__contains__, SPOKEN):
        whole = name in _WHOLE and name != "input"
        reader.read(body, name, name, "user" if everything else _FIXED.get(name, "user"), whole=whole)
    nvext = body.get("nvext")
    if body.get("prompt_embeds") or (isinstance(nvext, dict) and cast("Document", nvext).get("token_data")):
        reader.cannot_read(TOKENS)
    if everything:
        for name in body:
            if name == _FILES or name in _MEDIA or name in _BASE64:
                reader.cannot_read(MEDIA)
            elif name in _IDS:
                reader.cannot_read(TOKENS)
            elif name not in SPOKEN and name != "model":
                reader.read(body, name, name, "user", whole=True)
    return PromptTexts(reader.slots, reader.unread)


class _Reader:
    def __init__(self) -> None:
        self.slots: list[PromptSlot] = []
        self.unread: list[str] = []

    def read(
        self, holder: Document | list[object], key: str | int, path: str, role: str, *, whole: bool = False
    ) -> None:
        """`whole`: names of members say nothing about what they hold."""
        value = holder[cast("int", key)] if isinstance(holder, list) else holder[cast("str", key)]
        if isinstance(value, str):
            if value:
                self.slots.append(PromptSlot(path, role, value, holder, key))
        elif isinstance(value, list):
            items = cast("list[object]", value)
            if items and all(isinstance(item, int) for item in items) and path.partition("[")[0] in ("prompt", "input"):
                self.cannot_read(TOKENS)
                return
            for index in range(len(items)):
                self.read(items, index, f"{path}[{index}]", role, whole=whole)
        elif isinstance(value, dict):
            members = cast("Document", value)
            if whole:
                for name, member in members.items():
                    if name != "type" or not isinstance(member, str) or member not in _SCHEMA_TYPES:
                        self.read(members, name, f"{path}.{name}", role, whole=True)
            else:
                self._members(members, key, path, role)

    def cannot_read(self, kind: str) -> None:
        """Note content without readable text, each kind once."""
        if kind not in self.unread:
            self.unread.append(kind)

    def _members(self, value: Document, key: str | int, path: str, role: str) -> None:
        kind, said = value.get("type"), value.get("role")
        known = key in _HOLDERS or isinstance(value.get("function"), dict)
        if isinstance(kind, str):
            known = kind in _KNOWN
            role = _TYPES.get(kind, role)
            if kind in _MEDIA or (kind == "document" and not _is_text(value.get("source"))):
                self.cannot_read(MEDIA)
            elif kind == "prompt_embeds":
                self.cannot_read(TOKENS)
        elif said is None and not known and not _MEDIA.isdisjoint(value):
            self.cannot_read(MEDIA)
        if isinstance(said, str):
            known = True
            role = _ROLES.get(said, "user")
        for name in list(value):
            member = value[name]
            if known and name in _NAMES and not isinstance(member, dict | list) and not _is_said(name, value):
                continue
            self.read(value, name, f"{path}.{name}", role, whole=name in _WHOLE)


def _is_text(source: object) -> bool:
    return isinstance(source, dict) and cast("Document", source).get("type") in ("text", "content")


def _is_said(name: str, holder: Document) -> bool:
    """Whether a member that usually says how is what is said: the text of a document, a role of one's own."""
    if name == "data":
        return holder.get("type") == "text"
    return name == "role" and holder[name] not in _ROLES
