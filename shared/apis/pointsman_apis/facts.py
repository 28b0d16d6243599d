"""The facts of a body for stages and rules: numbers, flags, short identifiers. Never prompt text."""

import re
from typing import Final, cast

from pydantic import JsonValue

from pointsman_apis.fields import Document
from pointsman_apis.requests import StructuredBody

FIELDS_LIMIT: Final = 64
"""Fields of a body that rules may read, in the body's order."""
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_.:/@+-]{1,128}")
_CONTENT: Final = frozenset(
    {"messages", "prompt", "input", "instructions", "system", "suffix", "stop", "documents", "chat_template", "text"}
)
"""Fields that hold what people wrote, even where it looks like an identifier."""


def readable_fields(document: Document, *, identifiers: bool = True) -> dict[str, JsonValue]:
    """The numbers, booleans and short identifiers of the top level. Without `identifiers` the model is the only text:
    in a body of which little is known, any other may be a prompt."""
    fields: dict[str, JsonValue] = {}
    for name, value in document.items():
        kind = type(value)
        if kind is str:
            if (name in _CONTENT if identifiers else name != "model") or not _IDENTIFIER.fullmatch(cast("str", value)):
                continue
        elif kind is not bool and kind is not int and kind is not float:
            continue
        if len(name) <= 64 and len(fields) < FIELDS_LIMIT:
            fields[name] = value
    return fields


def features(body: StructuredBody) -> tuple[str, ...]:
    """The features that the request needs of a model: `tools`, `json`, `reasoning`, `logprobs`, or those of `MEDIA`."""
    found = list(dict.fromkeys(body.media)) if body.media else []
    get = body.document.get
    if get("tools") or get("functions"):
        found.append("tools")
    if _wants_json(body):
        found.append("json")
    if get("reasoning_effort") not in (None, "none") or get("reasoning") or get("thinking"):
        found.append("reasoning")
    if get("logprobs"):
        found.append("logprobs")
    return tuple(found)


def max_output_tokens(body: StructuredBody) -> int | None:
    """The client's limit on each answer; None when it set none, 0 for an API that generates no text."""
    for name in body.api.output_limits:
        limit = body.document.get(name)
        if limit is not None:
            return cast("int", limit)
    return None if body.api.generates else 0


def _wants_json(body: StructuredBody) -> bool:
    get = body.document.get
    text = get("text")
    wanted = text.get("format") if isinstance(text, dict) else get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") in ("json_object", "json_schema"):
        return True
    return "guided_json" in body.document or "structured_outputs" in body.document
